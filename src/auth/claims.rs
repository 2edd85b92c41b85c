//! From the claims of a token that was verified to the subject that policies see, as the configuration maps them.
//!
//! A claim that is there with another type than it must have refuses the token: a role list that is misread as empty
//! could open what a rule closes.

use serde_json::{Map, Value};

use super::refused::Refused;
use super::{Actor, Subject};
use crate::config::{self, TENANT_RULE, is_tenant};

/// Longest `sub` (OpenID Connect Core section 2), in bytes.
const SUBJECT_BYTES_MAX: usize = 255;
/// Longest role, group or scope, in bytes.
const WORD_BYTES_MAX: usize = 256;
/// Deepest nesting of a claim that policies see, in lists and objects. It lies some levels deeper in the record of a
/// decision, and one whose line is nested deeper than 128 levels is no JSON to whoever reads the log.
const EXPOSED_LEVELS_MAX: usize = 16;

/// `auth.issuers.claims`, ready to use.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    subject: Vec<Path>,
    tenant: Vec<Path>,
    roles: Vec<Path>,
    groups: Vec<Path>,
    scopes: Vec<Path>,
    expose: Vec<Path>,
    default_tenant: Option<String>,
    /// Empty: any.
    tenants: Vec<String>,
}

/// Where a claim is.
#[derive(Debug, Clone)]
struct Path {
    text: String,
    members: Vec<String>,
}

impl Path {
    /// A name with `:` or `/` in it is one name: `https://example.com/roles`. Any other goes into an object at each `.`
    fn new(text: &str) -> Self {
        let members = if text.contains([':', '/']) {
            vec![text.to_owned()]
        } else {
            text.split('.').map(str::to_owned).collect()
        };
        Path {
            text: text.to_owned(),
            members,
        }
    }

    fn find<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a Value> {
        let (last, above) = self.members.split_last()?;
        let mut table = claims;
        for member in above {
            table = table.get(member)?.as_object()?;
        }
        table.get(last)
    }
}

impl Mapping {
    pub(super) fn new(issuer: &config::Issuer) -> Self {
        let paths = |texts: &[String]| texts.iter().map(|text| Path::new(text)).collect();
        let claims = &issuer.claims;
        Mapping {
            subject: paths(&claims.subject),
            tenant: paths(&claims.tenant),
            roles: paths(&claims.roles),
            groups: paths(&claims.groups),
            scopes: paths(&claims.scopes),
            expose: paths(&claims.expose),
            default_tenant: issuer.default_tenant.clone(),
            tenants: issuer.tenants.clone(),
        }
    }

    /// Who the token is for. `expires_s` is its `exp`.
    pub(super) fn subject(
        &self,
        issuer: &str,
        claims: &Map<String, Value>,
        expires_s: u64,
    ) -> Result<Subject, Refused> {
        let (id_claim, id) = first(&self.subject, claims).ok_or(Refused::Lacks("subject (sub)"))?;
        let id = text(id_claim, id, is_subject, SUBJECT_RULE)?;
        let tenant = match first(&self.tenant, claims) {
            Some((claim, tenant)) => text(claim, tenant, is_tenant, TENANT_RULE)?,
            None => self.default_tenant.clone().ok_or(Refused::Lacks(
                "tenant claim, and this server has no default one for its issuer",
            ))?,
        };
        if !self.tenants.is_empty() && !self.tenants.contains(&tenant) {
            return Err(Refused::Tenant);
        }
        let actor = claims.get("act").map(actor).transpose()?;
        let mut exposed = Map::new();
        for path in &self.expose {
            let Some(value) = path.find(claims) else {
                continue;
            };
            if !is_within(value, EXPOSED_LEVELS_MAX) {
                return Err(Refused::Claim(path.text.clone(), EXPOSED_RULE));
            }
            if !is_exact(value) {
                return Err(Refused::Claim(path.text.clone(), EXACT_RULE));
            }
            exposed.insert(path.text.clone(), value.clone());
        }
        Ok(Subject {
            authenticated: true,
            kind: kind(claims),
            id,
            tenant,
            issuer: issuer.to_owned(),
            roles: words(&self.roles, claims, false)?,
            groups: words(&self.groups, claims, false)?,
            scopes: words(&self.scopes, claims, true)?,
            claims: exposed,
            actor,
            expires_s: Some(expires_s),
            accepted_until_s: Some(expires_s),
            signed: None,
        })
    }
}

