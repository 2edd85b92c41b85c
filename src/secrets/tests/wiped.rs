//! Values that nobody has any more: nothing of them is left in the memory of the process.

use std::any::Any;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use zeroize::Zeroizing;

use super::super::provider;
use super::*;

const BYTES: usize = 4096;
/// Pieces that begin at these bytes are looked for: what moves while it grows leaves its beginning behind. At most one of them lies
/// across the border of two pages.
const PLACES: [usize; 3] = [100, 1000, 3000];
const PIECE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// One of a text that is written down nowhere: who looks for it has no copy of it, to be found in the place of the value.
fn byte(at: usize) -> u8 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"[(mixed >> 32) as usize % 32]
}

/// As [`byte`], of the value in hexadecimal digits.
fn digit(at: usize) -> u8 {
    let byte = byte(at / 2);
    let half = match at % 2 {
        0 => byte >> 4,
        _ => byte & 15,
    };
    b"0123456789abcdef"[usize::from(half)]
}

fn value() -> Zeroizing<String> {
    let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
    Zeroizing::new(String::from_utf8(bytes).unwrap())
}

/// What the memory of this process is read into, always the same: it may be left with what was found.
struct Look(Vec<u8>);

impl Look {
    /// Whether a piece of the value is somewhere, as itself or in hexadecimal digits.
    fn finds_it(&mut self) -> bool {
        self.0.fill(0);
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        for place in maps.lines().filter(|line| line.contains(" rw")) {
            let (begin, end) = place.split_once(' ').unwrap().0.split_once('-').unwrap();
            let (mut at, end) = (number(begin), number(end));
            while at < end {
                let room = self.0.len().min((end - at) as usize);
                let chunk = &mut self.0[..room];
                chunk.fill(0);
                // A page that nobody can read nobody has written.
                let read = memory.read_at(chunk, at).unwrap_or(0).max(PAGE_BYTES);
                if chunk.chunks(PAGE_BYTES).any(has_a_piece) {
                    return true;
                }
                at += read as u64;
            }
        }
        false
    }
}

fn has_a_piece(page: &[u8]) -> bool {
    if page.iter().step_by(PIECE_BYTES / 2).all(|byte| *byte == 0) {
        return false;
    }
    let of: [fn(usize) -> u8; 2] = [byte, digit];
    let mut begins = [false; 256];
    for of in of {
        for place in PLACES {
            begins[usize::from(of(place))] = true;
        }
    }
    let is_it = |piece: &[u8]| {
        let is = |of: fn(usize) -> u8, place| piece.iter().zip(place..).all(|(b, at)| *b == of(at));
        let somewhere = |of| PLACES.iter().any(|place| is(of, *place));
        begins[usize::from(piece[0])] && of.into_iter().any(somewhere)
    };
    page.windows(PIECE_BYTES).any(is_it)
}

/// In a process where nobody else has memory to be looked through.
#[test]
fn values_are_gone_with_who_had_them() {
    let tested = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "secrets::tests::wiped::alone", "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&tested.stdout);
    assert!(
        tested.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
#[ignore = "values_are_gone_with_who_had_them starts it"]
fn alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("API_KEY"), value().as_bytes()).unwrap();
    let config = config(&format!("provider = \"dir\"\ndir = {:?}", dir.path()), &[]);
    let mut look = Look(vec![0; 1 << 20]);
    assert!(!look.finds_it(), "nobody has it");
    type Have<'a> = &'a dyn Fn() -> Box<dyn Any>;
    let haves: [(&str, Have); 5] = [
        ("a value", &|| Box::new(Secret(Arc::new(value())))),
        ("a value of a file", &|| {
            Box::new(provider::read(&config).unwrap())
        }),
        ("its forms", &|| Box::new(forms(&value()))),
        ("who looks for it", &|| {
            Box::new(redactor(&[("API_KEY", &value())]))
        }),
        ("what is held back", &|| {
            let mut stream = Stream::new(redactor(&[("API_KEY", &value())]));
            // It may go on.
            for piece in value().as_bytes()[..BYTES - 1].chunks(1111) {
                stream.push(piece, &mut |_| ());
            }
            assert_eq!(stream.held_bytes(), BYTES - 1);
            Box::new(stream)
        }),
    ];
    for (what, have) in haves {
        let had = have();
        assert!(look.finds_it(), "{what}");
        drop(had);
        assert!(!look.finds_it(), "{what} has left some of it");
    }
}
