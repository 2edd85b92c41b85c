//! What a bundle has that does nothing is told.

use super::*;
use serde_json::json;

use crate::policy::{shape, silent, trial, words};

/// The bundled files and more.
fn with(more: &[(&str, &str)]) -> Files {
    let mut files = bundled_files();
    let more = more.iter();
    files
        .contents
        .extend(more.map(|(path, text)| ((*path).into(), text.as_bytes().to_vec())));
    files
}

fn warned(more: &[(&str, &str)]) -> Vec<String> {
    let bundle = bundle(&with(more));
    silent::rules(&bundle, &words::sheets(&bundle).unwrap().0)
}

/// The same of one file, whose place is left out.
fn of(text: &str) -> Vec<String> {
    let file = "skills/custom/mine.rego";
    let warnings = warned(&[(file, text)]).into_iter();
    warnings
        .map(|it| match it.strip_prefix(&format!("policies/{file}:")) {
            Some(rest) => rest.to_owned(),
            None => it,
        })
        .collect()
}

fn custom(rules: &str) -> Vec<String> {
    of(&format!("package skills.custom\n\n{rules}\n"))
}

const RULE: &str = "deny contains {\"code\": \"custom.x\", \"message\": \"x\"} if";
const NONE: [&str; 0] = [];

#[test]
fn nothing_of_the_bundled_policy_and_of_its_page() {
    assert_eq!(warned(&[]), NONE);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let examples: Vec<&str> = page
        .split("```rego\n")
        .skip(1)
        .filter_map(|it| it.split("```").next())
        .collect();
    assert!(examples.len() >= 2);
    for example in examples {
        assert_eq!(of(example), NONE, "{example}");
    }
    let bundle = bundle(&bundled_files());
    let (sheets, _) = words::sheets(&bundle).unwrap();
    assert_eq!(shape::values(&bundle, &sheets), NONE);
    assert_eq!(bundle.left_out(), NONE);
}

#[test]
fn rules_to_deny_where_nobody_asks_for_them() {
    for (package, line) in [
        ("package skills.customs", 3),
        ("  package skills.customs", 3),
        ("\tpackage\tskills.customs # mine", 3),
        ("# mine\n\npackage skills.customs", 5),
    ] {
        assert_eq!(
            of(&format!("{package}\n\n{RULE} false\n")),
            [format!(
                "{line}: nothing asks package skills.customs, so its rules to deny refuse nothing: write `package skills.custom`, which is asked"
            )]
        );
    }
    // Others that are the same.
    for head in [
        "deny[\"x\"] := 1 if",
        "deny if",
        "default deny := false\n\ndeny if",
    ] {
        assert_eq!(
            of(&format!("package guards\n\n{head} false\n")).len(),
            1,
            "{head}"
        );
    }
    let asks = "package skills.custom\n\nimport data.guards as mine\n\ndeny contains r if some r in mine.deny\n";
    let unused = "package skills.custom\n\nimport data.guards\nimport data.skills\n\ndeny contains r if some r in skills.lib.deny\n";
    let guards = format!("package guards\n\n{RULE} false\n");
    let asked = [
        ("skills/custom/asks.rego", unused),
        ("guards.rego", &guards),
    ];
    assert_eq!(warned(&asked).len(), 1);
    let whole = "package skills.custom\n\nimport data as all\n\ndeny contains r if { some p in [\"guards\"]; some r in all[p].deny }\n";
    let asked = [("skills/custom/asks.rego", whole), ("guards.rego", &guards)];
    assert_eq!(warned(&asked), NONE);
    let asked = [("skills/custom/asks.rego", asks), ("guards.rego", &guards)];
    assert_eq!(warned(&asked), NONE);
}

#[test]
fn a_rule_to_deny_that_only_explains() {
    let why = "3: `deny` of package skills.authz explains what is refused already and refuses nothing itself: write `package skills.custom`";
    let own = format!("package skills.authz\n\n{RULE} input.subject.id == \"user:x\"\n");
    assert_eq!(of(&own), [why]);
    // Beside a guard of one's own, and where it does refuse.
    let decision =
        String::from_utf8(bundled_files().contents["skills/authz/decision.rego"].clone()).unwrap();
    for (from, to, more) in [
        (
            "\tsandbox_ok\n}",
            "\tsandbox_ok\n\tmine_ok\n}",
            "\ndefault mine_ok := false\n\nmine_ok if input.subject.id == \"user:y\"\n",
        ),
        (
            "\trefusals == set()\n",
            "\trefusals == set()\n\tcount(deny) == 0\n",
            "",
        ),
    ] {
        let changed = decision.replacen(from, to, 1);
        assert_ne!(changed, decision);
        let own = format!("{own}{more}");
        let files = [
            ("skills/authz/decision.rego", &changed[..]),
            ("skills/authz/mine.rego", &own),
        ];
        assert_eq!(warned(&files), NONE);
    }
}

