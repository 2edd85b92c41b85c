//! The decision document `skills.policy.decision/v1`, read strictly: what is not exactly as the contract says is no
//! decision, and no decision is a denial.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use regorus::Value;
use serde::Serialize;
use serde_json::json;
use skillgate_skill::{NetworkPattern, SecretName};

use super::engine::Fault;
use crate::config::MEMORY_BYTES_MIN;

/// The one rule that is asked; this document is its value.
pub(super) const ENTRY: &str = "data.skills.authz.decision";
/// The version of this document.
pub(super) const SCHEMA: &str = "skills.policy.decision/v1";
/// Reasons of one decision that are read.
const REASONS_MAX: usize = 32;
/// Longest text in a reason that is passed on, in characters.
const REASON_CHARS_MAX: usize = 500;
/// What the caller's issuer says of it, in a record.
const CLAIMS_POINTER: &str = "/input/subject/claims";
/// What a limit of this unit counts.
const MIB: u64 = 1024 * 1024;
/// What no run can begin with less of; and 0 would be none at all for a sandbox.
const TIMEOUT_MS_MIN: u64 = 1;
const MEMORY_MB_MIN: u64 = MEMORY_BYTES_MIN / MIB;

/// What the rules said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) allow: bool,
    /// `{code, message, skill?, target?, secret?, blob?}`, all of them texts.
    pub(super) reasons: Vec<BTreeMap<String, String>>,
    /// For submitted code.
    code: Compartment,
    /// For each skill, by name.
    skills: BTreeMap<String, Compartment>,
    pub(super) limits: Limits,
    /// Namespaces whose skills the caller may know of; none: all.
    pub(super) visible: Option<Vec<String>>,
    pub(super) deny_cidrs: Vec<String>,
    /// The run's interpreter shares nothing with another run's, whatever that costs.
    pub(super) fresh: bool,
    pub(super) log: Log,
}

/// Network and secrets of one compartment.
#[derive(Debug, Clone, Default, PartialEq)]
struct Compartment {
    network: Vec<NetworkPattern>,
    /// Name and delivery.
    secrets: Vec<(String, String)>,
}

/// Ceilings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Limits {
    pub(super) timeout_ms: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) max_blob_bytes: Option<u64>,
}

/// What the log keeps of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) level: LogLevel,
    /// JSON pointers into the record.
    pub(super) mask: Vec<String>,
}

/// How much of a decision is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LogLevel {
    /// Only that it was made, and how it ended.
    None,
    /// Input and result.
    #[default]
    Metadata,
    /// Everything.
    Full,
}

impl Log {
    /// Of a call on which no rule has said anything: what the issuer says of the caller is nothing that its record
    /// needs, and the rules might have masked it.
    pub(super) fn unsaid() -> Self {
        Log {
            level: LogLevel::Metadata,
            mask: vec![CLAIMS_POINTER.to_owned()],
        }
    }

    /// Of a decision that is none: as it says where that can be read, and not as it is, since anything may be in it.
    pub(super) fn of_malformed(decision: &Value) -> Self {
        let mut log = Log::unsaid();
        let members = decision.as_object().ok();
        let said = members.and_then(|members| read_log(members.get(&Value::from("log"))?).ok());
        if let Some(said) = said {
            if said.level == LogLevel::None {
                log.level = LogLevel::None;
            }
            log.mask.extend(said.mask);
        }
        log
    }
}

/// What a skill asks for.
#[derive(Debug)]
pub(super) struct Declared<'a> {
    pub(super) name: &'a str,
    pub(super) network: Cow<'a, [NetworkPattern]>,
    pub(super) secrets: Cow<'a, [SecretName]>,
}

/// What is left of a decision's grants within what the manifests declare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) network: Vec<String>,
    pub(super) secrets: Vec<String>,
    /// What the decision would have given beyond that.
    pub(super) clamped: Vec<String>,
}

// === reading ===

type Read<T> = Result<T, String>;

impl Decision {
    /// No rule has been asked.
    pub(super) fn unasked() -> Self {
        Decision {
            allow: true,
            reasons: Vec::new(),
            code: Compartment::default(),
            skills: BTreeMap::new(),
            limits: Limits::default(),
            visible: None,
            deny_cidrs: Vec::new(),
            fresh: false,
            log: Log::unsaid(),
        }
    }

