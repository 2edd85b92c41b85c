//! `abi.lock`: the contract as text, every size, offset, type and constant of it. Plugins that exist were built with it, so
//! what is written there stays: a struct with a `struct_size` grows at its end, constants are added, nothing else.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{c_type, header_constants, number, places};
use skillgate_plugin_abi as abi;

const LOCK: &str = include_str!("../../abi.lock");
const LOCK_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/abi.lock");
/// Set: what has been added is written into the file. What breaks the contract is not.
const WRITE: &str = "SKILLGATE_WRITE_ABI_LOCK";

const HEAD: &str = "\
# The plugin contract as its compiled form: what plugins that exist rely on. Lines are added, none is changed or removed:
# plugins/abi/tests/layout/lock.rs says what may grow and how.
";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Contract {
    major: u32,
    minor: u32,
    /// Name to value, as C writes it.
    constants: BTreeMap<String, String>,
    /// In the order of the header's mirror.
    structs: Vec<Struct>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Struct {
    name: String,
    /// Bytes.
    size: usize,
    /// It has no `struct_size`, so nobody can tell an old one from a new one: it never changes.
    frozen: bool,
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
    name: String,
    c_type: String,
}

impl Contract {
    /// As this crate has it, which is what the header has: the tests beside this one compare them.
    fn compiled() -> Self {
        let places = places();
        let names: BTreeMap<&str, &str> = places
            .iter()
            .filter(|p| p.field.is_empty())
            .map(|p| (p.rust_type, p.c_struct))
            .collect();
        let mut structs: Vec<Struct> = Vec::new();
        for p in &places {
            match (p.field, structs.last_mut()) {
                ("", _) => structs.push(Struct {
                    name: p.c_struct.to_owned(),
                    size: p.size,
                    frozen: true,
                    fields: Vec::new(),
                }),
                (_, None) => panic!("{}.{}: before its struct", p.c_struct, p.field),
                (_, Some(of)) => {
                    of.frozen &= p.field != "struct_size";
                    of.fields.push(Field {
                        offset: p.at,
                        size: p.size,
                        name: p.c_field().to_owned(),
                        c_type: c_type(p.rust_type, &names),
                    });
                }
            }
        }
        let mut constants = header_constants();
        constants.retain(|name, _| name != "ABI_MAJOR" && name != "ABI_MINOR");
        for value in constants.values_mut() {
            if !value.starts_with('"') {
                *value = number(value).to_string();
            }
        }
        Contract {
            major: abi::ABI_MAJOR,
            minor: abi::ABI_MINOR,
            constants,
            structs,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}\nabi {}.{}\n\n", self.major, self.minor);
        for (name, value) in &self.constants {
            writeln!(text, "const SKG_{name} {value}").unwrap();
        }
        for s in &self.structs {
            let frozen = if s.frozen { " frozen" } else { "" };
            writeln!(text, "\nstruct {} {} bytes{frozen}", s.name, s.size).unwrap();
            for f in &s.fields {
                writeln!(text, "  {} {} {}: {}", f.offset, f.size, f.name, f.c_type).unwrap();
            }
        }
        text
    }

    fn parse(text: &str) -> Self {
        let mut found = Contract::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] | ["#", ..] => {}
                ["abi", version] => {
                    let (major, minor) = version.split_once('.').unwrap();
                    (found.major, found.minor) = (major.parse().unwrap(), minor.parse().unwrap());
                }
                ["const", name, ..] => {
                    let value = line.splitn(3, ' ').nth(2).unwrap().to_owned();
                    let name = name.strip_prefix("SKG_").unwrap().to_owned();
                    assert_eq!(found.constants.insert(name, value), None, "twice: {line}");
                }
                ["struct", name, size, "bytes", rest @ ..] => found.structs.push(Struct {
                    name: (*name).to_owned(),
                    size: size.parse().unwrap(),
                    frozen: rest == ["frozen"],
                    fields: Vec::new(),
                }),
                [offset, size, name, ..] => {
                    let field = Field {
                        offset: offset.parse().unwrap(),
                        size: size.parse().unwrap(),
                        name: name.strip_suffix(':').unwrap().to_owned(),
                        c_type: line.split_once(": ").unwrap().1.to_owned(),
                    };
                    found.structs.last_mut().unwrap().fields.push(field);
                }
                _ => panic!("abi.lock has a line that says nothing: {line}"),
            }
        }
        found
    }
}

