//! What others have written reaches the terminal as text, and never as what a terminal obeys or hides.

use skillgate_skill::text::is_deceptive;

use super::*;

#[test]
fn a_cell_has_all_that_prose_needs_and_nothing_that_deceives() {
    for c in '\0'..=char::MAX {
        let is_plain = c == '\t' || !is_deceptive(c);
        assert_eq!(
            plain(c.encode_utf8(&mut [0; 4])).starts_with(c),
            is_plain,
            "{c:?}"
        );
    }
}