    pub(super) fn parse(value: &Value) -> Result<Self, Fault> {
        read(value).map_err(Fault::Malformed)
    }
}

fn read(value: &Value) -> Read<Decision> {
    let members = Members::of(
        value,
        "the decision",
        &[
            "allow",
            "reasons",
            "grants",
            "limits",
            "visible",
            "obligations",
            "log",
            "cache_ttl_s",
        ],
    )?;
    let Some(Value::Bool(allow)) = members.get("allow") else {
        return Err("`allow` is missing or not true or false".into());
    };
    let mut decision = Decision {
        allow: *allow,
        reasons: Vec::new(),
        code: Compartment::default(),
        skills: BTreeMap::new(),
        limits: Limits::default(),
        // A decision that says nothing of what may be seen shows nothing.
        visible: Some(Vec::new()),
        deny_cidrs: Vec::new(),
        fresh: false,
        log: Log::default(),
    };
    for reason in members.list("reasons")?.take(REASONS_MAX) {
        decision.reasons.push(read_reason(reason)?);
    }
    if let Some(grants) = members.get("grants") {
        let grants = Members::of(grants, "`grants`", &["code", "skills"])?;
        if let Some(code) = grants.get("code") {
            decision.code = read_compartment(code)?;
        }
        if let Some(skills) = grants.get("skills") {
            for (name, compartment) in entries(skills, "`grants.skills`")? {
                decision
                    .skills
                    .insert(name.to_owned(), read_compartment(compartment)?);
            }
        }
    }
    if let Some(limits) = members.get("limits") {
        let limits = Members::of(
            limits,
            "`limits`",
            &["timeout_ms", "memory_mb", "max_blob_bytes"],
        )?;
        decision.limits = Limits {
            timeout_ms: limits.at_least("timeout_ms", TIMEOUT_MS_MIN)?,
            memory_bytes: limits
                .at_least("memory_mb", MEMORY_MB_MIN)?
                .map(|mb| mb.saturating_mul(MIB)),
            max_blob_bytes: limits.number("max_blob_bytes")?,
        };
    }
    if let Some(visible) = members.get("visible") {
        let visible = Members::of(visible, "`visible`", &["namespaces"])?;
        let namespaces = visible
            .list("namespaces")?
            .map(|name| text(name, "a namespace"))
            .collect::<Read<Vec<_>>>()?;
        decision.visible = (!namespaces.iter().any(|name| name == "*")).then_some(namespaces);
    }
    for obligation in members.list("obligations")? {
        let obligation = Members::of(obligation, "an obligation", &["type", "cidrs"])?;
        match obligation
            .get("type")
            .map(|kind| text(kind, "`type`"))
            .transpose()?
            .as_deref()
        {
            Some("egress.deny_cidrs") => {
                for cidr in obligation.list("cidrs")? {
                    decision.deny_cidrs.push(read_cidr(cidr)?);
                }
            }
            Some("sandbox.fresh") if obligation.get("cidrs").is_none() => decision.fresh = true,
            // Every decision is recorded.
            Some("audit") if obligation.get("cidrs").is_none() => {}
            other => {
                return Err(format!(
                    "an obligation of type {:?} cannot be kept; known are \"egress.deny_cidrs\", \"sandbox.fresh\" and \"audit\"",
                    other.unwrap_or_default()
                ));
            }
        }
    }
    if let Some(log) = members.get("log") {
        decision.log = read_log(log)?;
    }
    members.number("cache_ttl_s")?;
    Ok(decision)
}

