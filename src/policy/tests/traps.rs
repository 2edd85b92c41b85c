//! What the engine would let through and the trial does not: each of them was seen on this engine.

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::policy::decision::Decision;
use crate::policy::{silent, trial, whole, words};

/// Why the trial refuses the bundled policy with a file added or replaced.
fn refused(path: &str, text: &str) -> String {
    let mut files = bundled_files();
    files.contents.insert(path.into(), text.as_bytes().to_vec());
    let bundle = match Bundle::new(&files, "policies") {
        Ok(bundle) => bundle,
        Err(error) => return error.to_string(),
    };
    match trial::run(&bundle, BUDGET) {
        Ok(report) => panic!("{path} passes: {report:?}"),
        Err(problems) => problems.join("\n"),
    }
}

fn custom(rules: &str) -> String {
    refused(
        "skills/custom/more.rego",
        &format!("package skills.custom\n\n{rules}\n"),
    )
}

/// A rule of the organisation with this condition.
fn deny_if(condition: &str) -> String {
    custom(&format!(
        "deny contains {{\"code\": \"custom.x\", \"message\": \"x\"}} if {{ {condition} }}"
    ))
}

#[test]
fn the_bundled_policy_passes_its_trial() {
    let report = trial::run(&bundle(&bundled_files()), BUDGET)
        .unwrap_or_else(|why| panic!("{}", why.join("\n")));
    assert!(report.tests >= 40 && report.goldens >= 15, "{report:?}");
}

/// Both engines take the list of the other file, and agree: what is blocked is allowed.
#[test]
fn an_import_of_another_file_is_none_of_ones_own() {
    let mut files = one(
        "import data.people.blocked\n\ndecision := {\"allow\": allow}\n\ndefault allow := false\n\nallow if not input.id in blocked",
    );
    let other =
        "package skills.authz\n\nimport data.names.blocked\n\nother if input.id in blocked\n";
    let data = json!({ "people": { "blocked": ["x"] }, "names": { "blocked": ["y"] } });
    files.add("b.rego".into(), other.into()).unwrap();
    files
        .add("data.json".into(), data.to_string().into())
        .unwrap();
    let bundle = bundle(&files);
    let set = PolicySet::compile(&bundle).unwrap();
    let input: regorus::Value = json!({ "id": "x" }).into();
    for said in [set.decide(input.clone(), BUDGET), set.interpret(input)] {
        let decision = Decision::parse(&said.unwrap()).unwrap();
        assert!(
            decision.allow,
            "each file has its own now: it can be allowed"
        );
    }
    let why = trial::run(&bundle, BUDGET).unwrap_err().join("\n");
    assert!(why.contains("share their imports"), "{why}");
}

fn asks_whole(files: &Files) -> Result<Vec<String>, Vec<String>> {
    let bundle = bundle(files);
    let (served, tests) = words::sheets(&bundle).unwrap();
    whole::asked(&served, &tests)
}