#[test]
fn rules_of_ones_own_that_nothing_reads() {
    for (name, rule) in [
        ("denied", "denied contains \"x\" if false"),
        ("denny", "denny contains {\"code\": \"x\"} if false"),
        (
            "violation",
            "default violation := false\n\nviolation if input.subject.kind == \"user\"",
        ),
    ] {
        assert_eq!(
            custom(rule),
            [format!(
                "3: nothing reads the rule {name}, so it has no effect; refusals are `deny contains {{\"code\": ..., \"message\": ...}} if ...`"
            )]
        );
    }
    // Here, and elsewhere.
    let helper = format!("is_mine if input.subject.id == \"x\"\n\n{RULE} is_mine");
    assert_eq!(custom(&helper), NONE);
    let reads = "package skills.authz\n\nmore := data.skills.custom.veto\n";
    let veto = "package skills.custom\n\nveto contains 1 if false\n";
    let files = [
        ("skills/authz/mine.rego", reads),
        ("skills/custom/veto.rego", veto),
    ];
    assert_eq!(warned(&files), NONE);
}

#[test]
fn what_is_never_in_the_input() {
    for (condition, what, advice) in [
        (
            "input.subject.group == \"g\"",
            "subject.group",
            "did you mean groups?",
        ),
        (
            "input.request.methd == \"run_code\"",
            "request.methd",
            "did you mean method?",
        ),
        (
            "input[\"subjct\"].id == 1",
            "subjct",
            "did you mean subject?",
        ),
        (
            "input.skills[0].nmae == 1",
            "skills.*.nmae",
            "did you mean name?",
        ),
        (
            "input.skills[_].permissions[\"secret\"] == 1",
            "skills.*.permissions.secret",
            "did you mean secrets?",
        ),
        (
            "input.time.hour < 8",
            "time.hour",
            "known here: now_s, weekday",
        ),
        (
            "input.skills.name == 1",
            "skills.name",
            "that is a list: `some x in ...`",
        ),
        (
            "input.subject.id.x == 1",
            "subject.id.x",
            "nothing is below that",
        ),
    ] {
        assert_eq!(
            custom(&format!("{RULE} {{\n\t{condition}\n}}")),
            [format!(
                "4: input.{what} is never there, so what asks for it is undefined; {advice}"
            )]
        );
    }
    let named = format!("import input.subject as who\n\n{RULE} who.group == 1");
    let why = "5: input.subject.group is never there, so what asks for it is undefined; did you mean groups?";
    assert_eq!(custom(&named), [why]);
    for condition in [
        "input.subject.claims.any.thing == 1",
        "input.subject.claims[\"any\"][0].x == 1",
        "input.request.args.of[0].mine == 1",
        "input[\"subject\"][\"id\"] == \"input.subject.group\" # input.subject.group",
        "some i\n\tinput.skills[i].permissions.network[_].port == 8080",
        "input.subject[input.time.weekday] == 1",
        "some x in input.skills\n\t[y] = input.skills\n\tx == y",
        "input.subject.actor.id == \"a\"",
        "data.skills.lib.input.subjct == 1",
    ] {
        assert_eq!(
            custom(&format!("{RULE} {{\n\t{condition}\n}}")),
            NONE,
            "{condition}"
        );
    }
}

#[test]
fn methods_that_there_are_not() {
    let m = "input.request.method";
    for condition in [
        format!("{m} == \"runcode\""),
        format!("\"runcode\" == {m}"),
        format!("not {m} != `runcode`"),
        format!("{m} in {{\"create_skill\", \"runcode\"}}"),
        format!("{m} in [\n\t\"runcode\"]"),
        "input[\"request\"].method == \"runcode\"".to_owned(),
    ] {
        let line = 4 + condition.matches('\n').count();
        assert_eq!(
            custom(&format!("{RULE} {{\n\t{condition}\n}}")),
            [format!(
                "{line}: \"runcode\" is no method, so this is never equal; did you mean \"run_code\"?"
            )],
            "{condition}"
        );
    }
    for condition in [
        format!("{m} == \"rpc.discover\""),
        format!("{m} in {{\"execute_skill\", \"run_code\"}}\n\t\"x\" == input.subject.id"),
        format!("{m} in {{\"x\": \"run_code\"}}"),
        format!("x := {m}\n\tx == input.subject.id"),
        "input.request.mode == \"full\"".to_owned(),
    ] {
        assert_eq!(
            custom(&format!("{RULE} {{\n\t{condition}\n}}")),
            NONE,
            "{condition}"
        );
    }
}

