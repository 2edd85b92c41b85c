//! What a run printed, kept in bounded memory: the beginning and the end.

use std::collections::VecDeque;

use super::LOGS_BYTES_MAX;

/// Keeps the first and the last bytes of a stream of any length.
#[derive(Debug, Default)]
pub(super) struct Logs {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// Of an overlong log, how much is its beginning: what ends a run (a traceback) is at the end, where it began is at
/// the beginning, and the end says more.
const HEAD_BYTES: usize = LOGS_BYTES_MAX / 4;

impl Logs {
    /// Appends.
    pub(super) fn push(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let room = LOGS_BYTES_MAX - self.head.len();
        let (first, rest) = data.split_at(data.len().min(room));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(LOGS_BYTES_MAX)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(LOGS_BYTES_MAX);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// At most [`LOGS_BYTES_MAX`] bytes of text, cut between characters, and whether something is missing.
    pub(super) fn preview(&self) -> (String, bool) {
        let whole = String::from_utf8_lossy(&self.head);
        // A byte that is no UTF-8 becomes a sign of three bytes, so also a short log may be over.
        if self.total <= LOGS_BYTES_MAX as u64 && whole.len() <= LOGS_BYTES_MAX {
            return (whole.into_owned(), false);
        }
        let marker = |missing: u64| format!("\n[... {missing} bytes cut ...]\n");
        let tail_room = LOGS_BYTES_MAX - HEAD_BYTES - marker(u64::MAX).len();
        let all: Vec<u8> = self.head.iter().chain(&self.tail).copied().collect();
        let head = String::from_utf8_lossy(&all[..all.len().min(HEAD_BYTES)]);
        let head = head.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let head = &head[..head.floor_char_boundary(HEAD_BYTES)];
        let tail = String::from_utf8_lossy(&all[all.len().saturating_sub(tail_room)..]);
        let tail = tail.trim_start_matches(char::REPLACEMENT_CHARACTER);
        let tail = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(tail_room))..];
        let missing = self.total.saturating_sub((head.len() + tail.len()) as u64);
        (format!("{head}{}{tail}", marker(missing)), true)
    }
}

#[cfg(test)]
mod tests {
    use super::{LOGS_BYTES_MAX, Logs};

    fn preview(pieces: &[&[u8]]) -> (String, bool) {
        let mut logs = Logs::default();
        for piece in pieces {
            logs.push(piece);
        }
        logs.preview()
    }

    #[test]
    fn short_logs_are_whole() {
        assert_eq!(preview(&[b"a\n", b"b\n"]), ("a\nb\n".into(), false));
        let exact = "x".repeat(LOGS_BYTES_MAX);
        assert_eq!(preview(&[exact.as_bytes()]), (exact.clone(), false));
    }

    #[test]
    fn long_logs_keep_both_ends_and_whole_characters() {
        for letter in ["x", "é", "漢", "🙂"] {
            for extra in 1..9 {
                let long = format!(
                    "start{}end",
                    letter.repeat(LOGS_BYTES_MAX / letter.len() + extra * 700)
                );
                for size in [1, 7, 100_000] {
                    let pieces: Vec<&[u8]> = long.as_bytes().chunks(size).collect();
                    let (text, cut) = preview(&pieces);
                    assert!(cut && text.len() <= LOGS_BYTES_MAX, "{} bytes", text.len());
                    assert!(
                        text.starts_with("start")
                            && text.ends_with("end")
                            && text.contains("bytes cut")
                    );
                    assert!(!text.contains(char::REPLACEMENT_CHARACTER));
                }
            }
        }
    }

    #[test]
    fn noise_stays_bounded() {
        let mut logs = Logs::default();
        for _ in 0..1000 {
            logs.push(&[0xff; 10_000]);
        }
        let (text, cut) = logs.preview();
        assert!(cut && text.len() <= LOGS_BYTES_MAX);
        let (text, cut) = preview(&[&[0xff; LOGS_BYTES_MAX]]);
        assert!(
            cut && text.len() <= LOGS_BYTES_MAX,
            "every byte becomes three"
        );
    }
}