/// Asked for the whole package, the interpreter is through with it after the first file: `closed` would be undefined.
#[test]
fn rules_in_several_files_are_asked_for_by_name() {
    let rules = "package skills.custom\n\n\
        deny contains {\"code\": \"custom.x\", \"message\": \"x\"} if input.request.method in closed\n\n\
        closed := {\"execute_skill\"}\n";
    for file in ["skills/custom/acme.rego", "skills/custom/weekend.rego"] {
        let mut files = bundled_files();
        files.contents.insert(file.into(), rules.into());
        let set = PolicySet::compile(&bundle(&files)).unwrap();
        let mut tried = 0;
        for golden in bundle(&files).goldens() {
            let input = &golden.input;
            if input["request"]["method"] != "execute_skill" {
                continue;
            }
            let input: regorus::Value = input.clone().into();
            for said in [set.decide(input.clone(), BUDGET), set.interpret(input)] {
                let reasons = Decision::parse(&said.unwrap()).unwrap().reasons_json();
                let is_told = reasons.iter().any(|it| it["code"] == "custom.x");
                assert!(is_told, "{file}, {}: {reasons:?}", golden.name);
            }
            tried += 1;
        }
        assert!(tried > 0, "no golden decision about a run");
    }
    let mut files = bundled_files();
    files
        .contents
        .insert("skills/custom/weekend.rego".into(), rules.into());
    let asked = |path: &str, from: &str, to: &str| {
        let mut files = files.clone();
        let text = String::from_utf8(files.contents[path].clone()).unwrap();
        assert!(text.contains(from), "{path}");
        files
            .contents
            .insert(path.into(), text.replace(from, to).into());
        asks_whole(&files)
    };
    let decision = "skills/authz/decision.rego";
    let import = "import data.skills.custom.deny as refusals";
    let about = "asked for as a whole";
    for to in [
        "import data.skills.custom",
        "import data.skills.custom as refusals # data.skills.custom.deny",
        "import data.skills as refusals",
        "import data.skills.custom as refusals # of all",
        "import data as refusals",
        "refusals := data[\"skills\"][\"custom\"]",
        "refusals := data.skills[input.x].deny",
    ] {
        let refused = asked(decision, import, to).unwrap_err();
        assert_eq!(refused.len(), 1, "{refused:?}");
        let place = "policies/skills/authz/decision.rego:13: data";
        assert!(refused[0].starts_with(place), "{refused:?}");
        assert!(refused[0].contains(about), "{refused:?}");
    }
    for to in [
        import,
        "refusals := data.skills.custom.deny",
        "refusals := data.skills.custom[\"deny\"]",
        "said := `data.skills.custom`",
        "import data.skills.customs as refusals",
        "import data.skills.custom.deny as refusals # data.skills.custom",
    ] {
        assert_eq!(asked(decision, import, to), Ok(Vec::new()), "{to}");
    }
    // Tests are tried by the interpreter alone: they fail where they should hold, or the other way round.
    let test = "import data.skills.authz.decision";
    let warned = asked("tests/decision_test.rego", test, "import data.skills.authz").unwrap();
    let place = "policies/tests/decision_test.rego:3: data.skills.authz is asked";
    assert!(warned.iter().any(|it| it.starts_with(place)), "{warned:?}");
    // All that one file has is evaluated as it should be.
    let mut files = bundled_files();
    let decision = files.contents["skills/authz/decision.rego"].clone();
    let decision = String::from_utf8(decision).unwrap();
    let decision = decision.replace("skills.custom.deny as", "skills.custom as");
    files
        .contents
        .insert("skills/authz/decision.rego".into(), decision.into());
    assert_eq!(asks_whole(&files), Ok(Vec::new()));
}

/// To Rego it is another package, which other rules might ask.
#[test]
fn rules_to_deny_that_nobody_asks() {
    let warned = |more: &[(&str, &str)]| {
        let mut files = bundled_files();
        let with = |(path, text): &(&str, &str)| ((*path).into(), text.as_bytes().to_vec());
        files.contents.extend(more.iter().map(with));
        trial::run(&bundle(&files), BUDGET).unwrap().warnings
    };
    let rule = "deny contains {\"code\": \"custom.weekend\", \"message\": \"no weekend\"} if false";
    let in_package =
        |package: &str| format!("# of the weekend\npackage {package} # mine\n\n{rule}\n");
    let file = "skills/custom/weekend.rego";
    let below = in_package("skills.custom.weekend");
    assert_eq!(
        warned(&[(file, &below)]),
        [
            "policies/skills/custom/weekend.rego:4: nothing asks package skills.custom.weekend, so its rules to deny refuse nothing: write `package skills.custom`, which is asked"
        ]
    );
    assert!(warned(&[(file, &in_package("skills.custom"))]).is_empty());
    // Somebody asks it, by its name or all of them.
    for asks in [
        "deny contains r if some r in data.skills.custom.weekend.deny",
        "deny contains r if { some p in [\"weekend\"]; some r in data.skills.custom[p].deny }",
    ] {
        let asks = format!("package skills.custom\n\n{asks}\n");
        let mut files = bundled_files();
        for (path, text) in [(file, &below), ("skills/custom/more.rego", &asks)] {
            files.contents.insert(path.into(), text.as_bytes().to_vec());
        }
        let bundle = bundle(&files);
        let (sheets, _) = words::sheets(&bundle).unwrap();
        assert_eq!(silent::rules(&bundle, &sheets), [""; 0]);
    }
}