#[test]
fn data_that_is_not_there() {
    let missing = |line: usize, key: &str, advice: &str| {
        format!(
            "{line}: the data has no data.skills.config.{key}, so what asks for it is undefined; {advice}"
        )
    };
    let blocked = format!("{RULE} {{\n\tinput.subject.id in data.skills.config.blocked\n}}");
    assert_eq!(
        custom(&blocked),
        [missing(4, "blocked", "add it to data.json")]
    );
    let named = format!("import data.skills.config as cfg\n\n{RULE} cfg.freezs[0]");
    assert_eq!(
        custom(&named),
        [missing(5, "freezs", "did you mean freezes?")]
    );
    let whole = format!("import data.skills.config.blocked\n\n{RULE} input.subject.id in blocked");
    assert_eq!(
        custom(&whole),
        [missing(5, "blocked", "add it to data.json")]
    );
    for guarded in [
        format!(
            "default mine := []\n\nmine := data.skills.config.mine\n\n{RULE} input.subject.id in mine"
        ),
        format!(
            "mine := data.skills.config.mine\n\nmine := [] if not data.skills.config.mine\n\n{RULE} input.subject.id in mine"
        ),
        format!("{RULE} input.subject.id in object.get(data.skills.config, \"mine\", [])"),
        format!("{RULE} data.skills.config.sandbox.fresh[0] == \"x\""),
        format!("{RULE} data.skills.config[input.subject.id]"),
    ] {
        assert_eq!(custom(&guarded), NONE, "{guarded}");
    }
    let data = ("skills/config/blocked/data.json", "{\"ids\": [\"user:x\"]}");
    let rule = format!("package skills.custom\n\n{blocked}\n");
    assert_eq!(warned(&[data, ("skills/custom/mine.rego", &rule)]), NONE);
}

#[test]
fn files_that_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in &bundled_files().contents {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let left_out = [
        ".x.rego",
        "skills/.manifest",
        "skills/config/blocked.json",
        "skills/custom/x.REGO",
        "skills/custom/x.rego.txt",
    ];
    for path in left_out.into_iter().chain([
        ".git/a.rego",
        ".gitignore",
        "LICENSE",
        "README",
        "README.md",
        "skills/custom/notes.md",
        "tests/.regal/config.json",
    ]) {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "{}").unwrap();
    }
    let told = |place: &str| {
        left_out.map(|path| {
            format!(
                "{place}/{path}: is not read; a bundle has *.rego, data.json and tests/decisions/*.json, whose names do not begin with a dot: rename it, or keep it elsewhere"
            )
        })
    };
    let files = Files::read(dir.path()).unwrap();
    // Where a bundle lies says nothing of it.
    for place in ["policies", "/etc/.gate/policies"] {
        let bundle = Bundle::new(&files, place).unwrap();
        assert_eq!(bundle.left_out(), told(place));
    }
    // Nor is it another one.
    assert_eq!(bundle(&files).digest(), bundle(&bundled_files()).digest());
    // Of an archive all files are there.
    let packed = with(&[("skills/config/blocked.json", "{}"), ("README.md", "x")]);
    assert_eq!(bundle(&packed).left_out(), [told("policies")[2].clone()]);
    let report = trial::run(&bundle(&packed), BUDGET).unwrap();
    assert_eq!(report.warnings, [told("policies")[2].clone()]);
}

