//! What a plugin file is, found by reading it: nothing of it is executed.
//!
//! Only what the dynamic loader itself goes by is read (program headers and the dynamic segment, not the section
//! table), with every offset checked: the file is not trusted.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};
use skillgate_plugin_abi as abi;

use crate::load::{LoadError, Refusal};

/// Largest plugin file.
const FILE_BYTES: u64 = 256 << 20;
/// Of a longer id a note has the beginning. Its last byte is for a NUL.
pub(crate) const NOTE_ID_BYTES: usize = 43;
/// Longest name in a dynamic string table.
const NAME_BYTES: usize = 4096;

/// What a plugin file is.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The file.
    pub path: PathBuf,
    /// Bytes.
    pub size_bytes: u64,
    /// Of the file, 64 hex digits: what a pin is compared with.
    pub sha256: String,
    /// `elf64`.
    pub class: &'static str,
    /// `x86_64`, `aarch64`, or the ELF number.
    pub machine: String,
    /// The SkillGate note, when there is one.
    pub note: Option<Note>,
    /// The entry symbol is defined, as data.
    pub entry: bool,
    /// Libraries that the loader will load with it.
    pub needed: Vec<String>,
    /// Old-style search path.
    pub rpath: Option<String>,
    /// Search path.
    pub runpath: Option<String>,
    /// It wants a stack that can be executed.
    pub executable_stack: bool,
    /// The loader would have to write to its code.
    pub text_relocations: bool,
    /// It needs thread-local storage reserved at program start, of which little is left later.
    pub static_tls: bool,
    /// Why it runs in a process of its own whatever the configuration says; `None`: it need not.
    pub own_process: Option<&'static str>,
    /// Why this host would refuse to load it; empty: it would not.
    pub refusals: Vec<String>,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// The ELF note: what the plugin says before any of its code has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The plugin's id, cut at 43 bytes.
    pub id: String,
    /// Major of the contract that it was built with.
    pub abi_major: u32,
    /// Minor likewise.
    pub abi_minor: u32,
    /// Oldest host minor that it works with.
    pub min_host_minor: u32,
    /// `F_*` of the contract.
    pub flags: u32,
}

/// Says what a plugin file is and whether this host would load it. Never executes any of it.
pub fn inspect(path: impl AsRef<Path>) -> Result<Inspection, LoadError> {
    let path = path.as_ref();
    let bytes = read(path)?;
    Ok(inspect_bytes(path, &bytes, digest(&bytes))?.0)
}

/// 64 hex digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let refuse = |why| LoadError::new(path, why);
    // Looked at before it is opened, so that a FIFO does not keep us waiting, and again after, so that what was looked at
    // is what is read.
    let is_file = |meta: &std::fs::Metadata| {
        if meta.is_file() {
            Ok(meta.len())
        } else {
            Err(Refusal::NotAFile)
        }
    };
    let meta = std::fs::metadata(path).map_err(|e| refuse(Refusal::Unreadable(e)))?;
    is_file(&meta).map_err(refuse)?;
    let file = File::open(path).map_err(|e| refuse(Refusal::Unreadable(e)))?;
    let meta = file
        .metadata()
        .map_err(|e| refuse(Refusal::Unreadable(e)))?;
    let size = is_file(&meta).map_err(refuse)?;
    if size > FILE_BYTES {
        return Err(refuse(Refusal::TooLarge {
            bytes: size,
            max: FILE_BYTES,
        }));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| refuse(Refusal::Unreadable(e)))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(refuse(Refusal::TooLarge {
            bytes: bytes.len() as u64,
            max: FILE_BYTES,
        }));
    }
    Ok(bytes)
}