/// A list under a name that no rule reads guards nothing.
#[test]
fn keys_of_the_data_that_no_rule_reads() {
    let file = "skills/config/data.json";
    let warned = |change: &dyn Fn(&mut serde_json::Value), rule: &str| {
        let mut files = bundled_files();
        let mut data = serde_json::from_slice(&files.contents[file]).unwrap();
        change(&mut data);
        files
            .contents
            .insert(file.into(), data.to_string().into_bytes());
        let rule = format!("package skills.custom\n\n{rule}\n").into_bytes();
        files
            .contents
            .insert("skills/custom/more.rego".into(), rule);
        trial::run(&bundle(&files), BUDGET).unwrap().warnings
    };
    let slips = |data: &mut serde_json::Value| {
        data["freeze"] = json!([]);
        data["mine"] = json!({});
        data["network"]["deny_cidr"] = json!(["203.0.113.0/24"]);
        data["network"]["allow"]["api.example.com"] = json!({ "skill": ["acme"] });
        data["tenants"]["acme"]["limit"] = json!({});
        // Known elsewhere, and said of the caller: neither narrows anything here.
        data["network"]["allow"]["own.example.com"] =
            json!({ "exact": true, "groups": ["g"], "tenants": ["acme"] });
        data["roles"]["admin"]["source_cidrs"] = json!(["192.0.2.0/24"]);
    };
    let all =
        "roles, groups, tenants, network, secrets, approved_digests, sandbox, limits, freezes, log";
    let place = format!("policies/{file}: ");
    let none = ": no rule reads it, so it has no effect; ";
    let host = "known here: exact, subdomains, schemes, ports, roles, skills";
    let expected = [
        format!("{place}freeze{none}did you mean freezes?"),
        format!("{place}mine{none}known here: {all}"),
        format!(
            "{place}roles.admin.source_cidrs{none}known here: actions, namespaces, attenuate, any_namespace"
        ),
        format!("{place}tenants.acme.limit{none}did you mean limits?"),
        format!("{place}network.deny_cidr{none}did you mean deny_cidrs?"),
        format!("{place}network.allow.api.example.com.skill{none}did you mean skills?"),
        format!("{place}network.allow.own.example.com.groups{none}{host}"),
        format!("{place}network.allow.own.example.com.tenants{none}{host}"),
    ];
    assert_eq!(warned(&slips, "# mine"), expected);
    // Somebody reads it.
    let mine = |data: &mut serde_json::Value| data["mine"] = json!({});
    let reads = "deny contains r if some r in data.skills.config.mine";
    assert!(warned(&mine, reads).is_empty());
    let tenants = |data: &mut serde_json::Value| {
        data["network"]["allow"]["own.example.com"] = json!({ "exact": true, "tenants": ["acme"] });
    };
    assert_eq!(warned(&tenants, "# mine").len(), 1);
    let reads = "deny contains h if {\n\tsome h, it in data.skills.config.network.allow\n\tit.tenants == []\n}";
    assert!(warned(&tenants, reads).is_empty());
    // Each tenant has one: the first of them are told.
    let many = |data: &mut serde_json::Value| {
        for n in 0..30 {
            data["tenants"][format!("t{n}")] = json!({ "limit": {} });
        }
    };
    let warnings = warned(&many, "");
    assert_eq!(warnings.len(), 21);
    assert_eq!(warnings[20], "and 10 more like these");
}

