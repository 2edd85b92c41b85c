//! What a case's process has written to standard error before it ended: some of it for the row, all of it for the report.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Of words that are no sanitizer's this much is shown: the last of them.
const LAST_BYTES_MAX: usize = 400;
/// Of the whole so much is kept of its beginning, where a sanitizer says what it has found, and so much of its end.
const BEGINNING_BYTES_MAX: u64 = 48 << 10;
const END_BYTES_MAX: u64 = 16 << 10;
/// Of the stack of a sanitizer's finding: the allocator's own frame, and who called it.
const FRAMES: usize = 4;
/// Of one line of a finding.
const LINE_CHARS_MAX: usize = 300;

/// What was written there, cut in the middle when it is long.
pub(crate) fn written(file: &Path) -> String {
    // Nothing to be read is nothing said.
    read(file).unwrap_or_default()
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let size = file.metadata()?.len();
    let mut words = Vec::new();
    if size <= BEGINNING_BYTES_MAX + END_BYTES_MAX {
        file.take(size).read_to_end(&mut words)?;
        return Ok(String::from_utf8_lossy(&words).into_owned());
    }
    let left_out = size - BEGINNING_BYTES_MAX - END_BYTES_MAX;
    (&file).take(BEGINNING_BYTES_MAX).read_to_end(&mut words)?;
    words.extend_from_slice(format!("\n[{left_out} bytes are left out here]\n").as_bytes());
    file.seek(SeekFrom::Start(size - END_BYTES_MAX))?;
    file.take(END_BYTES_MAX).read_to_end(&mut words)?;
    Ok(String::from_utf8_lossy(&words).into_owned())
}

/// The end of it, on one line.
pub(crate) fn last(written: &str) -> String {
    let written = written.trim();
    let mut from = written.len().saturating_sub(LAST_BYTES_MAX);
    while !written.is_char_boundary(from) {
        from += 1;
    }
    written[from..].trim().replace('\n', " | ")
}

/// A sanitizer's finding: whose it is, and what of it says where to look: its headline, a few frames, its summary.
pub(crate) fn finding(written: &str) -> Option<(String, String)> {
    let mut lines = written.lines().map(str::trim);
    // "==12==ERROR: AddressSanitizer: heap-use-after-free on address ..."; ThreadSanitizer warns.
    let headline = lines.find(|line| {
        let finds = ["ERROR: ", "WARNING: "];
        finds.iter().any(|of| line.contains(of)) && sanitizer(line).is_some()
    })?;
    let rest: Vec<&str> = lines.collect();
    // The first stack alone: those behind it say who has allocated and freed.
    let frames = rest.iter().skip_while(|line| !line.starts_with('#'));
    let frames = frames.take_while(|line| line.starts_with('#')).take(FRAMES);
    let summary = rest.iter().find(|line| line.starts_with("SUMMARY: "));
    let parts = std::iter::once(&headline).chain(frames).chain(summary);
    let parts: Vec<String> = parts
        .map(|line| line.chars().take(LINE_CHARS_MAX).collect())
        .collect();
    Some((sanitizer(headline)?.to_owned(), parts.join(" | ")))
}

/// "AddressSanitizer" and its like, as a word of a line.
fn sanitizer(line: &str) -> Option<&str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    let mut named = words.filter(|word| word.len() > "Sanitizer".len());
    named.find(|word| word.ends_with("Sanitizer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASAN: &str = "debug\n=================================================================\n==71==ERROR: AddressSanitizer: heap-use-after-free on address 0x602 at pc 0x7f\nREAD of size 1 at 0x602 thread T0\n    #0 0x1 in commit /v/store.c:12\n    #1 0x2 in main\n    #2 0x3 in c\n    #3 0x4 in d\n    #4 0x5 in e\n\n0x602 is located 0 bytes inside of 5-byte region\nfreed by thread T0 here:\n    #0 0x9 in free\n\nSUMMARY: AddressSanitizer: heap-use-after-free /v/store.c:12 in commit\nShadow bytes around the buggy address:\n  0x0c047fff8000: fa fa\n==71==ABORTING\n";

    #[test]
    fn of_a_sanitizers_finding_the_headline_some_frames_and_the_summary_are_shown() {
        let (whose, found) = finding(ASAN).unwrap();
        assert_eq!(whose, "AddressSanitizer");
        let lines: Vec<_> = found.split(" | ").collect();
        assert!(lines[0].contains("heap-use-after-free on"), "{found}");
        assert_eq!(lines[1], "#0 0x1 in commit /v/store.c:12");
        assert_eq!(lines.len(), 1 + FRAMES + 1, "{found}");
        assert!(lines[5].starts_with("SUMMARY: Address"), "{found}");
        assert_eq!(finding("ERROR: cannot open\nmy Sanitizer is fine"), None);
    }

    #[test]
    fn a_long_text_is_cut_in_the_middle_and_its_last_words_are_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let long = format!("first{}last é", "x\n".repeat(200 << 10));
        std::fs::write(file.path(), &long).unwrap();
        let kept = written(file.path());
        assert!(kept.starts_with("first") && kept.ends_with("last é"));
        assert!(kept.contains("bytes are left out here") && kept.len() < 65 << 10);
        assert!(last(&kept).ends_with("x | last é") && last(&kept).len() < 3 * LAST_BYTES_MAX);
        assert_eq!(last(" a\nb \n"), "a | b");
        assert_eq!(written(Path::new("/no/such/file")), "");
    }
}