/// What the file is, and the first reason not to load it.
pub(crate) fn inspect_bytes(
    path: &Path,
    bytes: &[u8],
    sha256: String,
) -> Result<(Inspection, Option<Refusal>), LoadError> {
    let elf = Elf::parse(bytes).map_err(|why| LoadError::new(path, Refusal::NotAPlugin(why)))?;
    let dynamic = elf.dynamic();
    let mut found = Inspection {
        path: path.to_owned(),
        size_bytes: bytes.len() as u64,
        sha256,
        class: "elf64",
        machine: machine_name(elf.machine),
        note: elf.note(),
        entry: elf.defines_data(&dynamic, ENTRY),
        needed: [DT_NEEDED, DT_AUXILIARY, DT_FILTER]
            .into_iter()
            .flat_map(|tag| dynamic.all(tag))
            .map(|at| elf.dynamic_name(&dynamic, at))
            .collect(),
        rpath: dynamic
            .get(DT_RPATH)
            .map(|at| elf.dynamic_name(&dynamic, at)),
        runpath: dynamic
            .get(DT_RUNPATH)
            .map(|at| elf.dynamic_name(&dynamic, at)),
        // Without the header the loader takes the architecture's default, which for x86-64 is executable.
        executable_stack: elf
            .segments
            .iter()
            .rfind(|s| s.kind == PT_GNU_STACK)
            .is_none_or(|s| s.flags & PF_X != 0),
        text_relocations: dynamic.get(DT_TEXTREL).is_some()
            || dynamic.get(DT_FLAGS).unwrap_or(0) & DF_TEXTREL != 0,
        static_tls: dynamic.get(DT_FLAGS).unwrap_or(0) & DF_STATIC_TLS != 0,
        own_process: None,
        refusals: Vec::new(),
        warnings: Vec::new(),
    };
    let flags = found.note.as_ref().map_or(0, |note| note.flags);
    if flags & abi::F_OWN_PROCESS != 0 {
        found.own_process = Some("it asks for a process of its own");
    } else if elf.is_go() {
        found.own_process = Some(
            "it is written in Go, whose runtime changes signal handlers and shares no process with another of its kind",
        );
    }
    let refusals = refusals(&found, &elf);
    found.refusals = refusals.iter().map(ToString::to_string).collect();
    found.warnings = warnings(&found);
    Ok((found, refusals.into_iter().next()))
}

const ENTRY: &[u8] = b"skillgate_plugin_entry_v1";

/// Why this host does not load a file, first reason first.
fn refusals(found: &Inspection, elf: &Elf<'_>) -> Vec<Refusal> {
    let mut no = Vec::new();
    if elf.machine != HOST_MACHINE {
        no.push(Refusal::Machine {
            theirs: found.machine.clone(),
            ours: machine_name(HOST_MACHINE),
        });
    }
    if !found.entry {
        no.push(Refusal::NoEntry);
    }
    match &found.note {
        None => no.push(Refusal::NoNote),
        Some(note) => {
            if note.abi_major != abi::ABI_MAJOR {
                no.push(Refusal::Major {
                    theirs: note.abi_major,
                    ours: abi::ABI_MAJOR,
                });
            } else if note.min_host_minor > abi::ABI_MINOR {
                no.push(Refusal::HostTooOld {
                    needs: note.min_host_minor,
                    ours: abi::ABI_MINOR,
                });
            }
        }
    }
    for path in [&found.rpath, &found.runpath].into_iter().flatten() {
        no.push(Refusal::SearchPath(path.clone()));
    }
    if found.executable_stack {
        no.push(Refusal::ExecutableStack);
    }
    if found.text_relocations {
        no.push(Refusal::TextRelocations);
    }
    no
}

fn warnings(found: &Inspection) -> Vec<String> {
    // What the gateway itself, a Rust program, has loaded anyway.
    const USUAL: [&str; 8] = [
        "libc.so.",
        "libm.so.",
        "libgcc_s.so.",
        "libpthread.so.",
        "libdl.so.",
        "librt.so.",
        "ld-linux-",
        "linux-vdso.",
    ];
    let mut warnings: Vec<_> = found
        .needed
        .iter()
        // One with a slash is a file, whatever its name begins with.
        .filter(|name| name.contains('/') || !USUAL.iter().any(|usual| name.starts_with(usual)))
        .map(|name| format!("it needs {name}, which the pin of this file does not cover"))
        .collect();
    if found.static_tls {
        warnings.push(
            "it needs static thread-local storage: loading it may fail in a running process".into(),
        );
    }
    warnings
}

// === ELF, as far as the loader goes ===

const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;
const EM_RISCV: u16 = 243;
#[cfg(target_arch = "x86_64")]
const HOST_MACHINE: u16 = EM_X86_64;
#[cfg(target_arch = "aarch64")]
const HOST_MACHINE: u16 = EM_AARCH64;
#[cfg(target_arch = "riscv64")]
const HOST_MACHINE: u16 = EM_RISCV;