/// Tests would hold with it that do not hold in the gateway.
#[test]
fn a_rule_in_a_file_of_tests_that_nobody_serves() {
    let file = "skills/custom/load_test.rego";
    let said = |name: &str, line: usize, package: &str| {
        format!(
            "policies/{file}:{line}: the rule {name} of package {package} is not served, as nothing in a file whose name ends in _test.rego: put it into another file, or give the tests a package of their own (`package {package}_test`)"
        )
    };
    let deny = "deny contains {\"code\": \"custom.load\", \"message\": \"x\"} if input.subject.id == \"user:mallory\"";
    let holds = "test_it if { some r in data.skills.custom.deny with input as {\"subject\": {\"id\": \"user:mallory\"}}; r.code == \"custom.load\" }";
    let both = format!("# of the load\npackage skills.custom # mine\n\n{deny}\n\n{holds}\n");
    assert_eq!(refused(file, &both), said("deny", 4, "skills.custom"));
    for (rule, name) in [
        ("  default limit := 5", "limit"),
        ("deny[\"x\"] := true if true", "deny"),
        ("is_whole(f) if f == 1", "is_whole"),
        ("names.a.b := 1", "names"),
    ] {
        let rules = format!("package skills.custom\nimport rego.v1\n{rule}\n");
        assert_eq!(refused(file, &rules), said(name, 3, "skills.custom"));
    }
    // Asked for, and served by nobody.
    let asks = "package skills.authz\n\nallowance := data.skills.load.allowance # data.skills.none\nany contains x if { some p in [\"own\"]; x := data.skills.sub[p] }\n";
    let tried = |text: &str| {
        let mut files = bundled_files();
        for (path, text) in [("skills/authz/more.rego", asks), (file, text)] {
            files.contents.insert(path.into(), text.as_bytes().to_vec());
        }
        trial::run(&bundle(&files), BUDGET)
    };
    for package in ["skills.load", "skills.sub.own"] {
        let why = tried(&format!("package {package}\n\nallowance := 5\n")).unwrap_err();
        assert_eq!(why, [said("allowance", 3, package)]);
    }
    // By another name, and from further above.
    let named = "package skills.authz\n\nimport data.skills as all\nimport data.skills.deep\n\nfew := all.few.allowance\nsome_of contains x if { some p in [\"own\"]; x := deep[p] }\nlow := data.skills.low[\"of\"].any\nsaid := \"all.loud, deep and data.skills\"\nother := input.all.loud\nwide := wall.loud\nwall := {\"loud\": 1}\n";
    let tried_named = |text: &str| {
        let mut files = bundled_files();
        for (path, text) in [("skills/authz/more.rego", named), (file, text)] {
            files.contents.insert(path.into(), text.as_bytes().to_vec());
        }
        trial::run(&bundle(&files), BUDGET)
    };
    for package in ["skills.few", "skills.deep.own", "skills.low.of.it"] {
        let why = tried_named(&format!("package {package}\n\nallowance := 5\n")).unwrap_err();
        assert_eq!(why, [said("allowance", 3, package)]);
    }
    // That they ask for all is another mistake.
    let why = tried_named("package skills.loud\n\nallowance := 5\n").unwrap_err();
    assert_eq!(why.len(), 1, "{why:?}");
    assert!(
        why[0].contains("data.skills is asked for as a whole"),
        "{why:?}"
    );
    // What is only there for tests, and tests beside what they are about.
    for text in [
        "package skills.loading\n\nallowance := 5\n",
        "package skills.none\n\nallowance := 5\n",
        "package skills.custom_test\n\ndeny := 5\n\ntest_it if deny == 5\n",
        "package skills.custom\n\ntest_it if {\ndeny == set() with input as {}\n}\n\ntodo_test_more if false\n",
    ] {
        tried(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
    }
}

/// One level too high, the list would be for nobody.
#[test]
fn a_sandbox_that_is_no_object() {
    let file = "skills/config/data.json";
    let tried = |sandbox: serde_json::Value| {
        let mut files = bundled_files();
        let mut data: serde_json::Value = serde_json::from_slice(&files.contents[file]).unwrap();
        data["sandbox"] = sandbox;
        files
            .contents
            .insert(file.into(), data.to_string().into_bytes());
        trial::run(&bundle(&files), BUDGET)
    };
    assert!(tried(json!({ "fresh": ["acme"] })).is_ok());
    assert!(tried(json!({})).is_ok());
    for sandbox in [json!(["acme"]), json!("fresh"), json!(true), json!(null)] {
        let why = tried(sandbox).unwrap_err();
        let said = format!(
            "policies/{file}: sandbox is no object, so its list \"fresh\" cannot be found: write "
        );
        assert!(why.len() == 1 && why[0].starts_with(&said), "{why:?}");
    }
}

#[test]
fn functions_that_are_not_allowed() {
    for (condition, function) in [
        (
            "http.send({\"method\": \"get\", \"url\": \"http://x\"}).status_code == 200",
            "http.send",
        ),
        ("opa.runtime().env.HOME", "opa.runtime"),
        ("walk(input, x)", "walk"),
        ("time.now_ns() > 1", "time.now_ns"),
        ("rand.intn(\"a\", 5) == 1", "rand.intn"),
        ("uuid.rfc4122(\"a\") == \"b\"", "uuid.rfc4122"),
        ("count(numbers.range(1, 20000000)) > 1", "numbers.range"),
        (
            "count(net.cidr_expand(\"2001:db8::/104\")) > 1",
            "net.cidr_expand",
        ),
        ("bits.lsh(1, 4000000000) > 1", "bits.lsh"),
        ("product([2, 3]) > 100", "product"),
        ("io.jwt.decode(\"x\")[0].alg", "io.jwt.decode"),
        ("no.such(1)", "no.such"),
    ] {
        let why = deny_if(condition);
        assert!(why.contains(function), "{condition}: {why}");
        assert!(
            why.contains("more.rego:3"),
            "the place of {condition}: {why}"
        );
    }
    for format in ["%1000000000d", "%0999d", "%*d", "%.500f"] {
        let why = deny_if(&format!("sprintf(\"{format}\", [1]) == \"x\""));
        assert!(
            why.contains("more.rego:3") && why.contains("width"),
            "{why}"
        );
    }
}

#[test]
fn rules_that_are_too_weak_or_no_rules() {
    let rbac =
        String::from_utf8(bundled_files().contents["skills/authz/rbac.rego"].clone()).unwrap();
    for (weakened, why) in [
        ("allow if true", "must be denied"),
        ("allow if input.request.method", "must be denied"),
        (
            "allow if input.subject.authenticated == false",
            "must be denied",
        ),
        ("allow if input.subject.authenticated", "must be denied"),
    ] {
        let got = refused(
            "skills/authz/more.rego",
            &format!("package skills.authz\n\n{weakened}\n"),
        );
        assert!(got.contains(why), "{weakened}: {got}");
    }
    // A guard that has lost its condition: only its own tests know.
    let weak = rbac.replace(
        "b.tenant == input.subject.tenant\n\t}\n}\n\ndefault names_ok",
        "true\n\t}\n}\n\ndefault names_ok",
    );
    assert_ne!(weak, rbac);
    let got = refused("skills/authz/rbac.rego", &weak);
    assert!(
        got.contains("decision_test.rego:") && got.contains("test_blob_of_other_tenant failed"),
        "{got}"
    );
    for (rules, why) in [
        ("deny contains {\"code\": \"x\"} if {", "more.rego"),
        ("deny contains {\"code\": x} if true", "more.rego"),
        (
            "deny contains {\"code\": \"x\"} if { print(input) }",
            "print",
        ),
        (
            "deny contains {\"code\": \"x\"} if { data.skills.authz.allow with input as {} }",
            "with",
        ),
        (
            "import data.no.such.thing\ndeny contains {\"code\": thing} if true\nx := $\"{1}\"",
            "more.rego",
        ),
    ] {
        let got = custom(rules);
        assert!(got.contains(why), "{rules}: {got}");
    }
    let got = refused("other/a.rego", "package other\n\nx := 1\n");
    assert!(got.contains("outside the roots"), "{got}");
    let got = refused("other/data.json", "{\"x\": 1}");
    assert!(got.contains("outside the roots"), "{got}");
    let got = refused("skills/custom/deny/data.json", "{\"x\": 1}");
    assert!(got.contains("conflict") || got.contains("deny"), "{got}");
    let got = refused("skills/config/data.json", "{\"roles\": {}, \"roles\": {}}");
    assert!(got.contains("twice"), "{got}");
    let got = refused(
        "skills/config/data.json",
        "{\"roles\": {}, \"accounts\": [123456789012345678901]}",
    );
    assert!(got.contains("the integer 123456789012345678901,"), "{got}");
    let got = refused(".manifest", "{\"rego_version\": 0}");
    assert!(got.contains("only Rego v1"), "{got}");
    let got = refused("skills/config/data.yaml", "roles: {}");
    assert!(got.contains("data.json"), "{got}");
}

#[test]
fn a_deep_literal_never_reaches_the_parser() {
    let began = Instant::now();
    for (open, close, depth) in [
        ("[", "]", 24),
        ("{\"a\": ", "}", 24),
        ("[", "]", 100_000),
        ("(", ")", 5_000),
    ] {
        let text = format!("x := {}1{}", open.repeat(depth), close.repeat(depth));
        let why = custom(&text);
        assert!(
            why.contains("more.rego:3") && why.contains("nested deeper"),
            "{why}"
        );
    }
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    // Neither a text nor a comment is nested.
    let files = one(
        "x := \"[[[[[[[[[[[[[[[[[[[[[\" # [[[[[[[[[[[[[[[[[[[[[[[[\ny := `{{{{{{{{{{{{{{{{{{{{{`\ndecision := {\"allow\": false} if { x; y }",
    );
    trial::run(&bundle(&files), BUDGET).unwrap();
}

#[tokio::test]
async fn a_rule_that_is_slow_on_hostile_input_is_bounded() {
    let rules = "deny contains {\"code\": \"custom.pairs\", \"message\": \"x\"} if {\n\tsome a in input.request.arg_keys\n\tsome b in input.request.arg_keys\n\tsome c in input.request.arg_keys\n\tconcat(a, [b, c]) == \"no\"\n}\n";
    let mut files = bundled_files();
    files.contents.insert(
        "skills/custom/more.rego".into(),
        format!("package skills.custom\n\n{rules}").into_bytes(),
    );
    trial::run(&bundle(&files), BUDGET).unwrap();
    let policy = policy(&files, PolicyMode::Enforce, Confirm::Off);
    let keys: Vec<String> = (0..2000).map(|n| format!("k{n}")).collect();
    let ask = facts("execute_skill", vec![salesforce()]).with("arg_keys", keys);
    let began = Instant::now();
    let denied = policy.decide(&ask).await.unwrap_err();
    assert_eq!(codes(&denied), ["policy.limit"]);
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
    assert!(
        policy
            .decide(&facts("execute_skill", vec![salesforce()]))
            .await
            .is_ok()
    );
}

#[test]
fn errors_of_functions_do_not_open_a_guard() {
    // The virtual machine swallows the error, so the rule that should deny does not fire: the second engine says so.
    let rules = "deny if net.cidr_contains(\"127.0.0.0/8\", input.source.ip)\ndecision := {\"allow\": true} if not deny";
    let set = PolicySet::compile(&bundle(&one(rules))).unwrap();
    let input = || regorus::Value::from(json!({ "source": { "ip": "zzz" } }));
    assert!(
        set.decide(input(), BUDGET).is_ok(),
        "if this fails the engine has become stricter: good"
    );
    assert!(set.interpret(input()).is_err());
    // A guard that must hold fails closed on both.
    let set = PolicySet::compile(&bundle(&one(
        "decision := {\"allow\": true} if net.cidr_contains(\"127.0.0.0/8\", input.source.ip)",
    )))
    .unwrap();
    assert!(set.decide(input(), BUDGET).is_err() && set.interpret(input()).is_err());
}

/// What a link leads to would be left out without a word: rules that deny, and their tests with them.
#[test]
fn a_link_to_a_directory_is_no_part_of_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let (bundle, elsewhere) = (dir.path().join("bundle"), dir.path().join("elsewhere"));
    for path in [&bundle, &elsewhere] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("a.rego"), "package skills.authz\n").unwrap();
    }
    // As a Kubernetes volume has it.
    std::os::unix::fs::symlink(&elsewhere, bundle.join("..data")).unwrap();
    assert!(Files::read(&bundle).is_ok());
    std::os::unix::fs::symlink(&elsewhere, bundle.join("custom")).unwrap();
    let why = Files::read(&bundle).unwrap_err().to_string();
    assert!(why.contains("bundle/custom"), "{why}");
    assert!(why.contains("is a link to a directory"), "{why}");
}

/// Who can write a file of the bundle must not make any file of this machine a part of it.
#[test]
fn a_link_to_a_file_is_followed_within_the_bundle_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (bundle, elsewhere) = (dir.path().join("bundle"), dir.path().join("elsewhere"));
    for path in [bundle.join("..data"), elsewhere.clone()] {
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("a.rego"), "package skills.authz\n").unwrap();
    }
    // As a Kubernetes volume has it.
    let link = bundle.join("a.rego");
    std::os::unix::fs::symlink("..data/a.rego", &link).unwrap();
    let files = Files::read(&bundle).unwrap();
    let is_read = files.contents.iter().map(|(path, text)| (&**path, &**text));
    let expected = ("a.rego", &b"package skills.authz\n"[..]);
    assert_eq!(is_read.collect::<Vec<_>>(), [expected]);
    for target in ["../elsewhere/a.rego".into(), elsewhere.join("a.rego")] {
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let why = Files::read(&bundle).unwrap_err().to_string();
        assert!(why.contains("bundle/a.rego"), "{why}");
        assert!(why.contains("is a link out of the bundle"), "{why}");
    }
}
