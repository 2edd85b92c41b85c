//! The input document `skills.policy.input/v1`: what the rules see of a call. Its members are always there; of those within `request`
//! and `limits`, the ones that the call has.
//!
//! Code and the content of blobs are not in it, nor arguments but those of skills that the operator has named. It is built as the engine's own values; what a skill
//! declares is prepared once for each digest and shared, who asks once for each verified token.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use regorus::Value;
use skillgate_plugin_sdk::model::BlobStat;
use skillgate_skill::NetworkPattern;

use super::Facts;
use super::engine::Fault;
use crate::auth::Subject;
use crate::catalog::Skill;
use crate::json;

/// Prepared skills that are kept, and about how many bytes of them; at the next one the cache starts anew.
const SKILLS_MAX: usize = 4096;
const SKILLS_BYTES_MAX: usize = 64 << 20;
/// Prepared subjects that are kept; at the next one the cache starts anew.
const SUBJECTS_MAX: usize = 1024;
/// Longest arguments that rules see, in bytes of JSON.
pub const ARGS_BYTES_MAX: usize = 64 << 10;
/// The version of this document.
pub(super) const SCHEMA: &str = "skills.policy.input/v1";

/// What the sandbox can do, for rules about secrets.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// `process`
    pub plugin: String,
}

/// Makes input documents.
#[derive(Debug)]
pub(super) struct Inputs {
    sandbox: Value,
    skills: Mutex<Skills>,
    /// By the address of the subject, which is nobody else's while the reference beside the value keeps it taken.
    subjects: Mutex<HashMap<usize, (Weak<Subject>, Value)>>,
}

#[derive(Debug, Default)]
struct Skills {
    by_digest: HashMap<String, Prepared>,
    bytes: usize,
}

/// What the digest does not say is kept beside the value, to be compared.
#[derive(Debug)]
struct Prepared {
    publisher: String,
    on_shelf: bool,
    value: Value,
}

macro_rules! keys {
    ($($name:ident)*) => {
        /// Names of members, made once: a document is built for every call.
        struct Keys { $($name: Value,)* }
        static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
            $($name: Value::from(stringify!($name)),)*
        });
    };
}
keys! {
    schema request method id protocol subject authenticated kind tenant issuer roles groups scopes actor claims
    source ip proxied time now_s weekday skills name unread version namespace digest provenance origin publisher signed
    permissions network pattern scheme host wildcard port suffixes secrets blobs owner size_bytes limits requested
    timeout_ms blob_bytes args sandbox plugin isolation secret_delivery
}

fn object<const N: usize>(members: [(&Value, Value); N]) -> Value {
    let members: BTreeMap<Value, Value> = members
        .into_iter()
        .map(|(key, value)| (key.clone(), value))
        .collect();
    Value::from(members)
}

fn array(items: impl Iterator<Item = Value>) -> Value {
    Value::from(items.collect::<Vec<_>>())
}

fn texts(items: &[String]) -> Value {
    array(items.iter().map(|text| Value::from(text.as_str())))
}

impl Inputs {
    pub(super) fn new(sandbox: &Sandbox) -> Self {
        let k = &*KEYS;
        Inputs {
            sandbox: object([
                (&k.plugin, sandbox.plugin.as_str().into()),
                // One compartment for the code and everything that it mounts; secrets as variables. What the bundled
                // sandbox does, and the careful assumption for any other.
                (&k.isolation, "shared".into()),
                (&k.secret_delivery, array(["env".into()].into_iter())),
            ]),
            skills: Mutex::default(),
            subjects: Mutex::default(),
        }
    }