/// What no plugin that exists would survive.
fn broken(old: &Contract, new: &Contract) -> Vec<String> {
    let mut broken = Vec::new();
    if old.major != new.major {
        // Another major is another header and another lock: this one's plugins still exist.
        broken.push(format!("the major is {} and was {}", new.major, old.major));
    }
    if new.minor < old.minor {
        broken.push(format!("the minor is {} and was {}", new.minor, old.minor));
    }
    for (name, value) in &old.constants {
        match new.constants.get(name) {
            None => broken.push(format!("SKG_{name} is gone")),
            Some(now) if now != value => {
                broken.push(format!("SKG_{name} is {now} and was {value}"));
            }
            Some(_) => {}
        }
    }
    for (name, value) in &new.constants {
        let family = |name: &str| name.split('_').next().unwrap().to_owned();
        let known = !old.constants.contains_key(name);
        let taken = old
            .constants
            .iter()
            .find(|(other, held)| *held == value && family(other) == family(name));
        if let (true, Some((other, _))) = (known, taken) {
            broken.push(format!("SKG_{name} has the value of SKG_{other}, {value}"));
        }
    }
    for old in &old.structs {
        match new.structs.iter().find(|s| s.name == old.name) {
            None => broken.push(format!("{} is gone", old.name)),
            Some(new) => broken.extend(broken_struct(old, new)),
        }
    }
    broken
}

fn broken_struct(old: &Struct, new: &Struct) -> Vec<String> {
    let name = &old.name;
    if old.frozen || new.frozen {
        return match old == new {
            true => vec![],
            false => vec![format!(
                "{name} has changed and has no struct_size to tell by: it is frozen"
            )],
        };
    }
    let mut broken = Vec::new();
    for (at, was) in old.fields.iter().enumerate() {
        match new.fields.get(at) {
            Some(is) if is == was => {}
            Some(is) => broken.push(format!(
                "{name}: field {at} is {} {} {}: {} and was {} {} {}: {}",
                is.offset, is.size, is.name, is.c_type, was.offset, was.size, was.name, was.c_type
            )),
            None => broken.push(format!("{name}.{} is gone", was.name)),
        }
    }
    for f in new.fields.iter().skip(old.fields.len()) {
        // Plugins that exist say with their struct_size that the padding at the end is theirs.
        if f.offset < old.size {
            broken.push(format!(
                "{name}.{} begins at {}, in what was padding before {}: put a reserved field there first",
                f.name, f.offset, old.size
            ));
        }
    }
    broken
}

#[test]
fn nothing_changes_but_by_growing() {
    let (locked, compiled) = (Contract::parse(LOCK), Contract::compiled());
    let broken = broken(&locked, &compiled);
    assert!(
        broken.is_empty(),
        "this breaks every plugin that exists:\n  {}\n\
         Put back what was there. In this major a struct grows at its end, a constant is added with a value of its own,\n\
         a table gets a new function as its last; what cannot be done so is a new struct, an extension, or the next major.",
        broken.join("\n  ")
    );
    let text = compiled.text();
    if text == LOCK {
        return;
    }
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(LOCK_FILE, text).unwrap();
        panic!(
            "{LOCK_FILE} is written: look at its diff, which must only add lines, and run the tests again"
        );
    }
    let added: Vec<&str> = text
        .lines()
        .filter(|line| !LOCK.lines().any(|known| known == *line))
        .collect();
    panic!(
        "the contract has grown, and abi.lock does not say so:\n  {}\n\
         If that is meant: raise SKG_ABI_MINOR once per release that grows, let whoever reads the new field ask SKG_HAS, and\n\
         write it down with {WRITE}=1 cargo test -p skillgate-plugin-abi --test layout lock",
        added.join("\n  ")
    );
}

