//! Where a configuration comes from: which file counts, and what lies beside the program.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use super::*;

#[test]
fn the_first_file_in_the_order_counts() {
    let text = |port: u16| format!("server.listen = \"127.0.0.1:{port}\"");
    let (named, variable, here, system) = (text(1), text(2), text(3), text(4));
    let files: [(&str, &str); 4] = [
        ("named.toml", &named),
        ("variable.toml", &variable),
        ("./skillgate.toml", &here),
        ("/etc/skillgate/skillgate.toml", &system),
    ];
    let port = |env: &[(&str, &str)], files: &[(&str, &str)], config: Option<&str>| {
        let flags = Flags {
            config: config.map(PathBuf::from),
            ..Flags::default()
        };
        Config::load(&world(env, files, &[]), &flags)
            .unwrap()
            .server
            .listen
            .port()
    };
    let variable = [("SKILLGATE_CONFIG", "variable.toml")];
    assert_eq!(port(&variable, &files, Some("named.toml")), 1);
    assert_eq!(port(&variable, &files, None), 2);
    assert_eq!(port(&[("SKILLGATE_CONFIG", "")], &files, None), 3);
    assert_eq!(port(&[], &files, None), 3);
    assert_eq!(port(&[], &files[3..], None), 4);
    assert_eq!(port(&[], &[], None), 8080);
}

/// What comes to lie before the one that was read would be read instead.
#[test]
fn it_is_known_where_a_file_was_looked_for() {
    let system = ("/etc/skillgate/skillgate.toml", "");
    for (env, files, expected) in [
        (&[][..], &[][..], &["./skillgate.toml", system.0][..]),
        (&[], &[system], &["./skillgate.toml", system.0]),
        (
            &[],
            &[("./skillgate.toml", ""), system],
            &["./skillgate.toml"],
        ),
        (
            &[("SKILLGATE_CONFIG", "x.toml")],
            &[("x.toml", "")],
            &["x.toml"],
        ),
    ] {
        let config = Config::load(&world(env, files, &[]), &Flags::default()).unwrap();
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(config.looked_for, expected);
    }
}

#[test]
fn a_named_file_must_be_there_and_one_that_is_there_must_be_readable() {
    let flags = Flags {
        config: Some("gone.toml".into()),
        ..Flags::default()
    };
    let gone = answer(Config::load(&world(&[], &[], &[]), &flags));
    assert_eq!(
        gone,
        "cannot read the configuration file gone.toml, named by --config: entity not found"
    );
    let gone = answer(load_env(&[("SKILLGATE_CONFIG", "gone.toml")]));
    assert_eq!(
        gone,
        "cannot read the configuration file gone.toml, named by SKILLGATE_CONFIG: entity not found"
    );
    let mut sources = world(&[], &[], &[]);
    sources.read = Box::new(|_| Err(io::ErrorKind::PermissionDenied.into()));
    let refused = answer(Config::load(&sources, &Flags::default()));
    assert_eq!(
        refused,
        "cannot read the configuration file ./skillgate.toml: permission denied"
    );
}

#[test]
fn the_process_reads_a_file_with_a_limit_and_as_utf8() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let sources = Sources::of_process();
    std::fs::write(path("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::write(path("latin"), b"# caf\xe9").unwrap();
    std::fs::write(path("good"), "# caf\u{e9}").unwrap();
    assert_eq!(
        (sources.read)(&path("large")).unwrap_err().to_string(),
        "larger than 1048576 bytes"
    );
    assert_eq!(
        (sources.read)(&path("latin")).unwrap_err().to_string(),
        "not valid UTF-8 at byte 5"
    );
    assert_eq!((sources.read)(&path("good")).unwrap(), "# caf\u{e9}");
    assert!(
        (sources.read)(dir.path()).is_err(),
        "a directory is no file"
    );
    assert!(sources.exe.is_some());
}

/// A gateway that reads its configuration again takes no other rules because a directory has come or gone.
#[test]
fn what_was_found_first_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (goes, comes) = (dir.path().join("goes"), dir.path().join("comes"));
    std::fs::create_dir(&goes).unwrap();
    let sources = Sources::of_process();
    for _ in 0..2 {
        assert!((sources.is_dir)(&goes));
        assert!(!(sources.is_dir)(&comes));
        let _the_first_time = std::fs::remove_dir(&goes);
        let _the_first_time = std::fs::create_dir(&comes);
    }
    assert!(comes.is_dir() && !goes.is_dir());
}

#[test]
fn the_bundled_directories_are_found_beside_the_program() {
    let found = |dirs: &[&str]| world(&[], &[], dirs).bundled_dir("skills");
    let (here, installed, tree) = (
        "skills",
        "/opt/skillgate/bin/../share/skillgate/skills",
        "/opt/skillgate/bin/../../skills",
    );
    assert_eq!(found(&[tree, installed, here]), Some(here.into()));
    assert_eq!(found(&[tree, installed]), Some(installed.into()));
    assert_eq!(found(&[tree]), Some(tree.into()));
    assert_eq!(found(&[]), None);
    assert_eq!(
        Sources {
            exe: None,
            ..world(&[], &[], &[tree])
        }
        .bundled_dir("skills"),
        None
    );

    let paths = |dirs: &[&str], text: &str| {
        let sources = world(&[], &[("./skillgate.toml", text)], dirs);
        Config::load(&sources, &Flags::default())
            .unwrap()
            .skills
            .paths
    };
    assert_eq!(paths(&[installed], ""), [PathBuf::from(installed)]);
    assert_eq!(paths(&[], ""), Vec::<PathBuf>::new(), "none is no error");
    assert_eq!(
        paths(&[installed], "skills.paths = [\"skills\"]"),
        [PathBuf::from("skills")],
        "what is written counts"
    );
}

/// What looks at it twice, as the gateway does, would find nothing the second time: a configuration of defaults.
#[test]
fn what_a_pipe_has_said_is_kept() {
    let (said, mut say) = std::io::pipe().unwrap();
    say.write_all(b"auth.mode = \"off\"\nserver.listen = \"127.0.0.1:4711\"")
        .unwrap();
    drop(say);
    let flags = Flags {
        config: Some(format!("/dev/fd/{}", said.as_raw_fd()).into()),
        ..Flags::default()
    };
    let sources = Sources::of_process();
    for _ in 0..3 {
        let config = Config::load(&sources, &flags).unwrap();
        assert_eq!(config.server.listen.port(), 4711);
    }
}