    /// The document for one call, but for the call's id ([`with_id`]). `now_s` counts from 1970; `args` are those of [`args`].
    pub(super) fn build(&self, facts: &Facts, now_s: u64, args: Option<Value>) -> Value {
        let k = &*KEYS;
        let caller = &facts.caller;
        let mut request: BTreeMap<Value, Value> = facts
            .request
            .iter()
            .map(|(name, value)| (Value::from(name.as_str()), Value::from(value.clone())))
            .collect();
        request.insert(k.method.clone(), facts.method.into());
        request.insert(k.protocol.clone(), "skills/0.1".into());
        if let Some(args) = args {
            request.insert(k.args.clone(), args);
        }
        let mut limits = vec![(
            &k.requested,
            match facts.timeout_ms {
                Some(timeout_ms) => object([(&k.timeout_ms, timeout_ms.into())]),
                None => Value::new_object(),
            },
        )];
        if let Some(bytes) = facts.blob_bytes {
            limits.push((&k.blob_bytes, bytes.into()));
        }
        let limits: BTreeMap<Value, Value> = limits
            .into_iter()
            .map(|(key, value)| (key.clone(), value))
            .collect();
        object([
            (&k.schema, SCHEMA.into()),
            (&k.request, request.into()),
            (&k.subject, self.subject(caller.shared_subject())),
            (
                &k.source,
                object([
                    (&k.ip, canonical(caller.ip()).to_string().into()),
                    (&k.proxied, false.into()),
                ]),
            ),
            (
                &k.time,
                object([
                    (&k.now_s, now_s.into()),
                    (&k.weekday, weekday(now_s).into()),
                ]),
            ),
            (
                &k.skills,
                array(
                    facts
                        .skills
                        .iter()
                        .map(|skill| self.skill(skill, facts.publishes)),
                ),
            ),
            (
                &k.blobs,
                array(facts.blobs.iter().map(|stat| blob(stat, caller.tenant()))),
            ),
            (&k.limits, limits.into()),
            (&k.sandbox, self.sandbox.clone()),
        ])
    }

    fn subject(&self, subject: &Arc<Subject>) -> Value {
        let address = Arc::as_ptr(subject).addr();
        let mut known = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = known.get(&address) {
            return value.clone();
        }
        if known.len() >= SUBJECTS_MAX {
            known.clear();
        }
        let value = identity(subject);
        known.insert(address, (Arc::downgrade(subject), value.clone()));
        value
    }

    fn skill(&self, skill: &Skill, is_draft: bool) -> Value {
        // A draft is nobody's skill yet, and what could not be read is none: they must not push published ones out.
        if is_draft || skill.is_unread() {
            return described(skill);
        }
        let mut known = self.skills.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = known.by_digest.get(skill.digest())
            && prepared.publisher == skill.publisher()
            && prepared.on_shelf == skill.on_shelf()
        {
            return prepared.value.clone();
        }
        let bytes = weight(skill);
        if known.by_digest.len() >= SKILLS_MAX || known.bytes + bytes > SKILLS_BYTES_MAX {
            *known = Skills::default();
        }
        let value = described(skill);
        known.bytes += bytes;
        known.by_digest.insert(
            skill.digest().to_owned(),
            Prepared {
                publisher: skill.publisher().to_owned(),
                on_shelf: skill.on_shelf(),
                value: value.clone(),
            },
        );
        value
    }
}

/// The document with the id of its call, which makes it whole.
pub(super) fn with_id(mut document: Value, id: &str) -> Value {
    let k = &*KEYS;
    let request = document
        .as_object_mut()
        .ok()
        .and_then(|members| members.get_mut(&k.request))
        .and_then(|request| request.as_object_mut().ok());
    if let Some(request) = request {
        request.insert(k.id.clone(), id.into());
    }
    document
}

/// The arguments that the rules see of this call: those of the skills that the operator has named.
///
/// # Errors
/// [`Fault::Error`] where they are too long, or the engine would read something else than the code, or nothing: a rule about them
/// must not be got around by keeping them from it.
pub(super) fn args(facts: &Facts, named: &[String]) -> Result<Option<Value>, Fault> {
    let target = facts.skills.first().map(|skill| skill.name());
    let is_named = target.is_some_and(|target| named.iter().any(|name| name == target));
    if facts.method != "execute_skill" || !is_named {
        return Ok(None);
    }
    match &facts.args {
        // Which one is not said: no record has the arguments.
        Some(args) if json::rounded_integer(args).is_some() => Err(Fault::Error(
            "the arguments have an integer beyond 64 bits, of which rules would see a rounded one (policy.include_args): it is sent as a string"
                .into(),
        )),
        Some(args) => Value::from_json_str(args).map(Some).map_err(|error| {
            Fault::Error(format!("the arguments are no JSON to the engine: {error}"))
        }),
        None => Err(Fault::Error(format!(
            "the arguments are longer than the {ARGS_BYTES_MAX} bytes that rules see (policy.include_args)"
        ))),
    }
}