const SUBJECT_RULE: &str = "1 to 255 printable ASCII characters, no space at either end";
const EXPOSED_RULE: &str = "lists and objects within each other at most 16 levels deep";

/// Whether lists and objects are within each other at most so many levels deep.
fn is_within(value: &Value, levels: usize) -> bool {
    let inside = |value| is_within(value, levels - 1);
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(inside),
        Value::Object(members) => levels > 0 && members.values().all(inside),
        _ => true,
    }
}

const EXACT_RULE: &str = "without numbers beyond 64 bits, of which rules would see rounded ones: as a text it can be long";

/// Whether it has no number that may have been rounded when it was read: an integer beyond 64 bits has become a double.
fn is_exact(value: &Value) -> bool {
    const BEYOND: f64 = (1_u64 << 63) as f64;
    match value {
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(members) => members.values().all(is_exact),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().is_some_and(|number| number.abs() < BEYOND)
        }
        _ => true,
    }
}

/// A caller's name as every token must have it, for clap's `value_parser`.
///
/// # Errors
/// The rule that it breaks.
pub fn check_subject(text: &str) -> Result<String, String> {
    if is_subject(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("a caller's name is {SUBJECT_RULE}"))
    }
}

/// ASCII as OpenID Connect has it, so that no two look alike.
fn is_subject(text: &str) -> bool {
    (1..=SUBJECT_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
}

/// The first of the claims that is there.
fn first<'a, 'b>(
    paths: &'a [Path],
    claims: &'b Map<String, Value>,
) -> Option<(&'a str, &'b Value)> {
    paths
        .iter()
        .find_map(|path| Some((path.text.as_str(), path.find(claims)?)))
}

fn text(
    claim: &str,
    value: &Value,
    fits: impl Fn(&str) -> bool,
    rule: &'static str,
) -> Result<String, Refused> {
    match value.as_str() {
        Some(text) if fits(text) => Ok(text.to_owned()),
        _ => Err(Refused::Claim(claim.to_owned(), rule)),
    }
}

/// All words of all the claims that are there, each once. One text is one word, or for scopes words between spaces
/// (RFC 8693 section 4.2).
fn words(paths: &[Path], claims: &Map<String, Value>, split: bool) -> Result<Vec<String>, Refused> {
    const RULE: &str =
        "a string or a list of strings of at most 256 bytes without control characters";
    let mut all: Vec<String> = Vec::new();
    for path in paths {
        let wrong = || Refused::Claim(path.text.clone(), RULE);
        let mut add = |word: &str| {
            let fits =
                (1..=WORD_BYTES_MAX).contains(&word.len()) && !word.contains(char::is_control);
            if !fits {
                return Err(wrong());
            }
            if !all.iter().any(|known| known == word) {
                all.push(word.to_owned());
            }
            Ok(())
        };
        match path.find(claims) {
            None => {}
            Some(Value::String(text)) if split => {
                text.split(' ')
                    .filter(|word| !word.is_empty())
                    .try_for_each(&mut add)?;
            }
            Some(Value::String(text)) => add(text)?,
            Some(Value::Array(items)) => {
                for item in items {
                    add(item.as_str().ok_or_else(wrong)?)?;
                }
            }
            Some(_) => return Err(wrong()),
        }
    }
    Ok(all)
}

/// Who acts for the subject (RFC 8693 section 4.1).
fn actor(act: &Value) -> Result<Actor, Refused> {
    let id = act.get("sub").unwrap_or(&Value::Null);
    Ok(Actor {
        id: text("act.sub", id, is_subject, SUBJECT_RULE)?,
    })
}

/// The claims that name the client which a token was issued to: RFC 9068 section 2.2, OpenID Connect Core section 2, and Okta.
pub(super) const CLIENT_CLAIMS: [&str; 3] = ["client_id", "azp", "cid"];

/// A client that acts for itself has its own name as `sub` (RFC 9068 section 2.2), whatever claim names the caller: a user may
/// choose what others say, such as the name he goes by. Entra says so in `idtyp`.
fn kind(claims: &Map<String, Value>) -> &'static str {
    let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
    let sub = text("sub");
    let is_sub = |claim: &str| sub.is_some() && text(claim) == sub;
    if CLIENT_CLAIMS.into_iter().any(is_sub) || text("idtyp") == Some("app") {
        "service"
    } else {
        "user"
    }
}
