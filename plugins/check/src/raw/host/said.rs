//! What a plugin says of itself. The gateway shows what of it can be read, and nothing of the rest, without a word.

use std::collections::BTreeMap;

use serde::Deserialize;
use skillgate_plugin_sdk::abi;

/// A layer of `skg_health.report_json`.
#[derive(Deserialize)]
struct Layer {
    layer: String,
    state: String,
    #[serde(default, rename = "detail")]
    _detail: String,
    #[serde(default, rename = "advice")]
    _advice: String,
}

/// The words for how a layer is.
const STATES: [&str; 3] = ["ok", "degraded", "missing"];

/// `skg_health.state`
pub(super) fn state(state: u32) -> Result<(), String> {
    if [abi::HEALTH_OK, abi::HEALTH_DEGRADED, abi::HEALTH_DOWN].contains(&state) {
        return Ok(());
    }
    Err(format!(
        "skg_health.state is {state}, which is none of SKG_HEALTH_*"
    ))
}

/// `skg_health.metrics_json`
pub(super) fn metrics(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let numbers = serde_json::from_str::<BTreeMap<String, f64>>(text);
    numbers.map(drop).map_err(|e| {
        format!("skg_health.metrics_json is no flat {{\"name\": number}}: {e}: {text:.200?}")
    })
}

/// `skg_health.report_json`
pub(super) fn report(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let layers: Vec<Layer> = serde_json::from_str(text)
        .map_err(|e| format!("skg_health.report_json is no list of layers: {e}: {text:.200?}"))?;
    match layers
        .iter()
        .find(|of| !STATES.contains(&of.state.as_str()))
    {
        None => Ok(()),
        Some(Layer { layer, state, .. }) => Err(format!(
            "skg_health.report_json: the layer {layer:?} is {state:?}, which is none of {}",
            STATES.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_shown_is_right() {
        for text in ["", "{}", r#"{"blob_bytes":0,"p99_ms":1.5,"debt":-1}"#] {
            assert_eq!(metrics(text), Ok(()), "{text}");
        }
        for text in [
            "[]",
            "1",
            r#"{"a":"1"}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":null}"#,
            "{",
        ] {
            let why = metrics(text).unwrap_err();
            assert!(why.contains("metrics_json is no flat"), "{text}: {why}");
        }
        for text in [
            "",
            "[]",
            r#"[{"layer":"seccomp","state":"ok","detail":"","advice":""},{"layer":"cgroup","state":"missing"}]"#,
        ] {
            assert_eq!(report(text), Ok(()), "{text}");
        }
        for (text, wrong) in [
            ("{}", "is no list of layers"),
            (r#"["seccomp"]"#, "is no list of layers"),
            (r#"[{"layer":"seccomp"}]"#, "missing field `state`"),
            (
                r#"[{"layer":"seccomp","state":"ok","advice":1}]"#,
                "expected a string",
            ),
            (
                r#"[{"layer":"seccomp","state":"fine"}]"#,
                "\"fine\", which is none of ok, degraded, missing",
            ),
        ] {
            let why = report(text).unwrap_err();
            assert!(why.contains(wrong), "{text}: {why}");
        }
        assert!([0, 4].iter().all(|&of| state(of).is_err()));
    }
}