fn identity(subject: &Subject) -> Value {
    let k = &*KEYS;
    let actor = subject.actor.as_ref().map_or(Value::Null, |actor| {
        object([(&k.id, actor.id.as_str().into()), (&k.kind, "agent".into())])
    });
    let claims = serde_json::Value::Object(subject.claims.clone());
    object([
        (&k.authenticated, subject.authenticated.into()),
        (&k.id, subject.id.as_str().into()),
        (&k.kind, subject.kind.into()),
        (&k.tenant, subject.tenant.as_str().into()),
        (&k.issuer, subject.issuer.as_str().into()),
        (&k.roles, texts(&subject.roles)),
        (&k.groups, texts(&subject.groups)),
        (&k.scopes, texts(&subject.scopes)),
        (&k.actor, actor),
        (&k.claims, claims.into()),
    ])
}

fn described(skill: &Skill) -> Value {
    let k = &*KEYS;
    let manifest = skill.manifest();
    let permissions = manifest.permissions();
    let is_unread = skill.is_unread();
    // Of what could not be read nothing is made up: null is equal to no version and no digest. Its namespace is that of a
    // manifest that names none: the beginning of its name, which is known.
    let read = |value: Value| if is_unread { Value::Null } else { value };
    object([
        (&k.name, skill.name().into()),
        (&k.unread, is_unread.into()),
        (&k.version, read(skill.version().into())),
        (&k.namespace, manifest.namespace().to_string().into()),
        (&k.kind, read(manifest.kind().as_str().into())),
        (&k.digest, read(format!("sha256:{}", skill.digest()).into())),
        (
            &k.provenance,
            object([
                // What came through create_skill was written by whoever called it, a model as a rule.
                (
                    &k.origin,
                    if skill.on_shelf() {
                        "registry"
                    } else {
                        "agent"
                    }
                    .into(),
                ),
                (&k.publisher, read(skill.publisher().into())),
                (&k.signed, false.into()),
            ]),
        ),
        (
            &k.permissions,
            object([
                (&k.network, array(permissions.network.iter().map(pattern))),
                (
                    &k.secrets,
                    array(
                        permissions
                            .secrets
                            .iter()
                            .map(|name| name.to_string().into()),
                    ),
                ),
            ]),
        ),
    ])
}

/// About how many bytes of memory [`described`] takes, rather too many: of two of the same digest the first counts too.
fn weight(skill: &Skill) -> usize {
    /// A value that is an object of some members, or a text beside its bytes.
    const OBJECT: usize = 1024;
    const TEXT: usize = 64;
    let permissions = skill.manifest().permissions();
    let network = permissions.network.iter().map(|pattern| {
        let suffixes = pattern.suffixes().map(|suffix| TEXT + suffix.len());
        OBJECT + suffixes.sum::<usize>()
    });
    let secrets = permissions
        .secrets
        .iter()
        .map(|name| TEXT + name.as_str().len());
    4 * OBJECT + network.sum::<usize>() + secrets.sum::<usize>()
}

fn pattern(pattern: &NetworkPattern) -> Value {
    let k = &*KEYS;
    object([
        (&k.pattern, pattern.to_string().into()),
        (&k.scheme, pattern.scheme().as_str().into()),
        (&k.host, pattern.host().into()),
        (&k.wildcard, pattern.wildcard().into()),
        (&k.port, u64::from(pattern.port()).into()),
        (&k.suffixes, array(pattern.suffixes().map(Value::from))),
    ])
}