#[test]
fn the_text_says_all_of_it() {
    let compiled = Contract::compiled();
    assert_eq!(Contract::parse(&compiled.text()), compiled);
    assert!(compiled.structs.len() > 35 && compiled.constants.len() > 70);
}

/// A contract of three lines, changed: what the check says of it. Empty: it may be so.
#[test]
fn each_way_to_break_it_is_named() {
    const OLD: &str = "abi 1.1\nconst SKG_A_X 1\nconst SKG_A_Y 2\n\
        struct skg_f 8 bytes frozen\n  0 8 ptr: void *\n\
        struct skg_g 16 bytes\n  0 4 struct_size: uint32_t\n  8 4 n: int32_t\n";
    let cases = [
        ("", "", ""),
        ("abi 1.1", "abi 1.2", ""),
        ("abi 1.1", "abi 1.0", "the minor is 0 and was 1"),
        ("abi 1.1", "abi 2.1", "the major is 2 and was 1"),
        (
            "const SKG_A_Y 2\n",
            "const SKG_A_Y 2\nconst SKG_A_Z 4\n",
            "",
        ),
        (
            "const SKG_A_Y 2\n",
            "const SKG_A_Y 2\nconst SKG_B_Z 2\n",
            "",
        ),
        (
            "const SKG_A_Y 2\n",
            "const SKG_A_Y 2\nconst SKG_A_Z 2\n",
            "SKG_A_Z has the value of SKG_A_Y, 2",
        ),
        ("const SKG_A_Y 2\n", "", "SKG_A_Y is gone"),
        (
            "const SKG_A_Y 2",
            "const SKG_A_Y 3",
            "SKG_A_Y is 3 and was 2",
        ),
        (
            "frozen\n",
            "frozen\n  8 8 more: void *\n",
            "skg_f has changed and has no struct_size",
        ),
        (
            "void *",
            "const void *",
            "skg_f has changed and has no struct_size",
        ),
        ("struct skg_f 8", "struct skg_h 8", "skg_f is gone"),
        (
            "struct skg_g 16",
            "struct skg_h 8 bytes frozen\n  0 8 m: void *\nstruct skg_g 16",
            "",
        ),
        (
            "16 bytes\n  0 4 struct_size: uint32_t\n  8 4 n: int32_t\n",
            "24 bytes\n  0 4 struct_size: uint32_t\n  8 4 n: int32_t\n  16 8 m: uint64_t\n",
            "",
        ),
        (
            "  8 4 n: int32_t\n",
            "  8 4 n: int32_t\n  12 4 m: int32_t\n",
            "skg_g.m begins at 12, in what was padding before 16",
        ),
        (
            "  8 4 n",
            "  4 4 n",
            "field 1 is 4 4 n: int32_t and was 8 4 n: int32_t",
        ),
        (
            "int32_t\n",
            "uint32_t\n",
            "field 1 is 8 4 n: uint32_t and was 8 4 n: int32_t",
        ),
        (
            "  8 4 n",
            "  8 4 k",
            "field 1 is 8 4 k: int32_t and was 8 4 n: int32_t",
        ),
        ("  8 4 n: int32_t\n", "", "skg_g.n is gone"),
        (
            "  8 4 n: int32_t\n",
            "  8 4 m: int32_t\n  12 4 n: int32_t\n",
            "field 1 is 8 4 m: int32_t and was 8 4 n: int32_t",
        ),
        ("  0 4 struct_size: uint32_t\n", "", "field 0 is 8 4 n"),
    ];
    for (from, to, expected) in cases {
        // The last one: types repeat.
        let new = match OLD.rsplit_once(from) {
            Some((before, after)) if !from.is_empty() => format!("{before}{to}{after}"),
            _ => OLD.to_owned(),
        };
        let said = broken(&Contract::parse(OLD), &Contract::parse(&new)).join("; ");
        assert_eq!(said.is_empty(), expected.is_empty(), "{to:?}: {said}");
        assert!(said.contains(expected), "{to:?}: {said}");
    }
}