const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_R: u32 = 4;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RPATH: u64 = 15;
const DT_TEXTREL: u64 = 22;
const DT_RUNPATH: u64 = 29;
const DT_FLAGS: u64 = 30;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_AUXILIARY: u64 = 0x7fff_fffd;
const DT_FILTER: u64 = 0x7fff_ffff;
const DF_TEXTREL: u64 = 4;
const DF_STATIC_TLS: u64 = 0x10;
const STT_OBJECT: u8 = 1;
const STB_GLOBAL: u8 = 1;
const STB_WEAK: u8 = 2;
const STB_GNU_UNIQUE: u8 = 10;
/// From here on the number of a section says something else, as that the value is no address in the file.
const SHN_LORESERVE: u16 = 0xff00;
/// More program headers, dynamic entries or notes than this are not read.
const ENTRIES: usize = 4096;

fn machine_name(machine: u16) -> String {
    match machine {
        EM_X86_64 => "x86_64".into(),
        EM_AARCH64 => "aarch64".into(),
        EM_RISCV => "riscv".into(),
        other => format!("ELF machine {other}"),
    }
}

struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

struct Elf<'a> {
    bytes: &'a [u8],
    machine: u16,
    segments: Vec<Segment>,
}

struct Dynamic(Vec<(u64, u64)>);

impl Dynamic {
    fn all(&self, tag: u64) -> impl Iterator<Item = u64> {
        self.0
            .iter()
            .filter(move |entry| entry.0 == tag)
            .map(|entry| entry.1)
    }
    /// Of several the loader goes by the last.
    fn get(&self, tag: u64) -> Option<u64> {
        self.all(tag).last()
    }
}

fn get<const N: usize>(bytes: &[u8], at: u64) -> Option<[u8; N]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
fn u16_at(bytes: &[u8], at: u64) -> Option<u16> {
    get(bytes, at).map(u16::from_le_bytes)
}
fn u32_at(bytes: &[u8], at: u64) -> Option<u32> {
    get(bytes, at).map(u32::from_le_bytes)
}
fn u64_at(bytes: &[u8], at: u64) -> Option<u64> {
    get(bytes, at).map(u64::from_le_bytes)
}

/// No page belongs to two of the segments that are mapped.
fn lie_apart(segments: &[Segment]) -> bool {
    // SAFETY: asks for a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut free = 0;
    segments.iter().filter(|s| s.kind == PT_LOAD).all(|s| {
        let fits = s.address >= free;
        let end = s.address.checked_add(s.memory_bytes.max(s.file_bytes));
        match end.and_then(|end| end.checked_next_multiple_of(page)) {
            Some(end) => free = end,
            None => return false,
        }
        fits
    })
}

