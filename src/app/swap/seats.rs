//! Which names of sandboxes' instances are in use.

use std::sync::{Arc, Mutex};

use super::lock;

/// Sandboxes that exist at once: the one in use, and old ones whose runs go on.
pub(super) const SANDBOXES_MAX: usize = 8;

/// Which names of sandboxes' instances are in use. A name is given again when the one before has ended: an instance removes
/// what an earlier life under its name has left behind.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<[bool; SANDBOXES_MAX]>);

/// A name, until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    of: Arc<Seats>,
    number: usize,
}

impl Seats {
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = lock(&self.0);
        let number = taken.iter().position(|taken| !taken)?;
        taken[number] = true;
        Some(Seat {
            of: Arc::clone(self),
            number,
        })
    }
}

impl Seat {
    pub(super) fn instance(&self) -> String {
        instance(self.number)
    }
}

pub(super) fn instance(number: usize) -> String {
    match number {
        0 => "sandbox".to_owned(),
        n => format!("sandbox-{}", n + 1),
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.of.0)[self.number] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_have_names_of_their_own_and_there_are_so_many() {
        let seats = Arc::new(Seats::default());
        let mut taken: Vec<Seat> = (0..SANDBOXES_MAX).map(|_| seats.take().unwrap()).collect();
        let names: Vec<String> = taken.iter().map(Seat::instance).collect();
        assert_eq!(
            (names[0].as_str(), names[7].as_str()),
            ("sandbox", "sandbox-8")
        );
        assert!(seats.take().is_none());
        assert!(
            super::super::no_seat()
                .to_string()
                .contains("8 sandboxes still have runs")
        );
        drop(taken.remove(2));
        assert_eq!(seats.take().unwrap().instance(), "sandbox-3");
    }
}
