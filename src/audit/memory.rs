//! Where the chain ended, remembered beside the log: a start that does not find the file goes on from there. Else its numbers
//! would begin again, and with them the names of full files, under which somebody has put the ones before elsewhere.
//!
//! It is written with the first record of a start and of each further file, and at the end. What was written at the end is where the chain ends; what
//! was written before is a record that it has at least. Whoever can write the log can write this: it is believed where there is
//! no file, and never instead of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chain::{Hash, Head, is_hash};
use super::file::{MODE, Names, check_regular, sync_dir};

/// It is much shorter.
const BYTES_MAX: u64 = 4096;
/// Where nobody knows how many records there were, the next is the one behind the next multiple of this: more than a gateway
/// writes in its life, so that no number and no name of a file is there twice. 9000 such steps are exact as a double.
const STEP: u64 = 1_000_000_000_000;
/// No record has this number, or one behind it: from any below it on there are more than a gateway writes, and two steps.
pub(super) const SEQUENCE_MAX: u64 = u64::MAX - 3 * STEP;

/// What is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Memory {
    sequence: u64,
    hash: Hash,
    /// There is no record behind it: the gateway was stopped.
    is_last: bool,
}

impl Memory {
    pub(super) fn of(head: &Head, is_last: bool) -> Memory {
        Memory {
            sequence: head.sequence,
            hash: head.hash.clone(),
            is_last,
        }
    }

    /// What is remembered of this log; none: nothing.
    pub(super) fn read(names: &Names) -> io::Result<Option<Memory>> {
        let path = names.memory();
        check_regular(&path)?;
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        let memory: Memory = serde_json::from_slice(&text)?;
        if !(1..SEQUENCE_MAX).contains(&memory.sequence) || !is_hash(memory.hash.as_bytes()) {
            return Err(io::Error::other("it names no record"));
        }
        Ok(Some(memory))
    }

    /// All of it or none, also after a power cut.
    pub(super) fn write(&self, names: &Names) -> io::Result<()> {
        let path = names.memory();
        let new = path.with_added_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(MODE).open(&new)?;
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        sync_dir(&names.dir)
    }

    /// What is there is not true any more, and what is could not be written.
    pub(super) fn forget(names: &Names) {
        // Where this fails, too, a warning was given that it cannot be written.
        let _ = fs::remove_file(names.memory());
    }
}

/// What was at the log's name at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    Absent,
    /// As `logrotate` leaves it with `create`, or a start that failed.
    Empty,
    Written,
}

/// What the log has to say of itself because its file is not what is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) reason: &'static str,
    /// The log had this record, and the record that says so does not follow it.
    pub(super) had_at_least: Option<u64>,
}

impl Lack {
    /// For the `started` record.
    pub(super) fn members(&self) -> Vec<(&'static str, Value)> {
        let mut members = vec![("reason", self.reason.into())];
        members.extend(self.had_at_least.map(|had| ("had_at_least", had.into())));
        members
    }
}

/// Where the chain goes on. `files` is where it ends in the files that are there.
pub(super) fn goes_on(was: Was, files: Head, memory: Option<Memory>) -> (Head, Option<Lack>) {
    let Some(memory) = memory else {
        return (files, None);
    };
    if files.sequence >= memory.sequence {
        return (files, None);
    }
    let reason = match was {
        Was::Absent => "the file was not there",
        Was::Empty => "the file was empty",
        Was::Written => "the file has fewer records than it had",
    };
    let lack = |had_at_least| {
        Some(Lack {
            reason,
            had_at_least,
        })
    };
    if was == Was::Written {
        return (files, lack(Some(memory.sequence)));
    }
    if memory.is_last {
        let head = Head {
            sequence: memory.sequence,
            hash: memory.hash,
        };
        return (head, lack(None));
    }
    let head = Head {
        sequence: (memory.sequence / STEP + 1) * STEP,
        // What it followed is not known, and it must not look as if it were.
        ..Head::genesis()
    };
    (head, lack(Some(memory.sequence)))
}

#[cfg(test)]
mod tests {
    use super::{Lack, Memory, STEP, Was, goes_on};
    use crate::audit::chain::Head;

    fn head(sequence: u64) -> Head {
        Head {
            sequence,
            hash: format!("{sequence:064}"),
        }
    }

    #[test]
    fn a_chain_goes_on_where_it_ended_or_leaves_a_gap() {
        let last = |sequence| Some(Memory::of(&head(sequence), true));
        let some = |sequence| Some(Memory::of(&head(sequence), false));
        // `Err`: the record that the log had at least, and a step behind it.
        for (was, files, memory, expected, had) in [
            // Nothing is remembered, or nothing new: a first start, a program without a memory before, or full files that are newer.
            (Was::Absent, 0, None, Ok(0), None),
            (Was::Absent, 7, None, Ok(7), None),
            (Was::Absent, 7, last(7), Ok(7), None),
            (Was::Absent, 7, last(5), Ok(7), None),
            // It was stopped, and the file taken away; or that and the full ones.
            (Was::Absent, 7, last(9), Ok(9), None),
            (Was::Absent, 0, last(9), Ok(9), None),
            (Was::Empty, 7, last(9), Ok(9), None),
            // It was killed. At 7 the last file was full, and of the next one the first record at least is known.
            (Was::Absent, 0, some(9), Err(1), Some(9)),
            (Was::Absent, 7, some(8), Err(1), Some(8)),
            (Was::Empty, 7, some(8), Err(1), Some(8)),
            // Or it was just when that was full, or began with the one that is not there.
            (Was::Absent, 7, some(5), Ok(7), None),
            (Was::Empty, 7, some(7), Ok(7), None),
            // And once more, at the first record behind the step.
            (Was::Absent, 0, some(STEP + 1), Err(2), Some(STEP + 1)),
            // The file is there.
            (Was::Written, 9, last(9), Ok(9), None),
            (Was::Written, 99, some(9), Ok(99), None),
            (Was::Written, 99, last(9), Ok(99), None),
            (Was::Written, 7, last(9), Ok(7), Some(9)),
            (Was::Written, 7, some(9), Ok(7), Some(9)),
        ] {
            let case = format!("{was:?} {files} {memory:?}");
            let (found, lack) = goes_on(was, head(files), memory.clone());
            let expected = match expected {
                Ok(sequence) => head(sequence),
                Err(steps) => Head {
                    sequence: steps * STEP,
                    ..Head::genesis()
                },
            };
            let says = was == Was::Written && had.is_some()
                || was != Was::Written && expected != head(files);
            assert_eq!(found, expected, "{case}");
            assert_eq!(lack.is_some(), says, "{case}");
            let said = lack.and_then(|lack: Lack| lack.had_at_least);
            assert_eq!(said, had, "{case}");
        }
    }
}