impl<'a> Elf<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        const CUT: &str = "its ELF headers lie outside the file";
        if bytes.get(..4) != Some(b"\x7fELF") {
            return Err("it is not an ELF file");
        }
        if bytes.get(4..6) != Some(&[2, 1]) {
            return Err("it is not a 64-bit little-endian ELF file");
        }
        if u16_at(bytes, 16) != Some(ET_DYN) {
            return Err("it is not a shared object");
        }
        let machine = u16_at(bytes, 18).ok_or(CUT)?;
        let table = u64_at(bytes, 32).ok_or(CUT)?;
        let (size, count) = (u16_at(bytes, 54).ok_or(CUT)?, u16_at(bytes, 56).ok_or(CUT)?);
        if size < 56 || usize::from(count) > ENTRIES {
            return Err("its program headers have a size or number that no ELF file has");
        }
        let segments = (0..u64::from(count)).map(|i| {
            let at = table.checked_add(i * u64::from(size))?;
            Some(Segment {
                kind: u32_at(bytes, at)?,
                flags: u32_at(bytes, at.checked_add(4)?)?,
                offset: u64_at(bytes, at.checked_add(8)?)?,
                address: u64_at(bytes, at.checked_add(16)?)?,
                file_bytes: u64_at(bytes, at.checked_add(32)?)?,
                memory_bytes: u64_at(bytes, at.checked_add(40)?)?,
            })
        });
        let segments = segments.collect::<Option<Vec<_>>>().ok_or(CUT)?;
        // Whole pages are mapped, one segment over what is there of another: then nobody who reads the file sees what the
        // loader does. A linker makes no such file.
        if !lie_apart(&segments) {
            return Err("its segments share pages, or are not in the order of their addresses");
        }
        Ok(Elf {
            bytes,
            machine,
            segments,
        })
    }

    fn content(&self, segment: &Segment) -> &'a [u8] {
        let range = || {
            let start = usize::try_from(segment.offset).ok()?;
            self.bytes
                .get(start..start.checked_add(usize::try_from(segment.file_bytes).ok()?)?)
        };
        range().unwrap_or_default()
    }

    /// The file's bytes from what will be at `address` to the end of its segment.
    fn at_address(&self, address: u64) -> Option<&'a [u8]> {
        self.segments
            .iter()
            .filter(|s| s.kind == PT_LOAD)
            .find_map(|s| {
                let within = address
                    .checked_sub(s.address)
                    .filter(|within| *within < s.file_bytes)?;
                self.content(s).get(usize::try_from(within).ok()?..)
            })
    }

    /// As the loader finds it: by the address in the last header of its kind, and from there to its end mark. Without one
    /// nothing of it counts.
    fn dynamic(&self) -> Dynamic {
        let read = || {
            let segment = self.segments.iter().rfind(|s| s.kind == PT_DYNAMIC)?;
            let mut pairs = Vec::new();
            let entries = self.at_address(segment.address)?.chunks_exact(16);
            for entry in entries.take(ENTRIES) {
                match (u64_at(entry, 0)?, u64_at(entry, 8)?) {
                    (0, _) => return Some(Dynamic(pairs)),
                    pair => pairs.push(pair),
                }
            }
            None
        };
        read().unwrap_or(Dynamic(Vec::new()))
    }

    /// To the end of its segment: the loader does not look at how long it is said to be.
    fn strings(&self, dynamic: &Dynamic) -> Option<&'a [u8]> {
        self.at_address(dynamic.get(DT_STRTAB)?)
    }

    fn name(strings: &[u8], at: u64) -> Option<&[u8]> {
        let rest = strings.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(NAME_BYTES).position(|b| *b == 0)?;
        rest.get(..end)
    }

    /// A name that cannot be read is one all the same.
    fn dynamic_name(&self, dynamic: &Dynamic, at: u64) -> String {
        let strings = self.strings(dynamic);
        let name = strings.and_then(|strings| Self::name(strings, at));
        name.map_or_else(
            || "(a name that lies outside the file)".to_owned(),
            |name| String::from_utf8_lossy(name).into_owned(),
        )
    }

    /// Is `wanted` defined, as a data object? Looked up as the loader does, by the hash table.
    fn defines_data(&self, dynamic: &Dynamic, wanted: &[u8]) -> bool {
        let look = || {
            let strings = self.strings(dynamic)?;
            let symbols = self.at_address(dynamic.get(DT_SYMTAB)?)?;
            let is_it = |index: u32| {
                let at = u64::from(index) * 24;
                let symbol = get::<24>(symbols, at)?;
                let named = Self::name(strings, u64::from(u32_at(&symbol, 0)?)) == Some(wanted);
                Some(named && self.is_entry(&symbol)?)
            };
            if let Some(address) = dynamic.get(DT_GNU_HASH) {
                return Some(gnu_hash(self.at_address(address)?, wanted, is_it).unwrap_or(false));
            }
            let table = self.at_address(dynamic.get(DT_HASH)?)?;
            let count = u32_at(table, 4)?;
            Some((1..count).map_while(is_it).any(|it| it))
        };
        look().unwrap_or(false)
    }

    /// May this symbol be read as an entry? One that the loader passes over, whose value is no address in the file, or that
    /// ends where nothing is mapped may not.
    fn is_entry(&self, symbol: &[u8; 24]) -> Option<bool> {
        let is_seen = [STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE].contains(&(symbol[4] >> 4));
        let is_here = (1..SHN_LORESERVE).contains(&u16_at(symbol, 6)?);
        let start = u64_at(symbol, 8)?;
        let end = start.checked_add(size_of::<abi::EntryV1>() as u64)?;
        let is_mapped = self.segments.iter().any(|s| {
            let ends = s.address.saturating_add(s.memory_bytes);
            s.kind == PT_LOAD && s.flags & PF_R != 0 && s.address <= start && end <= ends
        });
        Some(symbol[4] & 0xf == STT_OBJECT && is_seen && is_here && is_mapped)
    }

    fn notes(&self) -> impl Iterator<Item = RawNote<'a>> {
        let segments = self.segments.iter().filter(|s| s.kind == PT_NOTE);
        // Each of them may be all of the file.
        segments.flat_map(|s| Notes(self.content(s))).take(ENTRIES)
    }

    fn note(&self) -> Option<Note> {
        self.notes().find_map(|note| skillgate_note(&note))
    }

    /// Has it what Go's linker writes: a build id, which `-ldflags=-buildid=` leaves out, or the mark of the build's
    /// information, by which Go itself knows its programs?
    fn is_go(&self) -> bool {
        const BUILD_ID: u32 = 4;
        let has_id = |note: RawNote<'_>| note.owner == b"Go\0\0" && note.kind == BUILD_ID;
        self.notes().any(has_id) || self.has_go_information()
    }

    fn has_go_information(&self) -> bool {
        const MARK: &[u8] = b"\xff Go buildinf:";
        /// Addresses of the mark are multiples of it.
        const ALIGNED: usize = 16;
        let mut loaded = self.segments.iter().filter(|s| s.kind == PT_LOAD);
        loaded.any(|s| {
            let from = usize::try_from(s.address.wrapping_neg() % ALIGNED as u64).ok();
            let content = from.and_then(|from| self.content(s).get(from..));
            let mut pieces = content.unwrap_or_default().chunks(ALIGNED);
            pieces.any(|piece| piece.starts_with(MARK))
        })
    }
}

