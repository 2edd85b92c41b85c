//! An installation as OPERATING.md has it: the program, its plugins, skills and policies below one prefix.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use crate::support::gateway::{House, Settings};

pub(crate) const PLUGINS: [&str; 2] = [
    "libskillgate_storage_fs.so",
    "libskillgate_sandbox_process.so",
];

pub(crate) struct Prefix {
    pub(crate) program: PathBuf,
    lib: PathBuf,
    share: PathBuf,
}

impl Prefix {
    /// Without the plugins, as after `cargo install`.
    fn of_the_program(house: &House) -> Prefix {
        let prefix = house.path().join("prefix");
        let [bin, lib, share] =
            ["bin", "lib/skillgate", "share/skillgate"].map(|part| prefix.join(part));
        for dir in [&bin, &lib, &share] {
            fs::create_dir_all(dir).unwrap();
        }
        let program = bin.join("skillgate");
        fs::copy(env!("CARGO_BIN_EXE_skillgate"), &program).unwrap();
        for dir in ["skills", "policies"] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
            symlink(from, share.join(dir)).unwrap();
        }
        Prefix {
            program,
            lib,
            share,
        }
    }

    pub(crate) fn whole(house: &House) -> Prefix {
        let prefix = Prefix::of_the_program(house);
        prefix.add_plugins();
        prefix
    }

    fn add_plugins(&self) {
        let built = Path::new(env!("CARGO_BIN_EXE_skillgate")).parent().unwrap();
        for name in PLUGINS {
            self.install(name, &fs::read(built.join("deps").join(name)).unwrap());
        }
    }

    pub(crate) fn plugin(&self, name: &str) -> PathBuf {
        self.lib.join(name)
    }

    /// As `install` does it: another file in the place of the one before.
    pub(crate) fn install(&self, name: &str, bytes: &[u8]) {
        let new = self.lib.join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, self.plugin(name)).unwrap();
    }
}

/// And nothing of the source tree.
#[test]
fn an_installation_finds_what_belongs_to_it() {
    let _alone = alone();
    let house = House::new(Settings::default());
    let own_skills = |line: &&str| !line.starts_with("paths = ") && *line != "[skills]";
    let text = fs::read_to_string(house.config()).unwrap();
    let text: Vec<&str> = text.lines().filter(own_skills).collect();
    fs::write(house.config(), text.join("\n")).unwrap();

    let prefix = Prefix::of_the_program(&house);
    let skillgate = |args: &[&str]| {
        let mut command = Command::new(&prefix.program);
        command.args(args).arg("--config").arg(house.config());
        house.clean(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            said,
        )
    };

    // As after `cargo install`.
    let (code, _, said) = skillgate(&["skill", "list"]);
    assert_eq!(code, Some(3), "{said}");
    for part in [
        r#"no bundled plugin "storage-fs""#,
        "bin/../lib/skillgate/libskillgate_storage_fs.so",
        "OPERATING.md",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    prefix.add_plugins();
    let (code, listed, said) = skillgate(&["skill", "list"]);
    assert!(
        code == Some(0) && listed.contains("hello.world"),
        "{listed}{said}"
    );
    let (code, shown, said) = skillgate(&["config", "show"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(shown.contains("share/skillgate/policies"), "{shown}");
    let skill = prefix.share.join("skills/hello.world");
    let (code, answer, said) =
        skillgate(&["skill", "run", skill.to_str().unwrap(), "--args", "{}"]);
    assert!(
        code == Some(0) && answer.contains("Hello, world!"),
        "{answer}{said}"
    );
}
