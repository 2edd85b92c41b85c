//! What is compiled of a skill for its next runs.

use std::fs;
use std::path::Path;

use skillgate_plugin_sdk::model::{Mount, RunRequest, RunResult, RunSkill, Source};

use crate::support::*;

/// A skill on disk, and how often its runs were given code.
struct Skill {
    dir: tempfile::TempDir,
}

/// Says how many files' code it was given, beside what `helper` says.
const MAIN: &str = "from _skillgate import compiled\nimport helper\ndef main(args):\n    return [len(compiled._known), helper.value]\n";

impl Skill {
    fn new(main: &str, helper: &str) -> Self {
        let skill = Skill {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(skill.dir.path().join("code")).unwrap();
        skill.write("main.py", main);
        skill.write("helper.py", helper);
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(skill.dir.path(), readable).unwrap();
        skill
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join("code").join(name), text).unwrap();
    }

    fn request(&self) -> RunRequest {
        RunRequest {
            code: String::new(),
            skill: "acme.sync".into(),
            skills: vec![RunSkill {
                name: "acme.sync".into(),
                version: "1.0.0".into(),
                entrypoint: "code/main.py".into(),
                function: "main".into(),
            }],
            mounts: vec![mount(self.dir.path())],
            ..request("")
        }
    }

    fn run(&self, instance: &Instance) -> RunResult {
        instance.run(self.request()).0
    }

    fn output(&self, instance: &Instance) -> serde_json::Value {
        let result = self.run(instance);
        assert!(result.completed, "{result:?}");
        serde_json::from_slice(&result.output_json).unwrap()
    }
}

fn mount(dir: &Path) -> Mount {
    Mount {
        target: "/skills/acme.sync".into(),
        sha256: String::new(),
        size_bytes: 0,
        read_only: true,
        source: Source::Path(dir.to_string_lossy().into_owned()),
    }
}

#[test]
fn from_its_second_run_on_and_for_what_the_files_say() {
    for mode in modes() {
        let instance = Instance::with(&mode.config, None);
        let skill = Skill::new(MAIN, "value = 1");
        let (before, ways) = (runs(&instance), mode.name);
        for files in [0, 2, 2] {
            assert_eq!(
                skill.output(&instance),
                serde_json::json!([files, 1]),
                "{ways}"
            );
        }
        assert_eq!(
            runs(&instance) - before,
            3,
            "{ways}: a compilation is no run"
        );
        assert_eq!(metric(&instance, "code_kept_skills"), 1);
        assert!(metric(&instance, "code_kept_bytes") > MAIN.len() as u64);
        // In its place, and even of the same length.
        skill.write("helper.py", "value = 7");
        assert_eq!(skill.output(&instance), serde_json::json!([2, 7]), "{ways}");
        skill.write("helper.py", "value = (");
        assert_eq!(skill.run(&instance).error_type, "SyntaxError", "{ways}");
        skill.write("helper.py", "value = 1");
        assert_eq!(skill.output(&instance), serde_json::json!([2, 1]), "{ways}");
    }
}

fn runs(instance: &Instance) -> u64 {
    ["runs_from_pool", "runs_on_demand", "runs_fresh"]
        .map(|name| metric(instance, name))
        .iter()
        .sum()
}

#[test]
fn none_where_it_has_no_room() {
    let instance = Instance::with(
        &config_with(serde_json::json!({"code_cache_bytes": 0})),
        None,
    );
    let skill = Skill::new(MAIN, "value = 1");
    for _ in 0..3 {
        assert_eq!(skill.output(&instance), serde_json::json!([0, 1]));
    }
    assert_eq!(metric(&instance, "code_kept_skills"), 0);
    // One that is larger than all there is room for makes none.
    let small = serde_json::json!({"code_cache_bytes": 300});
    let instance = Instance::with(&config_with(small), None);
    for _ in 0..3 {
        assert_eq!(skill.output(&instance), serde_json::json!([0, 1]));
    }
    assert_eq!(metric(&instance, "code_kept_bytes"), 0);
}

#[test]
fn nothing_that_a_run_does_is_in_it() {
    let instance = Instance::new();
    let hostile = "
import builtins, marshal, sys
from _skillgate import compiled, loading, main as guest
import helper
def main(args):
    seen = helper.value
    evil = compile('value = 666', '/skills/acme.sync/code/helper.py', 'exec')
    compiled._known.clear()
    compiled.make = compiled.code_of = lambda *a: evil
    loading.compile_source = builtins.compile = lambda *a, **k: evil
    sys.modules['helper'] = sys.modules['skills.acme.sync.helper'] = None
    try:
        open('/skills/acme.sync/code/helper.pyc', 'wb').write(marshal.dumps(evil))
    except OSError:
        pass
    return seen
";
    let skill = Skill::new(hostile, "value = 1");
    for run in 0..5 {
        assert_eq!(skill.output(&instance), 1, "run {run}");
    }
    assert_eq!(metric(&instance, "code_kept_skills"), 1);
}

/// What is printed when a file is compiled is printed in each run, and an error is each run's own.
#[test]
fn a_run_says_the_same_with_it_and_without() {
    let instance = Instance::new();
    for (helper, part) in [
        ("value = 1 is 1", "SyntaxWarning"),
        ("value = (", "SyntaxError"),
        ("raise ValueError('loud')", "line 1"),
    ] {
        let skill = Skill::new("import helper\ndef main(args): return helper.value", helper);
        let said: Vec<_> = (0..4)
            .map(|_| {
                let (result, services) = instance.run(skill.request());
                (result.error_message, services.text())
            })
            .collect();
        assert!(
            said[0].0.contains(part) || said[0].1.contains(part),
            "{said:?}"
        );
        assert!(said.iter().all(|s| *s == said[0]), "{said:?}");
    }
}

/// The compiler copies what is in a `finally`, and what is in that one's, and so on.
#[test]
fn a_skill_that_takes_too_long_to_compile_is_tried_once() {
    let instance = Instance::new();
    let finally = |depth: usize| {
        let indent = " ".repeat(depth);
        format!("{indent}try: pass\n{indent}finally:\n")
    };
    let mut slow: String = (0..18).map(finally).collect();
    slow += &format!("{}x = [{}]\n", " ".repeat(18), "y, ".repeat(200));
    let skill = Skill::new("def main(args): return 1", &slow);
    let create_us = [0; 5].map(|_| {
        let result = skill.run(&instance);
        assert!(result.completed, "{result:?}");
        result.create_us
    });
    // One of those after the second: a busy machine holds up any.
    let later = create_us[2..].iter().min().unwrap();
    assert!(*later < create_us[1] / 2, "{create_us:?}");
}
