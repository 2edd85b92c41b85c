//! The plugins' own sections of the configuration, before anybody makes a plugin from them.

use skillgate_plugin_host::{Pin, Plugin};

use super::plugins::{Role, bundled_plugin};
use crate::config::{Config, PluginSource, Problem, misfits};

/// What the bundled plugins say is wrong with theirs. Of a file that is named by its path nothing is executed here; `skillgate
/// doctor` makes its plugin, which says it then.
pub fn section_problems(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (role, key) in [(Role::Storage, "storage"), (Role::Sandbox, "sandbox")] {
        let plugin = role.of(config);
        let PluginSource::Name(name) = &plugin.source else {
            continue;
        };
        // Where it is not installed, as on a build server, there is nobody to ask.
        let Ok(file) = bundled_plugin(name) else {
            continue;
        };
        let Ok(loaded) = Plugin::load(file, &Pin::default()) else {
            continue;
        };
        let schema = &loaded.info().config_schema_json;
        let schema = serde_json::from_str(schema).unwrap_or_default();
        for (key, why) in misfits(&schema, &plugin.config, &format!("plugins.{key}.config")) {
            problems.extend(config.wrong(&key, why).problems);
        }
    }
    problems
}
