//! Against the simplest way to find values: each form looked for at each byte.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// Of few different pieces, so that values repeat themselves and overlap with each other.
fn value(random: &mut StdRng) -> String {
    let pieces = ["a", "b", "ab", "é", "🙂", "\n", "\"", "\\", "/", "+", " "];
    let pieces = &pieces[..random.random_range(2..=pieces.len())];
    let all = (0..random.random_range(8..14)).map(|_| *pieces.choose(random).unwrap());
    all.collect()
}

/// Forms, and what they begin and end with.
fn text(random: &mut StdRng, forms: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..random.random_range(1..5) {
        let form = forms.choose(random).unwrap();
        let at = form.floor_char_boundary(random.random_range(0..=form.len()));
        text.push_str(match random.random_range(0..5) {
            0 => "…x",
            1 => &form[..at],
            2 => &form[at..],
            _ => form,
        });
    }
    text
}

/// The text with `\0` for all that follows on each other of what the forms cover.
fn without(forms: &[String], text: &str) -> String {
    let mut covered = vec![false; text.len()];
    for form in forms {
        for at in (0..text.len()).filter(|at| text.as_bytes()[*at..].starts_with(form.as_bytes())) {
            covered[at..at + form.len()].fill(true);
        }
    }
    let left = text.char_indices();
    let left: String = left
        .map(|(at, c)| if covered[at] { '\0' } else { c })
        .collect();
    squeezed(left)
}

fn squeezed(mut text: String) -> String {
    while text.contains("\0\0") {
        text = text.replace("\0\0", "\0");
    }
    text
}

#[test]
fn no_form_is_left_and_nothing_else_is_lost() {
    let mut random = StdRng::seed_from_u64(1975);
    let mut found = 0;
    for _ in 0..20 {
        let values = [value(&mut random), value(&mut random)];
        let redactor = redactor(&[("K", &values[0]), ("L", &values[1])]);
        let forms: Vec<String> = values
            .iter()
            .flat_map(|value| forms(value))
            .map(|form| String::from_utf8(form.to_vec()).unwrap())
            .collect();
        let marks = |text: &str| {
            let text = text.replace("[secret K]", "\0");
            squeezed(text.replace("[secret L]", "\0"))
        };
        for _ in 0..15 {
            let text = format!(".{}", text(&mut random, &forms));
            let wanted = without(&forms, &text);
            found += usize::from(wanted.contains('\0'));
            let context = format!("{text:?} with {values:?}");
            assert_eq!(marks(&redactor.uncut(&text)), wanted, "{context}");
            let mut search = Search::new(redactor.clone());
            search.push(text.as_bytes());
            assert!(search.found() || !wanted.contains('\0'), "{context}");
            // What may have been begun at the end is covered too.
            let size = random.random_range(1..=text.len());
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let streamed = marks(&streamed(&redactor, &pieces));
            let before_end = streamed.strip_suffix('\0').unwrap_or(&streamed);
            assert!(
                streamed == wanted || wanted.starts_with(before_end),
                "{context} in pieces of {size}: {streamed:?}"
            );
        }
    }
    assert!(found > 200, "{found}");
}
