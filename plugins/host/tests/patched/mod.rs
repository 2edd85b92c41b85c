//! Files that no compiler makes: of a good plugin bytes are changed, and the file is read as the loader would read it.

use std::path::Path;

use skillgate_plugin_host::{Pin, inspect};

use crate::refusal;
use crate::support::probe;

/// Offsets of the program headers of a 64-bit file.
fn headers(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let start = usize::try_from(u64::from_le_bytes(bytes[32..40].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes(bytes[56..58].try_into().unwrap()));
    (0..count).map(move |i| start + i * 56)
}

fn header(bytes: &[u8], kind: u32) -> usize {
    let of_kind = |at: &usize| bytes[*at..at + 4] == kind.to_le_bytes();
    headers(bytes).find(of_kind).unwrap()
}

/// Of two of a kind the loader goes by the last, and what it does not look at says nothing.
#[test]
fn a_file_is_read_as_the_loader_reads_it() {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const PT_GNU_STACK: u32 = 0x6474_e551;
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    const DT_STRSZ: u64 = 10;
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "read", &[])).unwrap();
    let refused = |name: &str, bytes: &[u8], expected: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let text = refusal(&file, &Pin::default());
        assert!(text.contains(expected), "{name}: {text}");
    };
    let relro = header(&good, PT_GNU_RELRO);
    assert!(relro > header(&good, PT_GNU_STACK) && relro > header(&good, PT_DYNAMIC));

    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_GNU_STACK.to_le_bytes());
    bytes[relro + 4..relro + 8].copy_from_slice(&7_u32.to_le_bytes());
    refused("stack", &bytes, "executable stack");

    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_DYNAMIC.to_le_bytes());
    // The file's first bytes, which are no such segment.
    bytes[relro + 8..relro + 24].fill(0);
    refused("dynamic", &bytes, "does not export");

    // One that begins in the middle of another's page is mapped over that page.
    let mut bytes = good.clone();
    bytes[relro..relro + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
    bytes[relro + 32..relro + 40].copy_from_slice(&1_u64.to_le_bytes());
    bytes[relro + 40..relro + 48].copy_from_slice(&1_u64.to_le_bytes());
    refused("over", &bytes, "its segments share pages");

    let options = ["-Wl,-rpath,/tmp/evil"];
    let mut bytes = std::fs::read(probe(dir.path(), "path", &options)).unwrap();
    let dynamic = header(&bytes, PT_DYNAMIC);
    let at = u64::from_le_bytes(bytes[dynamic + 8..dynamic + 16].try_into().unwrap());
    let mut entry = usize::try_from(at).unwrap();
    while bytes[entry..entry + 8] != DT_STRSZ.to_le_bytes() {
        entry += 16;
    }
    bytes[entry + 8..entry + 16].copy_from_slice(&1_u64.to_le_bytes());
    refused("short", &bytes, "library search path \"/tmp/evil\"");
}

/// What the loader would not find, or what is nothing that can be read.
#[test]
fn an_entry_is_in_the_file() {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const SHN_ABS: u16 = 0xfff1;
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "entry", &[]);
    let good = std::fs::read(&file).unwrap();
    let number = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    let place = |at: usize| usize::try_from(number(at)).unwrap();
    let dynamic = |tag: u64| {
        let mut entry = place(header(&good, PT_DYNAMIC) + 8);
        while number(entry) != tag {
            assert_ne!(number(entry), 0, "no entry {tag}");
            entry += 16;
        }
        place(entry + 8)
    };
    // Both tables are in the first segment, whose addresses are places in the file.
    let (names, symbols) = (dynamic(DT_STRTAB), dynamic(DT_SYMTAB));
    let is_it = |symbol: &usize| {
        let name = u32::from_le_bytes(good[*symbol..symbol + 4].try_into().unwrap());
        good[names + usize::try_from(name).unwrap()..].starts_with(b"skillgate_plugin_entry_v1\0")
    };
    let entry = (symbols..).step_by(24).find(is_it).unwrap();
    let (about, section, value) = (entry + 4, entry + 6, entry + 8);
    let end = |at: usize| number(at + 16) + number(at + 40);
    let loaded = || headers(&good).filter(|at| good[*at..at + 4] == PT_LOAD.to_le_bytes());
    let its_own = loaded().find(|at| end(*at) > number(value)).unwrap();
    let last = end(loaded().last().unwrap());
    let hidden = its_own + 4;

    assert!(!refuses(&file));
    let cases: [(&str, usize, &[u8]); 5] = [
        ("local", about, &[1]),
        ("absolute", section, &SHN_ABS.to_le_bytes()),
        ("far", value, &(1_u64 << 40).to_le_bytes()),
        ("cut", value, &(last - 8).to_le_bytes()),
        ("unreadable", hidden, &[0]),
    ];
    for (name, at, changed) in cases {
        let mut bytes = good.clone();
        bytes[at..at + changed.len()].copy_from_slice(changed);
        if name == "absolute" {
            bytes[value..value + 8].fill(0);
        }
        std::fs::write(&file, bytes).unwrap();
        assert!(refuses(&file), "{name}");
        let text = refusal(&file, &Pin::default());
        assert!(
            text.contains("does not export the data symbol"),
            "{name}: {text}"
        );
    }
}