fn blob(stat: &BlobStat, tenant: &str) -> Value {
    let k = &*KEYS;
    object([
        (&k.id, stat.id.as_str().into()),
        // The store gives a tenant its own blobs only.
        (&k.tenant, tenant.into()),
        (&k.owner, stat.owner.as_str().into()),
        (&k.kind, stat.kind.as_str().into()),
        (&k.size_bytes, stat.size_bytes.into()),
    ])
}

/// `::ffff:10.1.2.3` is `10.1.2.3`: the engine's `net.cidr_contains` does not see it (OPA's does).
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The day in UTC; 1970-01-01 was a Thursday.
fn weekday(now_s: u64) -> &'static str {
    const DAYS: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    DAYS[(now_s / 86_400 % 7) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Caller;

    /// Each is at an address where others have been before.
    #[test]
    fn nobody_is_taken_for_somebody_else() {
        let inputs = Inputs::new(&Sandbox {
            plugin: "process".into(),
        });
        for number in 0..3 * SUBJECTS_MAX {
            let (id, tenant) = (format!("user:{number}"), format!("t{}", number % 7));
            let caller = Caller::for_tests(&tenant, &id, &["operator"]);
            for _ in 0..2 {
                let seen = inputs.subject(caller.shared_subject());
                assert_eq!(seen["id"], Value::from(id.as_str()));
                assert_eq!(seen["tenant"], Value::from(tenant.as_str()));
            }
        }
        assert!(inputs.subjects.lock().unwrap().len() <= SUBJECTS_MAX);
    }

    #[test]
    fn prepared_skills_have_a_bound_in_bytes() {
        let inputs = Inputs::new(&Sandbox {
            plugin: "process".into(),
        });
        // As large as a manifest's permissions can be.
        let host = vec!["a".repeat(14); 16].join(".");
        let patterns: Vec<String> = (1..=64)
            .map(|port| format!("\"https://{host}:{port}\""))
            .collect();
        let patterns = patterns.join(",");
        let mut largest = 0;
        for number in 0..2000 {
            let skill = Skill::unstored(&format!("name = \"acme.s{number}\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"action\"\n[runtime]\nlanguage = \"python\"\nentrypoint = \"code/main.py\"\nexport = \"main\"\n[permissions]\nnetwork = [{patterns}]\n"), false).unwrap();
            inputs.skill(&skill, false);
            largest = largest.max(inputs.skills.lock().unwrap().bytes);
        }
        assert!(
            largest > SKILLS_BYTES_MAX / 2 && largest <= SKILLS_BYTES_MAX,
            "{largest}"
        );
    }

    /// One that the gateway ships with may be allowed what the same files of a tenant's are not.
    #[test]
    fn what_the_digest_does_not_say_is_not_taken_from_another_skill() {
        let inputs = Inputs::new(&Sandbox {
            plugin: "process".into(),
        });
        let manifest =
            "name = \"acme.s\"\nversion = \"1.0.0\"\ndescription = \"d\"\nkind = \"instruction\"\n";
        let [own, on_shelf] = [false, true].map(|it| Skill::unstored(manifest, it).unwrap());
        assert_eq!(own.digest(), on_shelf.digest());
        // Each of them after the other.
        for skill in [&own, &on_shelf, &own] {
            assert_eq!(inputs.skill(skill, false), described(skill));
        }
        assert_ne!(described(&own), described(&on_shelf));
    }

    #[test]
    fn days() {
        assert_eq!(weekday(0), "Thursday");
        assert_eq!(weekday(1_764_000_000), "Monday");
        assert_eq!(weekday(1_764_000_000 + 86_400), "Tuesday");
    }

    #[test]
    fn an_address_has_one_form() {
        for (written, wanted) in [
            ("::ffff:169.254.169.254", "169.254.169.254"),
            ("10.1.2.3", "10.1.2.3"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(canonical(written.parse().unwrap()).to_string(), wanted);
        }
    }
}
