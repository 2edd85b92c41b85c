//! The suite's skills on the server: kept, refused, or somebody else's under the same names.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::answer::{decode, picture};
use crate::case::{Case, Skill, Step};
use crate::request::fill;
use crate::run::{GONE, Outcome, Runner, Verdict, clip};

/// Why a case is skipped that needs the suite's skills where nothing can be published. The texts leave `create_skill` open.
pub(crate) const CANNOT_PUBLISH: &str =
    "needs skills of the suite: the server has no create_skill, which the texts leave open";

/// Why a case is skipped about a skill that the server has of its own.
pub(crate) const THEIRS: &str =
    "needs an example of the texts: the server has another skill of that name and version";

/// The skill that the specification's client runs.
const OF_THE_CLIENT: &str = "salesforce.leads.sync";

/// What cases cannot have.
#[derive(Debug, Default)]
pub(crate) struct Lacking {
    /// There is no `create_skill`.
    publishing: bool,
    /// Examples of the texts of which the server has its own.
    names: Vec<String>,
}

impl Lacking {
    /// Why this case is not asked for want of a skill.
    pub(crate) fn of(&self, case: &Case) -> Option<&'static str> {
        if !self.publishing && self.names.is_empty() {
            return None;
        }
        let text = serde_json::to_string(case).expect("a case is plain data");
        let printed = case.step.iter().any(|step| step.client);
        let names = |what: &str| text.contains(what) || printed && what == OF_THE_CLIENT;
        if self.publishing && (names("{p}") || names("create_skill")) {
            Some(CANNOT_PUBLISH)
        } else if self.names.iter().any(|name| names(name)) {
            Some(if self.publishing {
                CANNOT_PUBLISH
            } else {
                THEIRS
            })
        } else {
            None
        }
    }
}

/// A skill that is being published.
struct Publishing<'s> {
    skill: &'s Skill,
    manifest: Value,
    md: String,
    /// Path and content.
    files: Vec<(&'s str, String)>,
}

impl Publishing<'_> {
    fn named(&self, member: &str) -> &str {
        self.manifest[member].as_str().unwrap_or_default()
    }
}

impl Runner<'_> {
    /// Publishes them one after the other, each of which is itself a case; says what is not to be had then.
    pub(crate) fn publish_all(&self, skills: &[Skill]) -> (Vec<Outcome>, Lacking) {
        let mut lacking = Lacking {
            publishing: !self.target.product && self.cannot_publish(),
            names: Vec::new(),
        };
        let mut outcomes = Vec::new();
        for skill in skills {
            let skill = self.publishing(skill);
            let verdict = if lacking.publishing {
                Verdict::Skipped(CANNOT_PUBLISH)
            } else if self.gone() {
                Verdict::Skipped(GONE)
            } else {
                self.publish(&skill)
            };
            if matches!(verdict, Verdict::Skipped(CANNOT_PUBLISH | THEIRS)) {
                lacking.names.push(skill.named("name").to_owned());
            }
            outcomes.push(Outcome {
                id: format!("skill {} {}", skill.named("name"), skill.named("version")),
                rows: vec!["K7".into()],
                verdict,
            });
        }
        (outcomes, lacking)
    }

    /// A request that could not publish anything tells.
    fn cannot_publish(&self) -> bool {
        let answer = self.asked("create_skill", &json!({}));
        answer.is_ok_and(|seen| seen["reply"]["error"]["code"] == -32601)
    }

    fn publishing<'s>(&self, skill: &'s Skill) -> Publishing<'s> {
        let filled = |text: &str| fill(text, &self.vars, false);
        Publishing {
            skill,
            manifest: toml::from_str(&filled(&skill.toml))
                .expect("a skill's manifest in a case file is TOML"),
            md: filled(&skill.md),
            files: skill
                .files
                .iter()
                .map(|(path, content)| (&**path, filled(content)))
                .collect(),
        }
    }

    fn publish(&self, skill: &Publishing<'_>) -> Verdict {
        let files: Vec<Value> = skill
            .files
            .iter()
            .map(|(path, content)| json!({"path": path, "content": content}))
            .collect();
        let params = json!({"manifest": skill.manifest, "skill_md": skill.md, "files": files});
        let mut expect = vec![
            format!("result.name == {}", skill.manifest["name"]),
            format!("result.version == {}", skill.manifest["version"]),
        ];
        let mut any = Vec::new();
        if skill.skill.shared_name {
            any = vec![
                std::mem::take(&mut expect),
                vec![
                    "error.code is refusal".into(),
                    "product: error.code == -32004".into(),
                ],
            ];
        }
        let step = Step {
            call: Some("create_skill".into()),
            params: Some(params.to_string()),
            expect,
            any,
            ..Step::default()
        };
        match self.step(&step, &mut self.vars.clone()) {
            Err(why) => Verdict::Failed(why),
            Ok(_) if !skill.skill.shared_name || self.target.product => Verdict::Passed,
            Ok(_) => match self.is_ours(skill) {
                Ok(true) => Verdict::Passed,
                Ok(false) => Verdict::Skipped(THEIRS),
                Err(why) => Verdict::Failed(why),
            },
        }
    }

    /// Whether the server has this very skill under the name that others may have taken before.
    fn is_ours(&self, skill: &Publishing<'_>) -> Result<bool, String> {
        let md = std::iter::once(("SKILL.md", &skill.md));
        let files = skill.files.iter().map(|(path, content)| (*path, content));
        for (path, ours) in md.chain(files) {
            let params = json!({"name": skill.manifest["name"], "version": skill.manifest["version"], "path": path});
            let seen = self.asked("read_skill_file", &params)?;
            match seen["reply"]["result"]["content"].as_str() {
                Some(content) if content == ours => {}
                Some(_) => return Ok(false),
                // Theirs has other files.
                None if path != "SKILL.md" => return Ok(false),
                None => {
                    return Err(format!(
                        "{} {} was published or refused, and is not there: {}",
                        skill.named("name"),
                        skill.named("version"),
                        clip(&picture(&seen), 1500)
                    ));
                }
            }
        }
        Ok(true)
    }

    fn asked(&self, method: &str, params: &Value) -> Result<Value, String> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let answer = self.target.endpoint.post(request.to_string().as_bytes())?;
        Ok(decode(&answer, None))
    }
}