fn gnu_hash(table: &[u8], name: &[u8], is_it: impl Fn(u32) -> Option<bool>) -> Option<bool> {
    let hash = name.iter().fold(5381_u32, |h, b| {
        h.wrapping_mul(33).wrapping_add(u32::from(*b))
    });
    let (buckets, first, bloom) = (u32_at(table, 0)?, u32_at(table, 4)?, u32_at(table, 8)?);
    let bucket_table = 16 + u64::from(bloom) * 8;
    let chains = bucket_table + u64::from(buckets) * 4;
    let mut index = u32_at(
        table,
        bucket_table + u64::from(hash.checked_rem(buckets)?) * 4,
    )?;
    if index < first {
        return Some(false);
    }
    loop {
        let link = u32_at(table, chains + u64::from(index - first) * 4)?;
        if link | 1 == hash | 1 && is_it(index)? {
            return Some(true);
        }
        if link & 1 == 1 {
            return Some(false);
        }
        index = index.checked_add(1)?;
    }
}

/// One note of a segment of them.
struct RawNote<'a> {
    /// With its NUL.
    owner: &'a [u8],
    kind: u32,
    desc: &'a [u8],
}

/// Notes are {namesz, descsz, type}, the name, the description, each padded to 4 bytes. Ends where they make no sense.
struct Notes<'a>(&'a [u8]);

impl<'a> Iterator for Notes<'a> {
    type Item = RawNote<'a>;

    fn next(&mut self) -> Option<RawNote<'a>> {
        let notes = self.0;
        let (name_bytes, desc_bytes, kind) =
            (u32_at(notes, 0)?, u32_at(notes, 4)?, u32_at(notes, 8)?);
        let name_end = 12_usize.checked_add(usize::try_from(name_bytes).ok()?)?;
        let desc_start = name_end.checked_next_multiple_of(4)?;
        let desc_end = desc_start.checked_add(usize::try_from(desc_bytes).ok()?)?;
        let (owner, desc) = (notes.get(12..name_end)?, notes.get(desc_start..desc_end)?);
        // The last one may lack its padding.
        let next = desc_end.checked_next_multiple_of(4)?;
        self.0 = notes.get(next..).unwrap_or_default();
        Some(RawNote { owner, kind, desc })
    }
}

fn skillgate_note(note: &RawNote<'_>) -> Option<Note> {
    let desc = note.desc;
    if note.owner != b"SkillGate\0"
        || note.kind != abi::NOTE_TYPE
        || u32_at(desc, 0) != Some(abi::MAGIC)
    {
        return None;
    }
    // A compiler fills the last byte too when the id is longer, and some say nothing of it.
    let id = desc.get(20..20 + NOTE_ID_BYTES)?;
    let id = id.split(|b| *b == 0).next().unwrap_or_default();
    Some(Note {
        id: String::from_utf8_lossy(id).into_owned(),
        abi_major: u32_at(desc, 4)?,
        abi_minor: u32_at(desc, 8)?,
        min_host_minor: u32_at(desc, 12)?,
        flags: u32_at(desc, 16)?,
    })
}