/// Old linkers say it with an entry of its own, new ones with a flag, and some with both.
#[test]
fn writable_code_is_refused_whichever_way_it_is_said() {
    const PT_DYNAMIC: u32 = 2;
    const DT_DEBUG: u64 = 21;
    const DT_TEXTREL: u64 = 22;
    const DT_FLAGS: u64 = 30;
    const DF_TEXTREL: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let options = ["-DTEXTREL", "-Wl,-z,notext"];
    let file = probe(dir.path(), "both", &options);
    let both = std::fs::read(&file).unwrap();
    let dynamic = header(&both, PT_DYNAMIC);
    let number = |at: usize| u64::from_le_bytes(both[at..at + 8].try_into().unwrap());
    let of = |tag: u64| {
        let mut entry = usize::try_from(number(dynamic + 8)).unwrap();
        while number(entry) != tag {
            assert_ne!(number(entry), 0, "no entry {tag}");
            entry += 16;
        }
        entry
    };
    let (entry, flags) = (of(DT_TEXTREL), of(DT_FLAGS));
    assert_ne!(number(flags + 8) & DF_TEXTREL, 0);
    for (has_entry, has_flag) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut bytes = both.clone();
        if !has_entry {
            bytes[entry..entry + 8].copy_from_slice(&DT_DEBUG.to_le_bytes());
        }
        if !has_flag {
            let other = number(flags + 8) & !DF_TEXTREL;
            bytes[flags + 8..flags + 16].copy_from_slice(&other.to_le_bytes());
        }
        std::fs::write(&file, bytes).unwrap();
        let is_refused = has_entry || has_flag;
        assert_eq!(inspect(&file).unwrap().text_relocations, is_refused);
        assert_eq!(refuses(&file), is_refused);
    }
}

#[test]
fn program_headers_have_one_size_and_are_not_many() {
    let dir = tempfile::tempdir().unwrap();
    let file = probe(dir.path(), "headers", &[]);
    let good = std::fs::read(&file).unwrap();
    for (at, number) in [(54, 55_u16), (56, 4097)] {
        let mut bytes = good.clone();
        bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let text = refusal(&file, &Pin::default());
        assert!(
            text.contains("a size or number that no ELF file has"),
            "{text}"
        );
    }
}

/// Without loading it.
fn refuses(file: &Path) -> bool {
    inspect(file).map_or(true, |found| !found.refusals.is_empty())
}

#[test]
fn a_cut_or_garbled_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "whole", &[])).unwrap();
    let file = dir.path().join("cut.so");
    for length in (0..good.len().min(8192)).step_by(61) {
        std::fs::write(&file, &good[..length]).unwrap();
        let is_refused = refuses(&file);
        assert!(is_refused, "{length} bytes of {}", good.len());
    }
    // What it is: its magic, class, order of bytes, type and machine.
    for at in (0..6).chain(16..20) {
        let mut garbled = good.clone();
        garbled[at] ^= 0x55;
        std::fs::write(&file, &garbled).unwrap();
        assert!(refuses(&file), "byte {at}");
    }
    // Bytes of the headers and of the end, one at a time: some of them do not matter, and none of them ends this process.
    let mut seed = 1_u32;
    for at in (0..1024).chain(good.len() - 4096..good.len()).step_by(7) {
        let mut garbled = good.clone();
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        garbled[at] = (seed >> 24) as u8;
        std::fs::write(&file, &garbled).unwrap();
        drop(inspect(&file));
    }
}

/// Each of its segments of notes can be all of the file: to read every one would take minutes, and hours of a large file.
#[test]
fn a_file_of_notes_is_looked_at_in_time() {
    const PT_NOTE: u32 = 4;
    const HEADERS: u16 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(probe(dir.path(), "notes", &[])).unwrap();
    let mut bytes = vec![0; 1 << 20];
    bytes[..64].copy_from_slice(&good[..64]);
    bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
    bytes[56..58].copy_from_slice(&HEADERS.to_le_bytes());
    let all: Vec<usize> = headers(&bytes).collect();
    let first = all[all.len() - 1] + 56;
    for at in all {
        bytes[at..at + 4].copy_from_slice(&PT_NOTE.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&(first as u64).to_le_bytes());
        let length = bytes.len() - first;
        bytes[at + 32..at + 40].copy_from_slice(&(length as u64).to_le_bytes());
    }
    let file = dir.path().join("notes.so");
    std::fs::write(&file, &bytes).unwrap();
    let began = std::time::Instant::now();
    assert!(refusal(&file, &Pin::default()).contains("does not export"));
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
}