fn read_log(value: &Value) -> Read<Log> {
    let members = Members::of(value, "`log`", &["level", "mask"])?;
    let level = members
        .get("level")
        .map(|level| text(level, "`log.level`"))
        .transpose()?;
    let level = match level.as_deref() {
        None | Some("metadata") => LogLevel::Metadata,
        Some("full") => LogLevel::Full,
        Some("none") => LogLevel::None,
        Some(other) => {
            return Err(format!(
                "`log.level` is {other:?}, not none, metadata or full"
            ));
        }
    };
    let mut mask = Vec::new();
    for pointer in members.list("mask")? {
        let pointer = text(pointer, "`log.mask`")?;
        if !pointer.starts_with("/input/") && !pointer.starts_with("/result/") {
            return Err(format!(
                "`log.mask` has {pointer:?}, which does not point into /input/ or /result/"
            ));
        }
        mask.push(pointer);
    }
    Ok(Log { level, mask })
}

fn read_reason(reason: &Value) -> Read<BTreeMap<String, String>> {
    let known = ["code", "message", "skill", "target", "secret", "blob"];
    Members::of(reason, "a reason", &known)?;
    let reason = entries(reason, "a reason")?
        .map(|(name, value)| {
            let value = text(value, "a member of a reason")?;
            Ok((
                name.to_owned(),
                value.chars().take(REASON_CHARS_MAX).collect(),
            ))
        })
        .collect::<Read<BTreeMap<_, _>>>()?;
    match reason.contains_key("code") {
        true => Ok(reason),
        false => Err("a reason has no `code`".into()),
    }
}

fn read_compartment(value: &Value) -> Read<Compartment> {
    let members = Members::of(value, "a grant", &["network", "secrets"])?;
    let mut compartment = Compartment::default();
    for pattern in members.list("network")? {
        let pattern = text(pattern, "a network grant")?;
        let pattern = NetworkPattern::parse(&pattern).map_err(|error| error.to_string())?;
        compartment.network.push(pattern);
    }
    for secret in members.list("secrets")? {
        let secret = Members::of(secret, "a secret's grant", &["name", "delivery"])?;
        let (Some(name), Some(delivery)) = (secret.get("name"), secret.get("delivery")) else {
            return Err("a secret's grant has no `name` or no `delivery`".into());
        };
        let name = text(name, "a secret's name")?;
        SecretName::parse(&name).map_err(|error| error.to_string())?;
        let delivery = text(delivery, "`delivery`")?;
        if !["env", "proxy"].contains(&delivery.as_str()) {
            return Err(format!("`delivery` is {delivery:?}, not env or proxy"));
        }
        compartment.secrets.push((name, delivery));
    }
    Ok(compartment)
}

fn read_cidr(value: &Value) -> Read<String> {
    let cidr = text(value, "a network")?;
    match is_cidr(&cidr) {
        true => Ok(cidr),
        false => Err(format!("{cidr:?} is not a network such as 10.0.0.0/8")),
    }
}

/// As the interpreter and the gate read it: one that the gate cannot read would let no run begin that the rules allow.
pub(super) fn is_cidr(text: &str) -> bool {
    let address = text.split_once('/').map(|(address, _)| address);
    let is_address = address.is_some_and(|address| address.parse::<IpAddr>().is_ok());
    is_address && text.parse::<IpNet>().is_ok()
}

/// The members of an object, none of them unknown: a limit with a typing error must not be no limit.
struct Members<'v> {
    value: &'v Value,
}

impl<'v> Members<'v> {
    fn of(value: &'v Value, what: &str, known: &[&str]) -> Read<Self> {
        for (name, _) in entries(value, what)? {
            if !known.contains(&name) {
                return Err(format!("{what} has an unknown member {name:?}"));
            }
        }
        Ok(Members { value })
    }

    fn get(&self, name: &str) -> Option<&'v Value> {
        self.value.as_object().ok()?.get(&Value::from(name))
    }

    fn list(&self, name: &str) -> Read<Box<dyn Iterator<Item = &'v Value> + 'v>> {
        match self.get(name) {
            None => Ok(Box::new(std::iter::empty())),
            Some(Value::Array(items)) => Ok(Box::new(items.iter())),
            Some(Value::Set(items)) => Ok(Box::new(items.iter())),
            Some(_) => Err(format!("`{name}` is no list")),
        }
    }

    fn at_least(&self, name: &str, least: u64) -> Read<Option<u64>> {
        match self.number(name)? {
            Some(less) if less < least => {
                Err(format!("`{name}` is {less}: a run needs at least {least}"))
            }
            number => Ok(number),
        }
    }

    fn number(&self, name: &str) -> Read<Option<u64>> {
        let whole = |value: &Value| {
            value
                .as_u64()
                .map_err(|_| format!("`{name}` is not a whole number of at least 0"))
        };
        self.get(name).map(whole).transpose()
    }
}

