//! Every example of the specification's texts that this crate can read, as printed there.

use serde_json::json;
use skillgate_skill::{Kind, Manifest, SkillMd, SkillPath, assemble};

const MINIMAL: &str = r#"
name = "hello.world"
version = "0.1.0"
description = "A simple hello world skill."
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
"#;

/// Every example manifest of the specification's texts, as printed.
const EXAMPLES: &[&str] = &[
    MINIMAL,
    r#"# Required identifiers
name        = "salesforce.leads.sync"       # globally unique skill id
version     = "0.1.0"
description = "Sync leads from a sheet blob into Salesforce."
kind        = "action"                      # "action" | "instruction"

# Optional metadata
namespace   = "salesforce"                  # for grouping / filtering
tags        = ["crm", "leads", "sync"]

# Optional runtime (required for action skills)
[runtime]
language   = "python"                       # MVP: "python" only
entrypoint = "code/main.py"                 # module path
export     = "main"                         # function name

# Optional: informal input schema (for LLM & humans)
[inputs]
sheet_blob = { type = "blob", description = "Blob id of the source sheet" }
env        = { type = "string", description = "Which Salesforce env" }

# Optional: permissions
[permissions]
network = ["https://*.salesforce.com"]      # network allowlist
secrets = ["SALESFORCE_API_KEY"]            # secret names the runtime may inject
"#,
    r#"name = "salesforce.leads.sync"
version = "0.1.0"
description = "Sync leads from a sheet blob into Salesforce."
kind = "action"
namespace = "salesforce"
tags = ["crm", "leads", "sync"]

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[inputs]
sheet_blob = { type = "blob", description = "Blob id of the CSV sheet" }
env = { type = "string", enum = ["dev", "staging", "prod"], description = "Target environment" }
batch_size = { type = "integer", default = 100, description = "Records per batch" }

[permissions]
network = ["https://*.salesforce.com"]
secrets = ["SALESFORCE_API_KEY", "SALESFORCE_ORG_ID"]
"#,
    r#"name = "best-practices.salesforce"
version = "1.0.0"
description = "Best practices for Salesforce integrations."
kind = "instruction"
namespace = "best-practices"
tags = ["guide", "salesforce"]
"#,
    r#"name = "stripe.payments.process"
version = "2.3.1"
description = "Process payments via Stripe."
kind = "action"

[runtime]
language = "python"
entrypoint = "code/process.py"
export = "process_payment"

[inputs]
amount_cents = { type = "integer", description = "Amount in cents" }
currency = { type = "string", default = "USD", description = "Currency code" }
customer_id = { type = "string", description = "Stripe customer ID" }

[permissions]
network = ["https://api.stripe.com"]
secrets = ["STRIPE_API_KEY"]
"#,
    r#"name        = "skills.protocol.guide"
version     = "0.1.0"
description = "Intro to the Skills Protocol for LLMs."
kind        = "instruction"
namespace   = "skills.protocol"
tags        = ["guide", "bootstrap"]
"#,
    // The fragments of the manifest page, on the minimal skill.
    r#"name = "salesforce.leads.sync"
version = "0.1.0"
description = "Sync leads from a sheet blob into Salesforce."
kind = "action"    # Has runtime, can be executed

[runtime]
language   = "python"           # Only "python" in MVP
entrypoint = "code/main.py"     # Path to module relative to skill root
export     = "main"             # Function name to call

[permissions]
network = ["https://*.salesforce.com", "https://api.salesforce.com"]
secrets = ["SALESFORCE_API_KEY", "SALESFORCE_ORG_ID"]

[inputs]
sheet_blob = { type = "blob", description = "Blob id of the source sheet" }
env = { type = "string", description = "Which Salesforce env (dev, staging, prod)" }
row_limit = { type = "integer", description = "Maximum rows to sync (optional)" }
"#,
];

#[test]
fn the_specifications_examples() {
    for text in EXAMPLES {
        let m = Manifest::from_toml(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(m.warnings().is_empty(), "{:?}", m.warnings());
        // As create_skill takes it, as describe_skill shows it, as skill.toml is written.
        let json = m.to_json();
        assert_eq!(
            Manifest::from_json(&json.to_string()).unwrap().to_json(),
            json
        );
        assert_eq!(Manifest::from_toml(&m.to_toml()).unwrap(), m);
        assert_eq!(Manifest::from_toml(&text.replace('\n', "\r\n")).unwrap(), m);
    }
}

#[test]
fn typed_fields() {
    let m = Manifest::from_toml(EXAMPLES[2]).unwrap();
    assert_eq!(m.name().as_str(), "salesforce.leads.sync");
    assert_eq!(m.version().to_string(), "0.1.0");
    assert_eq!(
        (m.kind(), m.namespace().as_str()),
        (Kind::Action, "salesforce")
    );
    assert_eq!(m.tags(), ["crm", "leads", "sync"]);
    let runtime = m.runtime().unwrap();
    assert_eq!(
        (runtime.entrypoint.as_str(), runtime.export.as_str()),
        ("code/main.py", "main")
    );
    assert_eq!(
        m.inputs().unwrap()["batch_size"],
        json!({"type": "integer", "default": 100, "description": "Records per batch"})
    );
    assert_eq!(
        m.permissions().network[0].to_string(),
        "https://*.salesforce.com"
    );
    assert_eq!(m.permissions().secrets[1].as_str(), "SALESFORCE_ORG_ID");
}

#[test]
fn namespace_is_filled_in() {
    let m = Manifest::from_toml(EXAMPLES[4]).unwrap();
    assert_eq!(
        (m.namespace().as_str(), &m.to_json()["namespace"]),
        ("stripe", &json!("stripe"))
    );
    assert!(
        !m.to_toml().contains("namespace"),
        "the file stays as written"
    );
}

#[test]
fn skill_md_examples() {
    for (text, names, body) in [
        (
            "---\nname: Salesforce Lead Sync\nshort_description: Sync leads from a sheet blob into Salesforce.\ntags: [crm, leads, sync]\n---\n",
            &["name", "short_description", "tags"][..],
            "",
        ),
        (
            "---\nname: Skills Protocol Guide\nshort_description: How to use the Skills Protocol tools.\n---\n\n# Skills Protocol Overview\n",
            &["name", "short_description"],
            "\n# Skills Protocol Overview\n",
        ),
        ("# My New Skill\n\n...", &[], "# My New Skill\n\n..."),
    ] {
        let md = SkillMd::parse(text).unwrap();
        assert_eq!(md.frontmatter.keys().collect::<Vec<_>>(), names);
        assert_eq!(md.body, body);
    }
}

#[test]
fn create_skill_example() {
    let manifest = json!({
        "name": "user.julaiti.save_sheet_as_csv", "version": "0.1.0", "description": "Save a sheet as CSV.", "kind": "action",
        "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
    });
    let manifest = Manifest::from_json(&manifest.to_string()).unwrap();
    let files = [
        ("code/main.py", "def main(args):\n    ..."),
        ("resources/examples.md", "Example usage..."),
    ]
    .map(|(path, text)| (SkillPath::parse(path).unwrap(), text.as_bytes().to_vec()));
    let bundle = assemble(&manifest, "# My New Skill\n\n...", files.to_vec(), 1 << 20).unwrap();
    assert!(bundle.skill.warnings.is_empty());
    assert_eq!(bundle.files.len(), 4);
}
