//! Nothing panics, and what is accepted keeps its promises, on input mutated at random. The seed is
//! fixed: a failure repeats.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use skillgate_skill::{
    FunctionName, Manifest, NetworkPattern, SecretName, SkillMd, SkillName, SkillPath, SkillRef,
    Version, files,
    problem::PROBLEMS_MAX,
    python::{broken, seems_to_define},
    validate,
};

const TOML: &str = "name = \"salesforce.leads.sync\"\nversion = \"0.1.0-rc.1+x\"\ndescription = \"Sync é leads.\"\nkind = \"action\"\ntags = [\"crm\", 'leads', \"\"\"x\"\"\"]\n\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n[inputs]\nenv = { type = \"string\", enum = [\"dev\"], default = 0x1F, at = 2024-01-01T00:00:00Z, f = 1.5e3 }\n[inputs.x.y]\nz = [1, [2, { a = nan }]]\n[permissions]\nnetwork = [\"https://*.salesforce.com:8443/\"]\nsecrets = [\"SALESFORCE_API_KEY\"]\n[[more]]\na = true\n";
const MD: &str = "---\nname: Salesforce Lead Sync\ntags: [crm, {a: 1}]\nlong: |\n  two\n  lines\n? odd\n: 'it''s'\nx: &a !!str 1\ny: *a\n<<: {z: 1e3}\n---\n# Body é\n---\n";
const CODE: &str = "from a import (\n  main,\n)\nif x:\n    def main(args):\n        pass\nasync def main2(args): ...\nx = f\"{d['a']:>{w}}\" + '''\\\n''' + r'\\\\'\n";
const SMALL: &[&str] = &[
    "salesforce.leads.sync@1.0.0-rc.1+x",
    "code/main.py",
    "../../etc/passwd",
    "https://*.example.com:8443/",
    "SALESFORCE_API_KEY",
    "C:\\x",
    "1.0.0-alpha.1+b",
    "a/./b//c",
    "e\u{301}/é",
    "~root",
    "process_payment",
    "http://[::1]:80",
];
const PIECES: &[&str] = &[
    "\"",
    "'",
    "\"\"\"",
    "\\",
    "\\u202e",
    "\n",
    "\r\n",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "e\u{301}",
    "[",
    "]",
    "{",
    "}",
    "[[",
    ".",
    "..",
    "/",
    "://",
    "*",
    "*.",
    "=",
    ":",
    ": ",
    "- ",
    "---\n",
    "&a ",
    "*a",
    "<<: ",
    "!!binary ",
    "!x ",
    "#",
    ",",
    "@",
    "-",
    "_",
    "0",
    "999999999999999999999",
    "1e999",
    "nan",
    ".inf",
    "null",
    "true",
    "\t",
    " ",
    "~",
    "%2e",
    "😀",
    "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a",
    "[[[[[[[[[[[[[[[[[[[[",
    "x=",
    "2024-01-01",
    "name",
    "kind",
];

/// One to eight cuts, copies and insertions, always at character boundaries.
fn mutate(rng: &mut SmallRng, seed: &str) -> String {
    let mut text: Vec<char> = seed.chars().collect();
    for _ in 0..rng.random_range(1..=8) {
        let at = rng.random_range(0..=text.len());
        let end = (at + rng.random_range(0..20)).min(text.len());
        match rng.random_range(0..5) {
            0 => drop(text.drain(at..end)),
            1 => {
                let copy: Vec<char> = text[at..end].to_vec();
                let to = rng.random_range(0..=text.len());
                text.splice(to..to, copy);
            }
            2 if at < text.len() => {
                text[at] = char::from_u32(rng.random_range(0..0x3000)).unwrap_or('x')
            }
            _ => {
                let piece = PIECES[rng.random_range(0..PIECES.len())];
                text.splice(at..at, piece.chars());
            }
        }
    }
    text.into_iter().collect()
}

fn check_toml(text: &str) {
    match Manifest::from_toml(text) {
        Ok(m) => {
            // What is accepted is JSON, is TOML, and says the same in both.
            let json = Manifest::from_json(&m.to_json().to_string())
                .unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(json.to_json(), m.to_json(), "{text}");
            let toml = Manifest::from_toml(&m.to_toml())
                .unwrap_or_else(|e| panic!("{e}\n{}", m.to_toml()));
            assert_eq!(toml.to_json(), m.to_json(), "{text}");
        }
        Err(e) => check_problems(e.problems()),
    }
}

