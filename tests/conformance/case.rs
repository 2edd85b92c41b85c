//! What a case file says, read into values. The language is described in `README.md` beside this file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One file of `cases/`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CaseFile {
    /// Variables of every case in this file.
    #[serde(rename = "let")]
    pub(crate) vars: BTreeMap<String, toml::Value>,
    /// Skills to publish before any case runs.
    pub(crate) skill: Vec<Skill>,
    pub(crate) case: Vec<Case>,
}

/// A skill that cases need. It is published through `create_skill`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Skill {
    /// `skill.toml` as text.
    pub(crate) toml: String,
    /// `SKILL.md` as text.
    pub(crate) md: String,
    /// Path to content.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, String>,
    /// Another run against the same server may have left this exact name behind with other content.
    #[serde(default)]
    pub(crate) shared_name: bool,
}

/// One case: a story of steps that proves rows of the specification.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) rows: Vec<String>,
    pub(crate) about: String,
    /// Needs what only skillgate promises; skipped for other servers.
    pub(crate) product: bool,
    /// Needs real isolation: never run against the toy server, which has none.
    pub(crate) sandbox: bool,
    /// Needs the server that this suite started itself.
    pub(crate) own_server: bool,
    /// Runs while no other case does.
    pub(crate) alone: bool,
    /// Where the server is wrong, it stays so for all its users: asked of others only when somebody says so.
    pub(crate) lasting: bool,
    #[serde(rename = "let")]
    pub(crate) vars: BTreeMap<String, toml::Value>,
    /// The case once per entry, with the entry's members as variables.
    pub(crate) each: Vec<BTreeMap<String, toml::Value>>,
    pub(crate) step: Vec<Step>,
}

/// One exchange with the server and what must be true of it.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Step {
    // What is sent: exactly one of these.
    pub(crate) call: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) walk: Option<String>,
    pub(crate) post: Option<String>,
    pub(crate) post_hex: Option<String>,
    pub(crate) get: Option<String>,
    pub(crate) http: Option<HttpStep>,
    pub(crate) raw: Option<String>,
    pub(crate) client: bool,

    // How it is sent.
    /// JSON text of `params` for `call`, or of further params for `run`.
    pub(crate) params: Option<String>,
    /// JSON text of `args` for `run`.
    pub(crate) args: Option<String>,
    /// JSON text of the request's id.
    pub(crate) id: Option<String>,
    /// That many at once; every answer must meet the expectations.
    pub(crate) times: usize,

    // What must come back.
    pub(crate) output: Option<String>,
    pub(crate) failed: Option<String>,
    pub(crate) refused: Option<String>,
    pub(crate) expect: Vec<String>,
    pub(crate) any: Vec<Vec<String>>,
    /// Where all of these hold of another server than skillgate, the case is undecided.
    pub(crate) undecided: Vec<String>,
    /// Paths whose values must differ between the answers of `times`.
    pub(crate) distinct: Vec<String>,
    /// Variables for the steps after this: name to path.
    pub(crate) save: BTreeMap<String, String>,
}

/// A request that is not a plain POST of JSON.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpStep {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// All files of `cases/`, in the order of their names, with `each` written out.
#[derive(Debug, Default)]
pub(crate) struct Suite {
    pub(crate) skills: Vec<Skill>,
    pub(crate) cases: Vec<Case>,
}

impl Suite {
    /// Reads every case file; a mistake in one names the file.
    pub(crate) fn load(dir: &Path) -> Result<Suite, String> {
        let mut paths: Vec<_> = std::fs::read_dir(dir.join("cases"))
            .map_err(|e| format!("cannot list the cases: {e}"))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter(|path| path.extension().is_some_and(|x| x == "toml"))
            .collect();
        paths.sort();
        let mut suite = Suite::default();
        for path in paths {
            let text =
                std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let file: CaseFile =
                toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            let shared = expand_vars(dir, &file.vars)?;
            suite.skills.extend(file.skill);
            for case in file.case {
                check(&case).map_err(|e| format!("{}: case {:?}: {e}", path.display(), case.id))?;
                suite.cases.extend(written_out(dir, case, &shared)?);
            }
        }
        let mut ids: Vec<&str> = suite.cases.iter().map(|c| c.id.as_str()).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("two cases have the id {:?}", twice[0]));
        }
        Ok(suite)
    }
}

