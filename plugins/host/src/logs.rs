//! A plugin's log records as events of the gateway.

mod pace;

use std::sync::OnceLock;
use std::time::Instant;

use skillgate_plugin_abi as abi;

use crate::visible::{is_deceptive, on_one_line};
use pace::Fate;
pub(crate) use pace::Pace;

/// The target of every record that comes from a plugin: the metadata of an event is static. The plugin's own target is the
/// field `plugin_target`; in a record as JSON, `target` is this one.
const TARGET: &str = "skillgate::plugin";

/// Most bytes of a record's target, and of a field's name and value; what is longer is cut.
pub(crate) const TARGET_BYTES: usize = 256;
pub(crate) const KEY_BYTES: usize = 256;
pub(crate) const VALUE_BYTES: usize = 4096;
/// Most fields of a record.
pub(crate) const FIELDS_MAX: u32 = 64;
/// Most bytes of them together, as they are written: each with its `=` and a space.
pub(crate) const FIELDS_BYTES: usize = FIELDS_MAX as usize * (KEY_BYTES + VALUE_BYTES + 2);

macro_rules! at_level {
    ($level:expr, $macro:ident, $($rest:tt)+) => {
        match $level {
            abi::LOG_TRACE => tracing::$macro!(target: TARGET, tracing::Level::TRACE, $($rest)+),
            abi::LOG_DEBUG => tracing::$macro!(target: TARGET, tracing::Level::DEBUG, $($rest)+),
            abi::LOG_INFO => tracing::$macro!(target: TARGET, tracing::Level::INFO, $($rest)+),
            abi::LOG_WARN => tracing::$macro!(target: TARGET, tracing::Level::WARN, $($rest)+),
            _ => tracing::$macro!(target: TARGET, tracing::Level::ERROR, $($rest)+),
        }
    };
}

/// Where records go in a plugin's own process.
struct Elsewhere {
    least_level: u32,
    write: Box<dyn Fn(&Record<'_>) + Send + Sync>,
}

static ELSEWHERE: OnceLock<Elsewhere> = OnceLock::new();

/// From now on records of at least this level are given to `write`, and none is written here. For the process of a
/// plugin, once.
pub(crate) fn send_elsewhere(
    least_level: u32,
    write: impl Fn(&Record<'_>) + Send + Sync + 'static,
) {
    let elsewhere = Elsewhere {
        least_level,
        write: Box::new(write),
    };
    // The first one stays.
    drop(ELSEWHERE.set(elsewhere));
}

/// The least of the levels that are enabled; more than `LOG_ERROR`: none is.
pub(crate) fn least_level() -> u32 {
    let mut levels = abi::LOG_TRACE..=abi::LOG_ERROR;
    levels
        .find(|level| enabled(*level))
        .unwrap_or(abi::LOG_ERROR + 1)
}

pub(crate) fn enabled(level: u32) -> bool {
    if let Some(elsewhere) = ELSEWHERE.get() {
        return level >= elsewhere.least_level;
    }
    match level {
        abi::LOG_TRACE => tracing::enabled!(target: TARGET, tracing::Level::TRACE),
        abi::LOG_DEBUG => tracing::enabled!(target: TARGET, tracing::Level::DEBUG),
        abi::LOG_INFO => tracing::enabled!(target: TARGET, tracing::Level::INFO),
        abi::LOG_WARN => tracing::enabled!(target: TARGET, tracing::Level::WARN),
        _ => tracing::enabled!(target: TARGET, tracing::Level::ERROR),
    }
}

/// Adds a field to those of a record, as `key=value`. What would be read as more than one name or value is quoted. `false`:
/// there is no room for it.
pub(crate) fn add_field(fields: &mut String, key: &str, value: &str) -> bool {
    let before = fields.len();
    if !fields.is_empty() {
        fields.push(' ');
    }
    add_word(fields, key);
    fields.push('=');
    add_word(fields, value);
    let fits = fields.len() <= FIELDS_BYTES;
    if !fits {
        fields.truncate(before);
    }
    fits
}

fn add_word(fields: &mut String, word: &str) {
    let is_plain = |c: char| !c.is_whitespace() && !is_deceptive(c) && !matches!(c, '"' | '=');
    if word.chars().all(is_plain) {
        fields.push_str(word);
    } else {
        // Quotes leave some of what cannot be seen as it is.
        fields.push_str(&on_one_line(&format!("{word:?}")));
    }
}

/// One record, its texts already cut and made UTF-8. `fields` is `key=value key=value` ([`add_field`]): their names are the
/// plugin's, and an event's field names are static.
pub(crate) struct Record<'a> {
    pub(crate) level: u32,
    pub(crate) plugin: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) target: &'a str,
    pub(crate) run_id: &'a str,
    pub(crate) fields: &'a str,
    pub(crate) message: &'a str,
    /// The instance's.
    pub(crate) pace: &'a Pace,
}

pub(crate) fn write(r: &Record<'_>) {
    if let Some(elsewhere) = ELSEWHERE.get() {
        return (elsewhere.write)(r);
    }
    // Here, where it is written: a process of its own sends what it likes, and as much. The fields are texts, which the log quotes.
    let bytes = r.message.len() + r.fields.len();
    match r.pace.fate(bytes, Instant::now()) {
        Fate::Kept => {}
        Fate::Dropped(None) => return,
        Fate::Dropped(Some(records)) => {
            tracing::warn!(
                plugin = r.plugin,
                instance = r.instance,
                records,
                "a plugin logs more than it may: so many of its records are not kept"
            );
            return;
        }
    }
    at_level!(
        r.level,
        event,
        plugin = r.plugin,
        instance = r.instance,
        plugin_target = r.target,
        run_id = r.run_id,
        fields = r.fields,
        "{}",
        on_one_line(r.message)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever reads them from a process of its own takes no more.
    #[test]
    fn fields_that_grow_by_their_quotes_keep_to_their_room() {
        let value = "\u{1}".repeat(VALUE_BYTES);
        let mut fields = String::new();
        let fits = |_: &u32| add_field(&mut fields, "k", &value);
        let added = (0..FIELDS_MAX).take_while(fits).count();
        assert!((1..FIELDS_MAX as usize).contains(&added), "{added}");
        assert!(fields.len() <= FIELDS_BYTES, "{}", fields.len());
        assert_eq!(fields.matches("k=").count(), added);
    }

    #[test]
    fn a_field_is_one_name_and_one_value() {
        let mut fields = String::new();
        for (key, value) in [
            ("a", "b"),
            ("c d", "e=f"),
            ("g", "\u{202e}\"\n"),
            ("h", ""),
            ("i", "\u{3164}"),
        ] {
            assert!(add_field(&mut fields, key, value));
        }
        assert_eq!(
            fields,
            r#"a=b "c d"="e=f" g="\u{202e}\"\n" h= i="\u{3164}""#
        );
        // As long as they may be together, and one more.
        let rest = "x".repeat(FIELDS_BYTES - fields.len() - " j=".len());
        let before = fields.clone();
        assert!(!add_field(&mut fields, "j", &format!("{rest}x")));
        assert_eq!(fields, before);
        assert!(add_field(&mut fields, "j", &rest));
        assert_eq!(fields.len(), FIELDS_BYTES);
    }
}
