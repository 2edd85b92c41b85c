use super::*;

fn code(sizes: &[usize]) -> Code {
    let file = |(i, size): (usize, &usize)| {
        let half = BASE64.encode(vec![b'x'; size / 2]);
        (format!("/skills/a/code/{i}.py"), half.clone(), half)
    };
    let files: Vec<_> = sizes.iter().enumerate().map(file).collect();
    Code::parse(&serde_json::to_vec(&files).unwrap(), "/skills/a").unwrap()
}

fn place(codes: &Codes, tenant: &str, ino: u64) -> SkillPlace {
    let mount = MountSpec {
        target: "/skills/a".into(),
        path: "/store/a".into(),
        dev: 1,
        ino,
    };
    codes.place(tenant, &mount, "code/main.py")
}

fn is_made(look: &Look) -> bool {
    matches!(look, Look::Code(code) if !code.files.is_empty())
}

#[test]
fn made_by_one_when_asked_for_again_and_again_when_it_is_old() {
    let (codes, now) = (Codes::new(1 << 20, false), Instant::now());
    let a = place(&codes, "t", 1);
    assert!(matches!(codes.look(&a, true, now), Look::Nothing), "once");
    assert!(matches!(codes.look(&a, false, now), Look::Nothing));
    assert!(matches!(codes.look(&a, true, now), Look::Make));
    assert!(
        matches!(codes.look(&a, true, now), Look::Nothing),
        "made by another"
    );
    codes.keep(&a, Some(code(&[10, 20])), now);
    assert!(is_made(&codes.look(&a, true, now)));
    assert_eq!(codes.size(), (1, 30 + 2 * "/skills/a/code/0.py".len()));
    let old = now + AGE_MAX;
    assert!(is_made(&codes.look(&a, false, old)), "better than nothing");
    assert!(matches!(codes.look(&a, true, old), Look::Make));
    codes.keep(&a, None, old);
    assert!(
        matches!(codes.look(&a, true, old), Look::Make),
        "no fault of the skill's"
    );
    codes.keep(&a, Some(Code::default()), old);
    assert!(
        matches!(codes.look(&a, true, old), Look::Code(_)),
        "never again"
    );
    // Whoever was to make it has not come back.
    let b = place(&codes, "t", 2);
    codes.look(&b, true, now);
    assert!(matches!(codes.look(&b, true, now), Look::Make));
    assert!(matches!(codes.look(&b, true, old), Look::Make));
}

#[test]
fn what_is_unused_for_longest_makes_room() {
    let (codes, now) = (Codes::new(1000, false), Instant::now());
    let make = |ino| {
        let place = place(&codes, "t", ino);
        codes.look(&place, true, now);
        assert!(matches!(codes.look(&place, true, now), Look::Make));
        codes.keep(&place, Some(code(&[400])), now);
    };
    let has = |ino| is_made(&codes.look(&place(&codes, "t", ino), false, now));
    make(1);
    make(2);
    assert!(has(1));
    make(3);
    assert!(!has(2) && has(1) && has(3));
    assert!(codes.size().1 <= 1000);
    for ino in 10..10 + SKILLS_MAX as u64 {
        codes.look(&place(&codes, "t", ino), true, now);
    }
    assert_eq!(codes.state().skills.len(), SKILLS_MAX);
    assert!(!has(1));
    assert_eq!(codes.size(), (0, 0));
}

#[test]
fn nothing_is_made_with_no_room_and_nothing_shared_between_domains() {
    let now = Instant::now();
    let off = Codes::new(0, false);
    for _ in 0..3 {
        assert!(matches!(
            off.look(&place(&off, "t", 1), true, now),
            Look::Nothing
        ));
    }
    for (per_tenant, same) in [(true, false), (false, true)] {
        let codes = Codes::new(1000, per_tenant);
        assert_eq!(place(&codes, "a", 1) == place(&codes, "b", 1), same);
    }
}

#[test]
fn a_run_gets_what_fits() {
    let codes = [code(&[100, BYTES_MAX]), code(&[BYTES_MAX - 100, 2])].map(Arc::new);
    let (index, bytes) = together(&codes);
    assert_eq!(bytes.len(), BYTES_MAX);
    assert_eq!(
        index,
        [
            ("/skills/a/code/0.py", 50, 50),
            (
                "/skills/a/code/0.py",
                BYTES_MAX / 2 - 50,
                BYTES_MAX / 2 - 50
            )
        ]
    );
}

#[test]
fn what_is_no_code_of_the_skill_is_not_taken() {
    for (path, source) in [
        ("/skills/ab/main.py", "eA=="),
        ("/skills/a", "eA=="),
        ("/usr/lib/x.py", "eA=="),
        ("/skills/a/main.py", "no base64"),
    ] {
        let output = serde_json::json!([[path, source, "eA=="]]).to_string();
        assert!(
            Code::parse(output.as_bytes(), "/skills/a").is_none(),
            "{path}"
        );
    }
    assert!(Code::parse(b"null", "/skills/a").is_none());
}