#[test]
fn data_that_can_never_work() {
    let file = "skills/config/data.json";
    let changed = |pointer: &str, value: serde_json::Value| {
        // `~1` is a slash in a pointer, and here a part of the name.
        let pointer = pointer.replace("~1", "\u{1}");
        let (above, name) = pointer.rsplit_once('/').unwrap();
        let mut files = bundled_files();
        let mut data: serde_json::Value = serde_json::from_slice(&files.contents[file]).unwrap();
        data.pointer_mut(above).unwrap()[name.replace('\u{1}', "/")] = value;
        files
            .contents
            .insert(file.into(), data.to_string().into_bytes());
        bundle(&files)
    };
    let warned = |pointer: &str, value: serde_json::Value| {
        let bundle = changed(pointer, value);
        shape::values(&bundle, &words::sheets(&bundle).unwrap().0)
    };
    let allow = json!({"exact": true, "subdomains": true, "schemes": ["https"], "ports": [443], "roles": ["*"], "skills": ["*"]});
    let namespace = "is no namespace: write \"finance\", which covers all below it";
    let host = |host: &str| format!("is no host as skills' hosts are compared: write {host:?}");
    for (pointer, value, why) in [
        ("/sandbox/fresh", json!(["a", "finance.*"]), format!("sandbox.fresh[1]: \"finance.*\" {namespace}")),
        ("/roles/viewer/namespaces", json!(["finance.*"]), format!("roles.viewer.namespaces[0]: \"finance.*\" {namespace}")),
        ("/roles/viewer/namespaces", json!("finance"), "roles.viewer.namespaces: \"finance\" is no list: write [\"finance\"]".into()),
        ("/roles/viewer/attenuate", json!([7]), "roles.viewer.attenuate[0]: 7 is no text".into()),
        ("/roles/viewer/actions", json!(["skill:read"]), "roles.viewer.actions[0]: \"skill:read\" is no action; did you mean \"skills:read\"?".into()),
        ("/roles/viewer/any_namespace", json!("true"), "roles.viewer.any_namespace: \"true\" is neither true nor false".into()),
        ("/groups/strs", json!("analyst"), "groups.strs: \"analyst\" is no list: write [\"analyst\"]".into()),
        ("/tenants/acme/source_cidrs", json!(["10.0.0.0/33"]), "tenants.acme.source_cidrs[0]: \"10.0.0.0/33\" is no network (address/bits)".into()),
        ("/tenants/acme/source_cidrs", json!(["10.0.0.1"]), "tenants.acme.source_cidrs[0]: \"10.0.0.1\" is no network (address/bits)".into()),
        ("/tenants/acme/source_cidrs", json!("10.0.0.0/8"), "tenants.acme.source_cidrs: \"10.0.0.0/8\" is no list: write [\"10.0.0.0/8\"]".into()),
        ("/network/allow/https:~1~1corp.example", allow.clone(), format!("network.allow: \"https://corp.example\" {}", host("corp.example"))),
        ("/network/allow/Corp.Example", allow.clone(), format!("network.allow: \"Corp.Example\" {}", host("corp.example"))),
        ("/network/allow/corp.example.", allow.clone(), format!("network.allow: \"corp.example.\" {}", host("corp.example"))),
        ("/network/allow/*.corp.example", allow.clone(), format!("network.allow: \"*.corp.example\" {}", host("corp.example"))),
        ("/network/allow/10.0.0.1", allow.clone(), "network.allow: \"10.0.0.1\" is no host: it names an IP address; only DNS names are allowed".into()),
        ("/network/allow/salesforce.com/ports", json!(["443"]), "network.allow.salesforce.com.ports[0]: \"443\" is no port (1 to 65535)".into()),
        ("/network/allow/salesforce.com/schemes", json!(["HTTPS"]), "network.allow.salesforce.com.schemes[0]: \"HTTPS\" is no word that is known here; known are https, http".into()),
        ("/network/allow/salesforce.com/exact", json!(1), "network.allow.salesforce.com.exact: 1 is neither true nor false".into()),
        ("/network/deny_cidrs", json!(["10.0.0.0/8", "10"]), "network.deny_cidrs[1]: \"10\" is no network (address/bits)".into()),
        ("/secrets/GDRIVE_TOKEN/hosts", json!(["*.google.com"]), format!("secrets.GDRIVE_TOKEN.hosts[0]: \"*.google.com\" {}", host("google.com"))),
        ("/secrets/GDRIVE_TOKEN/delivery", json!("header"), "secrets.GDRIVE_TOKEN.delivery: \"header\" is no word that is known here; known are env, proxy".into()),
        ("/approved_digests/sha256:aa", json!({}), "approved_digests: \"sha256:aa\" is no digest (sha256:<64 hex digits>)".into()),
        ("/approved_digests", json!(["x"]), "approved_digests: [\"x\"] is no object".into()),
    ] {
        let said = warned(pointer, value);
        assert_eq!(said, [format!("policies/{file}: {why}")]);
    }
    for (pointer, value) in [
        (
            "/sandbox/fresh",
            json!(["finance", "salesforce.leads.sync", "*"]),
        ),
        ("/sandbox/fresh", json!("finance")),
        ("/network/allow/com", allow.clone()),
        ("/network/allow/xn--bcher-kva.example", allow),
        ("/tenants/acme/source_cidrs", json!(["10.1.2.3/8", "::/0"])),
        ("/roles/viewer/actions", json!(["*"])),
    ] {
        assert_eq!(warned(pointer, value), NONE, "{pointer}");
    }
    // Where the bundle's tests fail for that, it is said before them.
    let wrong = changed(
        "/tenants/acme/source_cidrs",
        json!(["10.0.0.0/8", "10.0.0.0/33"]),
    );
    let problems = trial::run(&wrong, BUDGET).unwrap_err();
    let why = "tenants.acme.source_cidrs[1]: \"10.0.0.0/33\" is no network (address/bits)";
    assert_eq!(problems[0], format!("policies/{file}: {why}"));
    assert!(problems[1].contains("_test.rego:"), "{}", problems[1]);
}
