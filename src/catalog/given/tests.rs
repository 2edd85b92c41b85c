use std::fs;
use std::io::{Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use skillgate_skill::file_digest;

use super::*;

const FILE: EntryType = EntryType::Regular;
const PUBLISHED: [(&str, &str); 2] = [("SKILL.md", "# One\n"), ("code/main.py", "x = 1\n")];

fn list() -> Vec<SkillFile> {
    let file = |(path, content): (&str, &str)| SkillFile {
        path: path.to_owned(),
        sha256: file_digest(content.as_bytes()),
        size_bytes: content.len() as u64,
    };
    PUBLISHED.map(file).to_vec()
}

/// What is seen of a directory with these files, after a change.
fn of_directory(change: impl FnOnce(&Path)) -> Result<(), String> {
    of_directory_for(true, change)
}

fn of_directory_for(for_others: bool, change: impl FnOnce(&Path)) -> Result<(), String> {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("code")).unwrap();
    set_mode(place.path(), 0o755);
    set_mode(&place.path().join("code"), 0o755);
    for (path, content) in PUBLISHED {
        fs::write(place.path().join(path), content).unwrap();
        set_mode(&place.path().join(path), 0o644);
    }
    change(place.path());
    let dir = OwnedFd::from(File::open(place.path()).unwrap());
    is_of_within(&Content::Dir(dir), &list(), ENTRIES_MAX, for_others)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_is_that_of_its_list() {
    assert_eq!(of_directory(|_| ()), Ok(()));
    // No file is in it.
    let empty = |dir: &Path| {
        fs::create_dir(dir.join("resources")).unwrap();
        set_mode(&dir.join("resources"), 0o755);
    };
    assert_eq!(of_directory(empty), Ok(()));
    let why = |change: &dyn Fn(&Path)| of_directory(change).unwrap_err();
    let other = |content: &'static str| {
        move |dir: &Path| fs::write(dir.join("code/main.py"), content).unwrap()
    };
    for content in ["x = 2\n", "x = 1", "x = 1\n\n", ""] {
        let said = why(&other(content));
        assert_eq!(said, "code/main.py: is not what its record says");
    }
    let missing = |dir: &Path| fs::remove_file(dir.join("SKILL.md")).unwrap();
    assert_eq!(why(&missing), "SKILL.md: is not there");
    let more = |dir: &Path| fs::write(dir.join("code/json.py"), "").unwrap();
    let none_of_them = "is none of the files that were published, or is there twice";
    assert_eq!(why(&more), format!("\"code/json.py\": {none_of_them}"));
    let link = |dir: &Path| {
        fs::rename(dir.join("code/main.py"), dir.join("code/other.py")).unwrap();
        symlink("other.py", dir.join("code/main.py")).unwrap();
        fs::remove_file(dir.join("code/other.py")).unwrap();
        fs::write(dir.join("other.py"), "x = 1\n").unwrap();
    };
    assert!(of_directory(link).is_err());
    let way = |dir: &Path| symlink("/", dir.join("root")).unwrap();
    let neither = "\"root\": is neither a file nor a directory";
    assert_eq!(why(&way), neither);
    let deep = |dir: &Path| fs::create_dir_all(dir.join("d/".repeat(18))).unwrap();
    assert!(why(&deep).ends_with("is nested deeper than 16 directories"));
}

#[test]
fn what_runs_cannot_read_is_told_with_its_mode() {
    for (path, mode, told) in [
        ("", 0o700, "its directory: has the mode 0700"),
        ("", 0o744, "its directory: has the mode 0744"),
        ("code", 0o751, "code: has the mode 0751"),
        ("code/main.py", 0o600, "code/main.py: has the mode 0600"),
        ("SKILL.md", 0o440, "SKILL.md: has the mode 0440"),
    ] {
        let change = |dir: &Path| set_mode(&dir.join(path), mode);
        let why = of_directory_for(true, change).unwrap_err();
        assert!(why.starts_with(told), "{why}");
        // Where runs are the gateway's own user.
        assert_eq!(of_directory_for(false, change), Ok(()));
    }
    let only_read = |dir: &Path| {
        set_mode(&dir.join("SKILL.md"), 0o404);
        set_mode(&dir.join("code"), 0o705);
    };
    assert_eq!(of_directory_for(true, only_read), Ok(()));
}

