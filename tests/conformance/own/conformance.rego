# METADATA
# title: What the conformance suite wants refused
# description: Who may not use a skill may still read of it.
package skills.custom

deny contains {"code": "custom.conformance", "message": "the conformance suite's own server refuses to run this skill"} if {
	input.request.method in {"execute_skill", "run_code"}
	some s in input.skills
	s.name == "conformance.forbidden"
}
