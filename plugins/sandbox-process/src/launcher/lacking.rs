//! Which child a domain lacks: what the plugin needs, beside the children that have no run yet.

use crate::wire::PoolNeeds;

/// What a child is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any run without network.
    Plain,
    /// A run without network that wants the usual mounts.
    Furnished,
    /// A run with network.
    Connected,
}

/// The children of a domain that have no run yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct There {
    /// Without network, of whichever kind.
    pub(super) ahead: u32,
    pub(super) plain: u32,
    /// With what is the usual now.
    pub(super) furnished: u32,
    pub(super) connected: u32,
}

/// Which kind of child is lacking. Runs that wait come before those that are still to come, with and without network in turns:
/// whoever calls with network again and again, which always waits, keeps nobody else from a child. `connected_last`: what was
/// ordered last was for one with network.
pub(super) fn lacks(
    needs: &PoolNeeds,
    there: There,
    ahead_max: u32,
    connected_last: bool,
) -> Option<Kind> {
    let [waiting, connected] = needs.waiting;
    // One that has mounts may not be for those who wait.
    let plain_waits = there.plain < waiting;
    // What a run with network needs is made for it.
    if there.connected < connected && !(plain_waits && connected_last) {
        return Some(Kind::Connected);
    }
    if plain_waits {
        return Some(Kind::Plain);
    }
    let wanted = needs.ahead.min(ahead_max).saturating_add(waiting);
    let kind = if there.furnished < needs.furnishing.children {
        Kind::Furnished
    } else {
        Kind::Plain
    };
    (there.ahead < wanted).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Furnishing;

    #[test]
    fn who_waits_comes_first_and_then_those_who_are_still_to_come() {
        let needs = |ahead, waiting, children| PoolNeeds {
            ahead,
            waiting,
            furnishing: Furnishing {
                children,
                ..Furnishing::default()
            },
            ..PoolNeeds::default()
        };
        let there = |plain, furnished, connected| There {
            ahead: plain + furnished,
            plain,
            furnished,
            connected,
        };
        let (plain, furnished) = (Some(Kind::Plain), Some(Kind::Furnished));
        for (needs, there, expected) in [
            (needs(4, [0, 0], 0), there(3, 0, 9), plain),
            (needs(4, [0, 0], 0), there(4, 0, 0), None),
            (needs(4, [1, 0], 0), there(4, 0, 0), plain),
            (needs(4, [0, 0], 3), there(0, 0, 0), furnished),
            (needs(4, [0, 0], 3), there(0, 3, 0), plain),
            (needs(4, [0, 0], 3), there(4, 0, 0), None),
            (needs(4, [2, 0], 3), there(1, 0, 0), plain),
            (needs(4, [2, 0], 3), there(2, 0, 0), furnished),
            // All that there may be are for others.
            (needs(4, [1, 0], 3), there(0, 9, 0), plain),
            (needs(4, [1, 1], 3), there(0, 9, 0), Some(Kind::Connected)),
            (needs(9, [0, 0], 9), there(0, 5, 0), None),
        ] {
            for last in [false, true] {
                // For one with network there is one of the other kind in between.
                let expected = match expected {
                    Some(Kind::Connected) if last => plain,
                    other => other,
                };
                let lacking = lacks(&needs, there, 5, last);
                assert_eq!(lacking, expected, "{needs:?} {there:?} {last}");
            }
        }
        // Where nobody else waits there are no turns.
        let (needs, there) = (needs(9, [0, 2], 0), there(0, 0, 1));
        assert_eq!(lacks(&needs, there, 5, true), Some(Kind::Connected));
    }
}