#[test]
fn what_has_no_end_is_left() {
    let place = tempfile::tempdir().unwrap();
    (0..6).for_each(|number| fs::create_dir(place.path().join(number.to_string())).unwrap());
    let dir = || Content::Dir(File::open(place.path()).unwrap().into());
    let seen = |entries_max| is_of_within(&dir(), &[], entries_max, false);
    assert_eq!(seen(6), Ok(()));
    let more = "has more entries than are looked at".to_owned();
    assert_eq!(seen(5), Err(more));
    // To read it would take hours.
    let long = |dir: &Path| {
        let file = File::options().write(true).open(dir.join("code/main.py"));
        file.unwrap().set_len(1 << 40).unwrap();
    };
    let why = of_directory(long).unwrap_err();
    assert_eq!(why, "code/main.py: is not what its record says");
    let mut list = list();
    list[0].size_bytes = CONTENT_BYTES_MAX;
    let dir = OwnedFd::from(File::open("/").unwrap());
    let why = is_of(&Content::Dir(dir), &list).unwrap_err();
    assert_eq!(why, "has more than 268435456 bytes");
}

fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if name.len() < 100 {
            // As raw bytes: the crate's own setter refuses what is tried here.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name("SKILL.md").unwrap();
            }
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        } else {
            builder
                .append_data(&mut header, name, content.as_bytes())
                .unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// Its descriptor stands where the writer left it, and stays there.
fn of_archive(bytes: &[u8]) -> Result<(), String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let size = bytes.len() as u64;
    let given = Content::Tar(file.try_clone().unwrap().into(), size);
    let seen = is_of(&given, &list());
    assert_eq!(file.stream_position().unwrap(), size);
    seen
}

#[test]
fn an_archive_is_that_of_its_list() {
    let [skill_md, main] = PUBLISHED.map(|(path, content)| (path, FILE, content));
    assert_eq!(of_archive(&archive(&[skill_md, main])), Ok(()));
    let comment = format!("52 comment={}\n", "0".repeat(40));
    let head = (
        "pax_global_header",
        EntryType::XGlobalHeader,
        comment.as_str(),
    );
    let directory = EntryType::Directory;
    let dotted = ("./code/main.py", FILE, PUBLISHED[1].1);
    let as_git = [
        head,
        ("./", directory, ""),
        ("code/", directory, ""),
        dotted,
        skill_md,
    ];
    assert_eq!(of_archive(&archive(&as_git)), Ok(()));
    let long = "x/".repeat(5000) + "x";
    for (entries, why) in [
        (&[skill_md][..], "code/main.py: is not there"),
        (&[skill_md, main, main], "is there twice"),
        (
            &[skill_md, ("code/main.py", FILE, "x = 2\n")],
            "main.py: is not what",
        ),
        (
            &[skill_md, ("code/main.py", FILE, "x = 1\n\n")],
            "main.py: is not what",
        ),
        (
            &[skill_md, main, ("code/json.py", FILE, "")],
            "none of the files",
        ),
        (
            &[skill_md, ("code/main.py", EntryType::Symlink, "")],
            "neither a file",
        ),
        (
            &[skill_md, ("code/main.py", EntryType::Link, "")],
            "neither a file",
        ),
        (
            &[skill_md, main, ("../SKILL.md", FILE, "")],
            "no path inside",
        ),
        (&[skill_md, main, ("/SKILL.md", FILE, "")], "no path inside"),
        (
            &[
                ("g", EntryType::XGlobalHeader, "12 path=b/c\n"),
                skill_md,
                main,
            ],
            "neither a file",
        ),
        (&[skill_md, main, (&long, FILE, "")], "is none of the files"),
        (
            &[skill_md, main, (&long.repeat(9), FILE, "")],
            "more than 65536 bytes beside",
        ),
    ] {
        let seen = of_archive(&archive(entries)).expect_err(why);
        assert!(
            seen.contains(why),
            "{why}: {}",
            &seen[..seen.len().min(300)]
        );
    }
    // Each of the two takes two blocks, and the end two of zeros.
    let whole = archive(&[skill_md, main]);
    for bytes in [0, 300, 600, 1024, 1600] {
        assert!(of_archive(&whole[..bytes]).is_err(), "{bytes}");
    }
    assert_eq!(of_archive(&whole[..2560]), Ok(()));
    let cut = of_archive(&whole[..2048]).unwrap_err();
    assert_eq!(cut, "its archive is cut off between two entries");
}

#[test]
fn a_file_is_no_skill() {
    let why = is_of(&Content::Data(Vec::new()), &list()).unwrap_err();
    assert_eq!(why, "the store answered a directory with a file");
}
