//! An error with all that lies below it.

use std::error::Error;

/// Its text and those of its sources, which the two formats of the log write differently, or not at all. What an error has of
/// its source in its own text is not said again.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let below = source.to_string();
        if !text.contains(&below) {
            text = format!("{text}: {below}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("the store failed")]
        Silent(#[source] io::Error),
        #[error("the store failed: {0}")]
        Said(#[source] io::Error),
        #[error("the run was not started")]
        Outer(#[source] Box<Failed>),
    }

    #[test]
    fn each_is_said_once() {
        let disk = || io::Error::other("no disk");
        for inner in [Failed::Silent(disk()), Failed::Said(disk())] {
            assert_eq!(with_sources(&inner), "the store failed: no disk");
            let outer = Failed::Outer(Box::new(inner));
            let whole = "the run was not started: the store failed: no disk";
            assert_eq!(with_sources(&outer), whole);
        }
    }
}