fn check(case: &Case) -> Result<(), String> {
    if case.id.is_empty() || case.rows.is_empty() || case.about.is_empty() || case.step.is_empty() {
        return Err("a case has an id, rows, a sentence (`about`) and steps".into());
    }
    for (n, step) in case.step.iter().enumerate() {
        let ways = usize::from(step.call.is_some())
            + usize::from(step.run.is_some())
            + usize::from(step.walk.is_some())
            + usize::from(step.post.is_some())
            + usize::from(step.post_hex.is_some())
            + usize::from(step.get.is_some())
            + usize::from(step.http.is_some())
            + usize::from(step.raw.is_some())
            + usize::from(step.client);
        if ways != 1 {
            return Err(format!("step {} sends {ways} things, not one", n + 1));
        }
        let checks = step.expect.len() + step.any.len() + step.distinct.len();
        let sugar = step.output.is_some() || step.failed.is_some() || step.refused.is_some();
        if checks == 0 && !sugar && step.save.is_empty() {
            return Err(format!("step {} expects nothing", n + 1));
        }
        if !case.alone && needs_a_still_store(step) {
            return Err(format!(
                "step {} wants a listing that nobody adds to meanwhile: alone = true",
                n + 1
            ));
        }
    }
    Ok(())
}

/// Whether other cases that publish would disturb it: a later listing has more, and where cursors count skills, as they may,
/// a page repeats what the one before it had.
fn needs_a_still_store(step: &Step) -> bool {
    let says = |words: &str| step.expect.iter().any(|line| line.contains(words));
    let of_all = step.call.as_deref() == Some("list_skills")
        && (step.params.as_ref()).is_some_and(|params| params.contains(r#""namespace":"${p}""#));
    let kept = step
        .save
        .values()
        .any(|path| path.starts_with("result.skills"));
    let in_order = says("result.skills sorted") || says("result.skills unique");
    step.walk.is_some() && (in_order || kept) || of_all && kept
}

/// The case once per entry of `each`, with the file's variables below its own.
fn written_out(
    dir: &Path,
    case: Case,
    shared: &BTreeMap<String, toml::Value>,
) -> Result<Vec<Case>, String> {
    let mut base = shared.clone();
    base.extend(expand_vars(dir, &case.vars)?);
    if case.each.is_empty() {
        return Ok(vec![Case { vars: base, ..case }]);
    }
    let mut all = Vec::new();
    for (n, entry) in case.each.iter().enumerate() {
        let mut vars = base.clone();
        vars.extend(expand_vars(dir, entry)?);
        all.push(Case {
            id: format!("{}#{}", case.id, n + 1),
            vars,
            each: Vec::new(),
            ..case.clone()
        });
    }
    Ok(all)
}

/// `{ repeat = "x", times = 5 }` is text made on the spot, `{ file = "texts/guide.md" }` a file of this folder.
fn expand_vars(
    dir: &Path,
    vars: &BTreeMap<String, toml::Value>,
) -> Result<BTreeMap<String, toml::Value>, String> {
    let mut out = BTreeMap::new();
    for (name, value) in vars {
        let made = match value.as_table() {
            Some(t) if t.contains_key("repeat") => {
                let text = t["repeat"].as_str().ok_or("`repeat` is a text")?;
                let times = t
                    .get("times")
                    .and_then(toml::Value::as_integer)
                    .ok_or("`repeat` needs `times`")?;
                let times = usize::try_from(times).map_err(|e| e.to_string())?;
                toml::Value::String(text.repeat(times))
            }
            Some(t) if t.contains_key("file") => {
                let file = dir.join(t["file"].as_str().ok_or("`file` is a path")?);
                let text = std::fs::read_to_string(&file)
                    .map_err(|e| format!("{}: {e}", file.display()))?;
                toml::Value::String(text)
            }
            _ => value.clone(),
        };
        out.insert(name.clone(), made);
    }
    Ok(out)
}
