package skills.authz_conditions_test

import data.skills.authz.decision
import data.skills.fixtures as f
import data.skills.lib.net as netlib

codes(d) := {r.code | some r in d.reasons}

outside(i) := object.union(i, {"source": {"ip": "8.8.8.8"}})

# Whoever asks for one of them, in rules of his own, is told no where there is nothing to go by, and not nothing.
test_a_guard_that_is_not_met_is_false if {
	i := {"request": {"method": "execute_skill"}}
	data.skills.authz.guards_ok == false with input as i
	data.skills.authz.permitted == false with input as i
	data.skills.authz.tenant_ok == false with input as i
	data.skills.authz.source_ok == false with input as i
	data.skills.authz.blobs_ok == false with input as i
	data.skills.authz.names_ok == false with input as i
	data.skills.authz.limits_ok == false with input as i
	data.skills.authz.sandbox_ok == false with input as i
	data.skills.authz.network_ok == false with input as i
	data.skills.authz.secrets_ok == false with input as i
	data.skills.authz.reads == false with input as i
	data.skills.authz.uses_sandbox == false with input as {}
	data.skills.authz.shows_skills == false with input as f.execute
	data.skills.authz.ceilings_ok == false with data.skills.config.limits as {}
	data.skills.authz.denials_known == false with data.skills.config.network as {}
}

# Whether they come by themselves or by a group.
test_who_is_not_authenticated_has_no_role if {
	every subject in [{"roles": ["admin"], "groups": []}, {"roles": [], "groups": ["okta:sales"]}] {
		i := object.union(f.execute, {"subject": object.union(subject, {"authenticated": false})})
		d := decision with input as i
		not d.allow
		"auth.unauthenticated" in codes(d)
		data.skills.authz.roles == set() with input as i
	}
}

test_who_may_read_may_read_the_guide if {
	every method in ["load_skills_protocol_guide", "rpc.discover"] {
		i := object.union(f.base, {"request": {"method": method}})
		d := decision with input as object.union(i, {"subject": {"groups": [], "roles": ["viewer"]}})
		d.allow
		e := decision with input as i
			with data.skills.config.roles["sales-ops"].actions as ["skills:list"]
		codes(e) == {"rbac.no_permit"}
	}
}

# What else the caller might see is for a listing and for a refusal.
test_what_is_allowed_shows_no_skills if {
	d := decision with input as f.execute
	d.allow
	d.visible == {"namespaces": []}
}

# It names none in the gateway; one that named two would be bound by nothing.
test_what_only_reads_names_no_more_than_one_skill if {
	i := object.union(f.run_code, {"request": {"method": "list_skills"}})
	d := decision with input as i
	codes(d) == {"policy.unexplained"}
	e := decision with input as object.union(i, {"skills": [f.salesforce]})
	e.allow
}

# Limits that somebody else's rule makes do not stand for those that are not whole.
test_ceilings_that_are_not_whole_bound_nothing if {
	not data.skills.authz.limits_ok with input as f.execute
		with data.skills.config.tenants.acme.limits as {"timeout_ms": "1"}
		with data.skills.authz.limits as {"max_blob_bytes": 1}
	data.skills.authz.limits_ok with input as f.execute
		with data.skills.authz.limits as {"max_blob_bytes": 1}
}

test_what_runs_nothing_has_no_obligation if {
	d := decision with input as object.union(f.execute, {"request": {"method": "describe_skill"}})
		with data.skills.config.sandbox.fresh as ["salesforce"]
	d.allow
	d.obligations == []
}

# The bundle's own reasons are those of a guard that failed, whatever they would say.
test_reasons_are_of_what_has_refused if {
	said := {{"code": "said"}}
	d := decision with input as f.execute with data.skills.authz.reasons as said
	d.allow
	d.reasons == []
	e := decision with input as f.execute
		with data.skills.custom.deny as {{"code": "custom"}}
		with data.skills.authz.deny as said
	e.reasons == [{"code": "custom"}]
	g := decision with input as outside(f.execute) with data.skills.authz.deny as set()
	codes(g) == {"policy.unexplained"}
}

test_a_refusal_names_no_blob_of_ones_own if {
	own := {"request": {"method": "read_blob"}, "blobs": [{"id": "blob:1", "tenant": "acme"}]}
	d := decision with input as outside(object.union(f.base, own))
	codes(d) == {"tenant.source_ip"}
}

test_a_secret_that_cannot_be_delivered_is_named if {
	d := decision with input as object.union(f.execute, {"skills": [f.gdrive]})
	d.reasons == [{
		"code": "secret.delivery", "skill": "gdrive.sheets.read", "secret": "GDRIVE_TOKEN",
		"message": "the secret GDRIVE_TOKEN is delivered by proxy, which this sandbox cannot do; ask an administrator",
	}]
	# One that it does not ask for is nothing to it.
	bare := object.union(f.gdrive, {"permissions": {"network": [], "secrets": []}})
	e := decision with input as outside(object.union(f.execute, {"skills": [bare]}))
	codes(e) == {"tenant.source_ip"}
}

# A missing field can only deny.
test_a_pattern_that_does_not_say_whether_it_is_a_wildcard_is_not_covered if {
	every host in ["example.com", "a.example.com"] {
		want := {"host": host, "scheme": "https", "port": 443}
		entry := {"exact": true, "subdomains": true, "schemes": ["https"], "ports": [443]}
		not netlib.covers("example.com", entry, want)
		netlib.covers("example.com", entry, object.union(want, {"wildcard": false}))
	}
}

# Addresses are compared with networks, names are not: a name has no address. The gate holds what it resolves to against them.
test_a_name_is_in_no_network if {
	bare := object.union(f.salesforce, {"permissions": {"network": [f.sf_net], "secrets": []}})
	d := decision with input as object.union(f.execute, {"skills": [bare]})
		with data.skills.config.network.deny_cidrs as ["0.0.0.0/0", "::/0"]
	d.allow
	{"type": "egress.deny_cidrs", "cidrs": ["0.0.0.0/0", "::/0"]} in d.obligations
}

# To Rego null is below every number, and a text above.
test_a_freeze_that_ends_at_no_number_denies if {
	every until in ["9999999999", null, true, [9999999999], {}] {
		d := decision with input as f.execute
			with data.skills.config.freezes as [{"methods": ["run_code"], "from_s": 0, "until_s": until}]
		codes(d) == {"custom.freeze"}
	}
}
