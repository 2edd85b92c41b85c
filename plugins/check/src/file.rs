//! The file: what it is, and that it loads.

use crate::About;
use crate::bench::{Bench, Done, demand, failed, failed_at};

/// Longest id of which the note, and so a signature's first check, sees all.
const NOTE_ID_BYTES: usize = 43;

pub(crate) fn inspected(bench: &Bench) -> Done {
    bench.step("reading the file");
    let found = skillgate_plugin_host::inspect(&bench.job.plugin)
        .map_err(|error| failed(error.to_string()))?;
    demand(found.refusals.is_empty(), || found.refusals.join("; "))
}

pub(crate) fn loads(bench: &Bench) -> Done {
    let plugin = bench.load()?;
    bench.step("asking it for its factories");
    let (storage, sandbox) = (plugin.offers_storage(), plugin.offers_sandbox());
    let info = plugin.info();
    bench.tell_about(About {
        id: info.id.clone(),
        version: info.version.clone(),
        storage,
        sandbox,
    });
    if storage || sandbox {
        Ok(())
    } else {
        Err(failed_at(
            "get_factory",
            "it gives no factory, neither for a sandbox nor for storage",
        ))
    }
}

pub(crate) fn identity(bench: &Bench) -> Done {
    let plugin = bench.load()?;
    let info = plugin.info();
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let parts: Vec<_> = info.id.split('.').collect();
    let reverse_dns = parts.len() >= 2
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.chars().all(word));
    demand(reverse_dns, || {
        format!("its id is {:?}, which is no name in reverse-DNS", info.id)
    })?;
    demand(info.id.len() <= NOTE_ID_BYTES, || {
        format!(
            "its id has {} bytes; its note holds {NOTE_ID_BYTES}",
            info.id.len()
        )
    })?;
    let version = semver::Version::parse(&info.version);
    demand(version.is_ok(), || {
        format!("its version is {:?}, which is not SemVer", info.version)
    })?;
    if info.config_schema_json.is_empty() {
        return Ok(());
    }
    let schema: Result<serde_json::Map<String, serde_json::Value>, _> =
        serde_json::from_str(&info.config_schema_json);
    schema
        .map(|_| ())
        .map_err(|error| failed(format!("config_schema_json is no JSON object: {error}")))
}