fn entries<'v>(value: &'v Value, what: &str) -> Read<impl Iterator<Item = (&'v str, &'v Value)>> {
    let Value::Object(members) = value else {
        return Err(format!("{what} is no object"));
    };
    let mut named = Vec::with_capacity(members.len());
    for (name, value) in members.iter() {
        match name {
            Value::String(name) => named.push((&**name, value)),
            _ => return Err(format!("{what} has a member whose name is no text")),
        }
    }
    Ok(named.into_iter())
}

fn text(value: &Value, what: &str) -> Read<String> {
    match value {
        Value::String(text) => Ok(text.to_string()),
        _ => Err(format!("{what} is no text")),
    }
}

// === narrowing ===

impl Decision {
    /// Manifest ∩ decision: a policy narrows, it never widens (contract, section 6).
    ///
    /// A run of a skill has that skill's compartment. Submitted code has the one of `code`, within what the mounted
    /// skills declare together: it shares its sandbox with them.
    pub(super) fn grant(&self, method: &str, declared: &[Declared<'_>]) -> Result<Grant, Fault> {
        let mut grant = Grant::default();
        let compartment = match method {
            "execute_skill" => declared
                .first()
                .and_then(|skill| self.skills.get(skill.name)),
            "run_code" => Some(&self.code),
            _ => None,
        };
        let Some(compartment) = compartment else {
            return Ok(grant);
        };
        let mut network: Vec<NetworkPattern> = Vec::new();
        for granted in &compartment.network {
            let both: Vec<_> = declared
                .iter()
                .flat_map(|skill| skill.network.iter())
                .filter_map(|declared| intersection(declared, granted))
                .collect();
            if !both.contains(granted) {
                grant.clamped.push(granted.to_string());
            }
            network.extend(both);
        }
        network.sort();
        network.dedup();
        grant.network = network.iter().map(ToString::to_string).collect();
        for (granted, delivery) in &compartment.secrets {
            if delivery != "env" {
                // It must not get the value in another way, and would fail without it.
                return Err(Fault::Malformed(format!(
                    "secret {granted} is to be delivered by {delivery:?}, which the sandbox cannot do; \"env\" it can"
                )));
            }
            let is_declared = declared
                .iter()
                .flat_map(|skill| skill.secrets.iter())
                .any(|declared| declared.as_str() == granted);
            match is_declared {
                true => grant.secrets.push(granted.clone()),
                false => grant.clamped.push(granted.clone()),
            }
        }
        grant.secrets.sort();
        grant.secrets.dedup();
        Ok(grant)
    }

    /// Whether the caller may know that there is a skill of this name.
    pub(super) fn shows(&self, skill: &str) -> bool {
        shows(self.visible.as_deref(), skill)
    }

    /// The reasons as a caller reads them.
    pub(super) fn reasons_json(&self) -> Vec<serde_json::Value> {
        self.reasons.iter().map(|reason| json!(reason)).collect()
    }
}

/// Whether a skill's name is in one of the namespaces; none: all are shown.
pub(super) fn shows(namespaces: Option<&[String]>, skill: &str) -> bool {
    let within = |namespace: &String| {
        skill
            .strip_prefix(namespace.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    namespaces.is_none_or(|namespaces| namespaces.iter().any(within))
}

/// What both patterns allow. Two patterns of this grammar contain each other or have nothing in common.
fn intersection(a: &NetworkPattern, b: &NetworkPattern) -> Option<NetworkPattern> {
    if contains(a, b) {
        Some(b.clone())
    } else if contains(b, a) {
        Some(a.clone())
    } else {
        None
    }
}

fn contains(outer: &NetworkPattern, inner: &NetworkPattern) -> bool {
    let below = outer.matches(inner.scheme(), inner.host(), inner.port());
    outer == inner || below && (outer.wildcard() || !inner.wildcard())
}
