//! Keys in variables of the environment.

use super::*;

#[test]
fn any_key_can_be_set_by_the_environment() {
    let config = load_env(&[
        ("SKILLGATE_RUNS__MAX_PIDS", "32"),
        ("SKILLGATE_RUNS__ON_DISCONNECT", "finish"),
        ("SKILLGATE_SKILLS__PATHS", "[\"a\", \"b\"]"),
        ("SKILLGATE_SKILLS__MAX_FILES", "0x10"),
        ("SKILLGATE_POLICY__PATH", "2024"),
        ("SKILLGATE_ADMIN__LISTEN", "\"127.0.0.1:1\""),
        ("SKILLGATE_PLUGINS__STORAGE__CONFIG__ROOT", "/srv/store"),
        ("SKILLGATE_PLUGINS__STORAGE__CONFIG__DEPTH", "3"),
        (
            "SKILLGATE_PLUGINS__SANDBOX__CONFIG",
            "{ fresh = true, python = { path = '/usr/bin/python3' } }",
        ),
        ("SKILLGATE_RATE_LIMIT", "[]"),
        ("SKILLGATE_SECRET_API_KEY", "never looked at"),
    ])
    .unwrap();
    assert_eq!(
        (config.runs.max_pids, config.runs.on_disconnect),
        (32, OnDisconnect::Finish)
    );
    assert_eq!(
        config.skills.paths,
        [PathBuf::from("a"), PathBuf::from("b")]
    );
    assert_eq!(config.skills.max_files, 16);
    assert_eq!(
        config.policy.path,
        Path::new("2024"),
        "text stays text where text is asked for"
    );
    assert_eq!(config.admin.listen.port(), 1);
    assert_eq!(
        config.plugins.storage.config,
        serde_json::json!({"root": "/srv/store", "depth": 3})
    );
    let sandbox = serde_json::json!({"fresh": true, "python": {"path": "/usr/bin/python3"}});
    assert_eq!(config.plugins.sandbox.config, sandbox);
    let shown = config.show(true);
    assert!(
        shown.contains("max_pids = 32  # environment variable SKILLGATE_RUNS__MAX_PIDS\n"),
        "{shown}"
    );
    assert!(
        shown.contains("path = \"2024\"  # environment variable"),
        "{shown}"
    );
    assert!(!shown.contains("never looked at"));
}

#[test]
fn what_is_wrong_in_the_environment_is_named() {
    let no_setting = "no setting has this name, expected SKILLGATE_<SECTION>__<KEY>, like SKILLGATE_SERVER__LISTEN";
    for (name, value, expected) in [
        (
            "SERVER__LISEN",
            "x",
            "server.lisen: unknown key; did you mean `listen` (SKILLGATE_SERVER__LISTEN)?",
        ),
        (
            "SERVR__LISTEN",
            "x",
            "servr: unknown key; did you mean `server` (SKILLGATE_SERVER__...)?",
        ),
        ("SERVER", "x", no_setting),
        ("", "x", no_setting),
        (
            "RUNS__MAX_PIDS",
            "many",
            "runs.max_pids: \"many\" does not fit here, expected an integer from 1 to 32768",
        ),
        (
            "RUNS__MAX_PIDS",
            "0",
            "runs.max_pids: 0 does not fit here, expected 1 to 32768",
        ),
        (
            "RUNS__MAX_PIDS",
            "",
            "runs.max_pids: \"\" does not fit here, expected an integer from 1 to 32768",
        ),
        (
            "RUNS__MAX_PIDS__X",
            "1",
            "runs.max_pids: a table does not fit here, expected an integer from 1 to 32768",
        ),
        (
            "SKILLS__PATHS",
            "a",
            "skills.paths: \"a\" does not fit here, expected a list of strings: [\"a\"]",
        ),
        (
            "PLUGINS__STORAGE__CONFIG",
            "x",
            "plugins.storage.config: a string does not fit here, expected a table",
        ),
    ] {
        let name = format!("SKILLGATE_{name}");
        assert_eq!(
            answer(load_env(&[(&name, value)])),
            format!("environment variable {name}: {expected}")
        );
    }
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;
    let mut sources = world(&[], &[], &[]);
    sources.env.insert(
        "SKILLGATE_SERVER__LISTEN".into(),
        OsString::from_vec(vec![0xff]),
    );
    let answer = answer(Config::load(&sources, &Flags::default()));
    assert_eq!(
        answer,
        "environment variable SKILLGATE_SERVER__LISTEN: not valid UTF-8"
    );
}

/// What Kubernetes tells of a service whose variables begin so.
fn of_service(name: &str) -> Vec<(String, &'static str)> {
    let variables = [
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "8080"),
        ("SERVICE_PORT_HTTP", "8080"),
        ("PORT", "tcp://10.0.0.1:8080"),
        ("PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("PORT_8080_TCP_ADDR", "10.0.0.1"),
    ];
    variables
        .map(|(end, value)| (format!("{name}_{end}"), value))
        .into()
}

fn load_service(variables: &[(String, &str)]) -> String {
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    answer(load_env(&variables))
}

/// Of the gateway's own service, and of those beside it. One alone is somebody's `SKILLGATE_PORT=9000`: the gateway would listen
/// elsewhere and say nothing.
#[test]
fn the_variables_of_a_kubernetes_service_are_not_settings() {
    for service in ["SKILLGATE", "SKILLGATE_ADMIN", "SKILLGATE_RATE_LIMIT"] {
        let all = of_service(service);
        assert_eq!(load_service(&all), "accepted");
        for (name, _) in &all {
            let alone = [(name.clone(), "1")];
            let refused = load_service(&alone);
            assert!(
                refused.contains(&format!("{name}: no setting has this name")),
                "{name}: {refused}"
            );
        }
    }
    for other in [
        "SKILLGATE_PORTS",
        "SKILLGATE_PORT__X",
        "SKILLGATE_LISTEN",
        "SKILLGATE_ADMIN_PORTS",
        "SKILLGATE_ADMIN_LISTEN",
    ] {
        let services = [of_service("SKILLGATE"), of_service("SKILLGATE_ADMIN")].concat();
        let with = [services, vec![(other.into(), "1")]].concat();
        assert_ne!(load_service(&with), "accepted", "{other}");
    }
}

/// A secret that an operator names so, where there is no such service, is one.
#[test]
fn nor_are_they_secrets() {
    let secrets = |variables: &[(String, &str)]| {
        let variables = variables.iter();
        let sources = Sources::with(variables.map(|(name, value)| (name.into(), value.into())));
        let names = sources.secrets.iter().map(|(name, _)| name.to_owned());
        names.collect::<Vec<_>>()
    };
    let of_store = of_service("SKILLGATE_SECRET_STORE");
    let mut all = of_store.clone();
    all.push(("SKILLGATE_SECRET_STORE_PORT_KEY".into(), "of its own"));
    all.push(("SKILLGATE_SECRET_PORT".into(), "another"));
    assert_eq!(secrets(&all), ["PORT", "STORE_PORT_KEY"]);
    for variable in of_store {
        let name = variable.0.replace("SKILLGATE_SECRET_", "");
        assert_eq!(secrets(&[variable]), [name]);
    }
}
