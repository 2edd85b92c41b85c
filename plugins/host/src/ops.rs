//! The table of ops in flight: handles, not pointers, so that a plugin that completes twice, late or at random is told
//! so (`SKG_E_STALE`) and does no harm.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};

use crate::sandbox::RunContext;

/// What the end of an op does: reads the answer, hands it to the caller, and says what `complete` returns. It owns
/// everything that the plugin may use until then.
pub(crate) type Done = Box<dyn FnOnce(Result<*const c_void>) -> i32 + Send>;

/// The low bits of an op are its place in the table plus one (so that no op is 0), the rest is a number that the process
/// never gives twice: an op of another instance or an earlier life is not found.
const PLACE_BITS: u32 = 16;
const MAX_IN_FLIGHT: usize = (1 << PLACE_BITS) - 1;
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    /// 0: free.
    op: abi::Op,
    cancelled: bool,
    done: Option<Done>,
    run: Option<Arc<RunContext>>,
}

#[derive(Default)]
pub(crate) struct OpTable(Mutex<Slots>);

impl OpTable {
    /// Nothing that can panic, and no plugin's or caller's code, runs under this lock.
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, run: Option<Arc<RunContext>>, done: Done) -> Result<abi::Op> {
        let mut table = self.lock();
        let place = match table.free.pop() {
            Some(place) => place,
            None if table.slots.len() < MAX_IN_FLIGHT => {
                table.slots.push(Slot::default());
                table.slots.len() - 1
            }
            None => {
                let message =
                    format!("{MAX_IN_FLIGHT} calls of this plugin are in flight, and no more fit");
                return Err(Error::new(abi::E_EXHAUSTED, message)
                    .not_executed()
                    .retryable(1000));
            }
        };
        let op = (NEXT.fetch_add(1, Ordering::Relaxed) << PLACE_BITS) | (place as u64 + 1);
        table.slots[place] = Slot {
            op,
            cancelled: false,
            done: Some(done),
            run,
        };
        Ok(op)
    }

    /// Ends an op: whoever gets its `Done` is the one who ends it.
    pub(crate) fn take(&self, op: abi::Op) -> Option<Done> {
        let mut table = self.lock();
        let place = place_of(op)?;
        let slot = table.slots.get_mut(place).filter(|slot| slot.op == op)?;
        let slot = std::mem::take(slot);
        table.free.push(place);
        // The run's services may be the last thing that holds something with a destructor: not under the lock.
        drop(table);
        slot.done
    }

    fn look<T>(&self, op: abi::Op, f: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let mut table = self.lock();
        table
            .slots
            .get_mut(place_of(op)?)
            .filter(|slot| slot.op == op)
            .map(f)
    }

    pub(crate) fn is_live(&self, op: abi::Op) -> bool {
        self.look(op, |_| ()).is_some()
    }

    /// Marks the op; `false` when it has ended.
    pub(crate) fn mark_cancelled(&self, op: abi::Op) -> bool {
        self.look(op, |slot| slot.cancelled = true).is_some()
    }

    /// `None` when the op has ended.
    pub(crate) fn is_cancelled(&self, op: abi::Op) -> Option<bool> {
        self.look(op, |slot| slot.cancelled)
    }

    /// What the run of this op may ask for, as long as it lasts.
    pub(crate) fn run(&self, op: abi::Op) -> Option<Arc<RunContext>> {
        self.look(op, |slot| slot.run.clone()).flatten()
    }
}

fn place_of(op: abi::Op) -> Option<usize> {
    usize::try_from(op & ((1 << PLACE_BITS) - 1))
        .ok()?
        .checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done() -> Done {
        Box::new(|_| abi::OK)
    }

    #[test]
    fn an_op_ends_once_and_its_number_is_never_used_again() {
        let table = OpTable::default();
        let first = table.insert(None, done()).unwrap();
        assert!(table.is_live(first));
        assert!(table.take(first).is_some());
        assert!(table.take(first).is_none());
        let second = table.insert(None, done()).unwrap();
        assert_ne!(first, second, "the place is used again, the number is not");
        assert!(table.take(first).is_none());
        assert!(table.is_live(second));
    }

    #[test]
    fn invented_ops_are_not_found() {
        let table = OpTable::default();
        let op = table.insert(None, done()).unwrap();
        for invented in [0, 1, op + 1, op ^ (1 << 40), u64::MAX] {
            assert!(table.take(invented).is_none(), "{invented}");
            assert!(!table.mark_cancelled(invented), "{invented}");
        }
        assert_eq!(table.is_cancelled(op), Some(false));
        assert!(table.mark_cancelled(op));
        assert_eq!(table.is_cancelled(op), Some(true));
    }

    #[test]
    fn another_instance_does_not_know_the_op() {
        let (a, b) = (OpTable::default(), OpTable::default());
        let op = a.insert(None, done()).unwrap();
        b.insert(None, done()).unwrap();
        assert!(b.take(op).is_none());
    }

    #[test]
    fn the_table_is_bounded() {
        let table = OpTable::default();
        for _ in 0..MAX_IN_FLIGHT {
            table.insert(None, done()).unwrap();
        }
        assert_eq!(
            table.insert(None, done()).unwrap_err().code,
            abi::E_EXHAUSTED
        );
    }
}
