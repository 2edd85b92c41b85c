//! Texts that nobody would write on purpose.

use super::*;

/// A small generator of numbers (SplitMix64): the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % end.max(1) as u64).unwrap()
    }
}

#[test]
fn no_text_makes_it_panic_and_every_refusal_says_why() {
    let scraps = [
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "=",
        ".",
        ",",
        "\n",
        "#",
        "-",
        "0",
        "9223372036854775808",
        "1e400",
        "nan",
        "true",
        "[[rate_limit]]",
        "[auth]",
        "\u{e9}",
        "\u{1f980}",
        "\0",
        "\r",
        "\\u0000",
        "1979-05-27",
        "\"\"",
        "\u{feff}",
    ];
    // Without the comments, so that more of the mutations meet what is read.
    let bare = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with("# "))
            .map(|l| format!("{l}\n"))
            .collect()
    };
    let seeds: [String; 2] = [bare(DEFAULT_TOML), bare(&default_with_examples())];
    let mut numbers = Numbers(2024);
    for round in 0..1500 {
        let mut text: Vec<char> = seeds[round % 2].chars().collect();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(text.len());
            let end = (at + numbers.below(12)).min(text.len());
            text.splice(at..end, scraps[numbers.below(scraps.len())].chars());
        }
        let text: String = text.into_iter().collect();
        match load(&text) {
            Ok(config) => assert!(!config.show(true).is_empty()),
            Err(errors) => {
                assert!(!errors.problems.is_empty(), "{text}");
                assert!(
                    errors
                        .problems
                        .iter()
                        .all(|problem| !problem.message.is_empty()),
                    "{text}"
                );
                assert_eq!(
                    errors.to_string().lines().count(),
                    errors.problems.len(),
                    "one line each: {errors}"
                );
            }
        }
        let piece: String = text
            .chars()
            .skip(numbers.below(text.len()))
            .take(40)
            .collect();
        let variables = [
            ("SKILLGATE_RATE_LIMIT", &*piece),
            ("SKILLGATE_PLUGINS__SANDBOX__CONFIG", &*piece),
        ];
        let _ = load_env(&variables).map(|config| config.show(true));
    }
}

#[test]
fn deep_and_wide_texts_are_answered() {
    let wide = (0..60_000)
        .map(|i| format!("k{i} = {i}\n"))
        .collect::<String>();
    let deep_list = "a = ".to_owned() + &"[".repeat(60_000);
    let deep_key = "[".to_owned() + &"a.".repeat(60_000) + "a]";
    // Each list and each key is one that the parser takes.
    let table = format!("a{} = {{ ", ".a".repeat(20));
    let deep_tables = table.repeat(40) + "b = 1" + &" }".repeat(40);
    let deep_config = format!("[plugins.sandbox.config]\n{deep_tables}");
    for text in [wide, deep_list, deep_key, deep_tables, deep_config] {
        let errors = load(&text).unwrap_err();
        assert!((1..=100).contains(&errors.problems.len()));
        let _ = load_env(&[("SKILLGATE_PLUGINS__SANDBOX__CONFIG", &text)]);
    }
    // As long as Linux lets a variable be.
    let deep = format!("SKILLGATE_PLUGINS{}", "__A".repeat(40_000));
    let deeper = format!("{deep}__A");
    assert!(load_env(&[(&deep, "1"), (&deeper, "1")]).is_err());
}