fn check_problems(problems: &[skillgate_skill::Problem]) {
    assert!(!problems.is_empty() && problems.len() <= PROBLEMS_MAX + 2);
    assert!(problems.iter().any(|p| p.is_error()));
    for p in problems {
        let text = p.to_string();
        assert!(
            !text.contains('\n')
                && !text.contains('\u{202e}')
                && !text.contains('\0')
                && text.len() < 2500,
            "{text:?}"
        );
    }
}

fn check_small(text: &str) {
    if let Ok(path) = SkillPath::parse(text) {
        assert!(
            path.components().all(|c| !matches!(c, "" | "." | ".."))
                && !text.starts_with('/')
                && !text.contains(['\\', '\0'])
        );
        // Joining it never leaves the directory.
        assert!(
            std::path::Path::new(text)
                .components()
                .all(|c| matches!(c, std::path::Component::Normal(_)))
        );
        assert!(
            files::check([(&path, 1)], 1).is_ok()
                || text.starts_with('.')
                || text.to_lowercase().contains(".git")
                || text.to_lowercase().starts_with("skill.")
        );
    }
    if let Ok(pattern) = NetworkPattern::parse(text) {
        assert_eq!(
            NetworkPattern::parse(&pattern.to_string()).as_ref(),
            Ok(&pattern)
        );
        assert!(
            pattern.matches(pattern.scheme(), pattern.host(), pattern.port()) != pattern.wildcard()
        );
        assert!(pattern.suffixes().count() <= 127);
    }
    if let Ok(r) = SkillRef::parse(text) {
        assert_eq!(r.to_string(), text);
    }
    if let (Ok(name), Ok(again)) = (SkillName::parse(text), text.parse::<SkillName>()) {
        assert_eq!(name, again);
        assert!(
            SkillPath::parse(name.as_str()).is_ok(),
            "a name is a safe path component"
        );
    }
    if let Ok(version) = Version::parse(text) {
        assert_eq!(version.to_string(), text);
        assert!(
            SkillPath::parse(text).is_ok(),
            "a version is a safe path component"
        );
    }
    for error in [
        SkillPath::parse(text).err().map(|e| e.to_string()),
        SkillName::parse(text).err().map(|e| e.to_string()),
        NetworkPattern::parse(text).err().map(|e| e.to_string()),
        SecretName::parse(text).err().map(|e| e.to_string()),
        FunctionName::parse(text).err().map(|e| e.to_string()),
        Version::parse(text).err().map(|e| e.to_string()),
    ]
    .into_iter()
    .flatten()
    {
        assert!(
            !error.contains(['\n', '\0', '\u{202e}']) && error.len() < 1000,
            "{error:?}"
        );
    }
}

#[test]
fn mutated_input() {
    const ROUNDS: u32 = 200;
    let started = Instant::now();
    let mut rng = SmallRng::seed_from_u64(0x5eed);
    let main = FunctionName::parse("main").unwrap();
    for round in 0..ROUNDS {
        // Bounded in time as well, for slow machines; the rounds done are the same ones.
        if started.elapsed() > Duration::from_secs(2) && round > ROUNDS / 10 {
            break;
        }
        let toml = mutate(&mut rng, TOML);
        check_toml(&toml);
        check_toml(&mutate(
            &mut rng,
            "name='a'\nversion='1.0.0'\ndescription='x'\nkind='instruction'\nx=[1,{y='z'}]\n",
        ));
        let _ = Manifest::from_json(&mutate(
            &mut rng,
            r#"{"name":"a","version":"1.0.0","description":"x","kind":"instruction","x":[1,{"y":null}]}"#,
        ));
        let md = mutate(&mut rng, MD);
        match SkillMd::parse(&md) {
            Ok(parsed) => assert!(md.ends_with(parsed.body)),
            Err(e) => check_problems(&[e.into()]),
        }
        let code = mutate(&mut rng, CODE);
        let _ = seems_to_define(&code, &main);
        if let Some(broken) = broken(&code) {
            assert!((1..=code.len() + 1).contains(&broken.line), "{code}");
        }
        for seed in SMALL {
            check_small(&mutate(&mut rng, seed));
        }
        if round % 10 == 0 {
            let path = |text: &str| SkillPath::parse(text).unwrap();
            let files = [
                (path("skill.toml"), toml),
                (path("SKILL.md"), md),
                (path("code/main.py"), code),
            ];
            if let Err(problems) = validate(&files, 1 << 20) {
                check_problems(&problems);
            }
        }
    }
}
