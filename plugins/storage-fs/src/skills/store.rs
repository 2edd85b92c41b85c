//! Skills in the writable store: `tenants/<tenant>/skills/<name>/<version>/{meta.json,files/...}`.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use skillgate_plugin_sdk::Level;
use skillgate_plugin_sdk::model::{PutSkill, Skill, SkillFile};
use skillgate_skill::{Version, file_digest, files, tree_digest};

use super::index::{Entry, Index};
use super::quota::Quota;
use super::sound::{Sound, is_sound};
use super::turns::Turns;
use super::{MAX_FILE_BYTES, MAX_SKILL_BYTES, check, check_path, no_file};
use crate::beneath;
use crate::fault::{Fault, Result};
use crate::floor::Size;
use crate::ground::{Ground, Published, TARGET};
use crate::names::TenantDir;
use crate::seal::{self, META_FILE};

const FILES: &str = "files";

/// The part of `meta.json` that a listing needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    tenant: String,
    name: String,
    version: String,
    namespace: String,
    kind: String,
    description: String,
    publisher: String,
    tree_sha256: String,
}

/// Of a skill beside its files and what they are in: two directories and one file, and four directories above them, which may
/// not be there.
const INODES_BESIDE: u64 = 7;

/// `meta.json` of a skill version.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    head: Head,
    manifest: Box<RawValue>,
    files: Vec<File>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) sha256: String,
    pub(super) size_bytes: u64,
}

/// `meta.json` again, when the manifest is not wanted.
#[derive(Deserialize)]
struct Brief {
    head: Head,
    files: Vec<File>,
}

impl Head {
    fn skill(&self) -> Skill {
        let head = self.clone();
        Skill {
            read_only: false,
            name: head.name,
            version: head.version,
            namespace: head.namespace,
            kind: head.kind,
            description: head.description,
            tree_sha256: head.tree_sha256,
            publisher: head.publisher,
            manifest_json: Vec::new(),
            files: Vec::new(),
        }
    }
}

impl Meta {
    fn skill(&self) -> Skill {
        let file = |file: &File| SkillFile {
            path: file.path.clone(),
            sha256: file.sha256.clone(),
            size_bytes: file.size_bytes,
        };
        Skill {
            manifest_json: self.manifest.get().as_bytes().to_vec(),
            files: self.files.iter().map(file).collect(),
            ..self.head.skill()
        }
    }
}

/// The skills of all tenants of a store.
#[derive(Debug)]
pub(crate) struct Stored {
    ground: Arc<Ground>,
    tenants: RwLock<HashMap<TenantDir, Index<Sound>>>,
    unread: usize,
    /// Files, and directories of them, that were not what was published when they were last asked for, by their path.
    damaged: Mutex<BTreeSet<String>>,
    turns: Turns,
    quota: Quota,
}

fn parent(tenant: &TenantDir, name: &str) -> String {
    format!("tenants/{}/skills/{name}", tenant.as_str())
}

impl Stored {
    /// Reads the `meta.json` of every version. One that cannot be read is left out, named in the log, and counted.
    pub(crate) fn load(ground: Arc<Ground>, tenant_bytes: u64) -> Result<Stored> {
        let (mut tenants, mut unread) = (HashMap::new(), 0);
        let quota = Quota::new(tenant_bytes);
        for tenant in directories(&ground, "tenants", &mut unread)? {
            let Some(dir) = TenantDir::from_entry(&tenant) else {
                skip(
                    &ground,
                    &format!("tenants/{tenant}"),
                    "not the name of a tenant",
                );
                continue;
            };
            let mut index = Index::default();
            let skills = format!("tenants/{tenant}/skills");
            for name in directories(&ground, &skills, &mut unread)? {
                let above = parent(&dir, &name);
                for version in directories(&ground, &above, &mut unread)? {
                    let path = format!("{above}/{version}");
                    match load_one(&ground, &dir, &name, &version, &path) {
                        Ok((parsed, skill, bytes)) => {
                            quota.add(&dir, bytes);
                            index.insert(parsed, skill, Sound::default());
                        }
                        Err(fault) if fault.is_shortage() => return Err(fault),
                        Err(fault) => {
                            unread += 1;
                            skip(&ground, &path, &fault.to_string());
                        }
                    }
                }
            }
            if index.len() > 0 {
                tenants.insert(dir, index);
            }
        }
        Ok(Stored {
            ground,
            tenants: RwLock::new(tenants),
            unread,
            damaged: Mutex::default(),
            turns: Turns::default(),
            quota,
        })
    }

    /// Works with the index of a tenant.
    pub(crate) fn with<R>(
        &self,
        tenant: &TenantDir,
        work: impl FnOnce(Option<&Index<Sound>>) -> R,
    ) -> R {
        work(
            self.tenants
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(tenant),
        )
    }

    pub(crate) fn count(&self) -> usize {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.values().map(Index::len).sum()
    }

    /// Versions, and directories of them, that are there and could not be read at the start: to whoever asks for them they are
    /// not there until the next one.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    pub(crate) fn get(&self, tenant: &TenantDir, entry: &Entry<Sound>) -> Result<Skill> {
        let meta = self.meta(tenant, entry);
        self.tell(place(tenant, &entry.skill), meta)
            .map(|meta| meta.skill())
    }

    /// The bytes of a file, checked against its digest.
    pub(crate) fn read(
        &self,
        tenant: &TenantDir,
        entry: &Entry<Sound>,
        path: &str,
    ) -> Result<Vec<u8>> {
        let version = place(tenant, &entry.skill);
        let meta = self.meta(tenant, entry);
        let meta = self.tell(version.clone(), meta)?;
        let file = meta.files.iter().find(|file| file.path == path);
        let file =
            file.ok_or_else(|| no_file(path, meta.files.iter().map(|file| file.path.as_str())))?;
        let at = format!("{version}/{FILES}/{path}");
        let bytes = beneath::read_file(self.ground.root(), &at, MAX_FILE_BYTES);
        let bytes = is_sound(bytes, &at, file);
        self.tell(at, bytes)
    }

    /// The directory, whose files are what was published when this returns.
    pub(crate) fn tree(&self, tenant: &TenantDir, entry: &Entry<Sound>) -> Result<OwnedFd> {
        let version = place(tenant, &entry.skill);
        let at = format!("{version}/{FILES}");
        let meta = self.meta(tenant, entry);
        let meta = self.tell(version, meta)?;
        let dir = beneath::open_dir(self.ground.root(), &at);
        let sound = dir
            .and_then(|dir| entry.place.check(&dir, &at, &meta.files).map(|()| dir))
            .map_err(|fault| lost(&at, fault));
        self.tell(at, sound)
    }

    /// Notes, and says once, what is damaged at `at`, and when it no longer is.
    fn tell<T>(&self, at: String, outcome: Result<T>) -> Result<T> {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, message, why) = match &outcome {
            Err(fault @ Fault::Corrupt(_)) if !damaged.contains(&at) => (
                Level::Error,
                "a skill is not what was published: it is given to nobody until it is restored",
                fault.to_string(),
            ),
            Ok(_) if damaged.contains(&at) => (
                Level::Info,
                "a skill is what was published again",
                String::new(),
            ),
            _ => return outcome,
        };
        let fields = [("path", at.as_str()), ("error", &why)];
        self.ground.host().log(level, TARGET, message, &fields);
        if outcome.is_err() {
            damaged.insert(at);
        } else {
            damaged.remove(&at);
        }
        outcome
    }

    pub(crate) fn damaged(&self) -> usize {
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.len()
    }

    pub(crate) fn put(&self, put: &PutSkill) -> Result<Skill> {
        let tenant = TenantDir::new(&put.tenant)?;
        let version = check(&put.name, &put.version)?;
        let meta = meta_of(put)?;
        let above = parent(&tenant, &put.name);
        let path = format!("{above}/{}", put.version);
        let _turn = self.turns.wait(path.clone());
        let known = self.with(&tenant, |index| {
            index.and_then(|index| index.get(&put.name, &version))
        });
        if let Some(entry) = known {
            return self.put_again(&tenant, &entry, &meta, &above);
        }
        let sealed = seal::seal(&meta)?;
        let size = size_of(&meta.files, sealed.len() as u64);
        let part = self.quota.take(&tenant, size.with_blocks().bytes)?;
        let mut staging = self.ground.stage(size)?;
        staging.make_dir(FILES)?;
        for (path, data) in &put.files {
            staging.write(&format!("{FILES}/{path}"), data)?;
        }
        staging.write(META_FILE, &sealed)?;
        match staging.synced()?.publish(&above, &put.version)? {
            Published::Done => {
                part.keep();
                self.learn(&tenant, version, meta.head.skill());
                Ok(meta.skill())
            }
            Published::Exists => {
                // What is there could not be read at the start, or has come since by other hands.
                let loaded = load_one(&self.ground, &tenant, &put.name, &put.version, &path);
                let (version, skill, bytes) = loaded.map_err(|fault| match fault.is_missing() {
                    true => Fault::Corrupt(format!(
                        "{path}: something that is no skill is in its place: remove it"
                    )),
                    false => fault,
                })?;
                let entry = Entry {
                    skill: skill.clone(),
                    place: Sound::default(),
                };
                let answer = self.put_again(&tenant, &entry, &meta, &above)?;
                if self.learn(&tenant, version, skill) {
                    self.quota.add(&tenant, bytes);
                }
                Ok(answer)
            }
        }
    }

    /// The version is there. With the same content this succeeds, once it is known to be durable: whoever made it may have
    /// been killed before it was.
    fn put_again(
        &self,
        tenant: &TenantDir,
        entry: &Entry<Sound>,
        meta: &Meta,
        above: &str,
    ) -> Result<Skill> {
        if entry.skill.tree_sha256 != meta.head.tree_sha256 {
            return Err(Fault::AlreadyExists(format!(
                "{} {} exists with other content: publish a new version",
                entry.skill.name, entry.skill.version
            )));
        }
        self.ground.settle(above)?;
        self.get(tenant, entry)
    }

    /// False: it was known.
    fn learn(&self, tenant: &TenantDir, version: Version, skill: Skill) -> bool {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        tenants
            .entry(tenant.clone())
            .or_default()
            .insert(version, skill, Sound::default())
    }

    fn meta(&self, tenant: &TenantDir, entry: &Entry<Sound>) -> Result<Meta> {
        let path = place(tenant, &entry.skill);
        // The index knows it, so it was there.
        let meta: Meta =
            seal::read(self.ground.root(), &path).map_err(|fault| lost(&path, fault))?;
        of_this(
            &meta.head,
            tenant,
            &entry.skill.name,
            &entry.skill.version,
            &path,
        )?;
        if meta.head.tree_sha256 != entry.skill.tree_sha256 {
            return Err(Fault::Corrupt(format!(
                "{path}: it is about other content than when it was first read: restore it from a backup"
            )));
        }
        of_these(&meta.head, &meta.files, &path)?;
        Ok(meta)
    }
}

fn place(tenant: &TenantDir, skill: &Skill) -> String {
    format!("{}/{}", parent(tenant, &skill.name), skill.version)
}

/// What is missing of a version that is there, or cannot be read any more, is damage.
fn lost(path: &str, fault: Fault) -> Fault {
    match fault {
        missing if missing.is_missing() => {
            Fault::Corrupt(format!("{path}: missing: restore it from a backup"))
        }
        Fault::OutOfRange(_) => {
            Fault::Corrupt(format!("{path}: {fault}: restore it from a backup"))
        }
        damage if damage.is_damage() => {
            Fault::Corrupt(format!("{path}: {damage}: restore it from a backup"))
        }
        other => other,
    }
}

/// A record in the place of another's has that one's publisher, and is somebody else's.
fn of_this(head: &Head, tenant: &TenantDir, name: &str, version: &str, path: &str) -> Result<()> {
    if head.name != name || head.version != version || TenantDir::new(&head.tenant)? != *tenant {
        return Err(Fault::Corrupt(format!(
            "{path}: it is about another skill, version or tenant"
        )));
    }
    Ok(())
}

/// The digest that a version is known and decided by has to be that of its files.
fn of_these(head: &Head, files: &[File], path: &str) -> Result<()> {
    let digests = files
        .iter()
        .map(|file| (file.path.as_str(), file.sha256.as_str()));
    if tree_digest(digests) == head.tree_sha256 {
        return Ok(());
    }
    Err(Fault::Corrupt(format!(
        "{path}: its digest is not that of its files: restore it from a backup"
    )))
}

/// Digests and sizes of what is to be stored; the host's digest of the whole has to be the same.
fn meta_of(put: &PutSkill) -> Result<Meta> {
    let mut paths = Vec::with_capacity(put.files.len());
    let mut files = Vec::with_capacity(put.files.len());
    for (path, data) in &put.files {
        paths.push((check_path(path)?, data.len() as u64));
        if data.len() as u64 > MAX_FILE_BYTES {
            return Err(Fault::OutOfRange(format!(
                "{path:?} has {} bytes, and a file of a skill may have {MAX_FILE_BYTES}",
                data.len()
            )));
        }
        files.push(File {
            path: path.clone(),
            sha256: file_digest(data),
            size_bytes: data.len() as u64,
        });
    }
    files::check(
        paths.iter().map(|(path, size)| (path, *size)),
        MAX_SKILL_BYTES,
    )
    .map_err(|problems| {
        let texts: Vec<String> = problems.iter().take(5).map(ToString::to_string).collect();
        Fault::Invalid(texts.join("; "))
    })?;
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let tree_sha256 = tree_digest(
        files
            .iter()
            .map(|file| (file.path.as_str(), file.sha256.as_str())),
    );
    if tree_sha256 != put.tree_sha256 {
        return Err(Fault::Invalid(format!(
            "the digest {:?} does not belong to these files, whose digest is {tree_sha256}",
            put.tree_sha256
        )));
    }
    let manifest = std::str::from_utf8(&put.manifest_json)
        .map_err(|error| error.to_string())
        .and_then(|text| RawValue::from_string(text.to_owned()).map_err(|error| error.to_string()))
        .map_err(|why| Fault::Invalid(format!("the manifest is not json: {why}")))?;
    Ok(Meta {
        head: Head {
            tenant: put.tenant.clone(),
            name: put.name.clone(),
            version: put.version.clone(),
            namespace: put.namespace.clone(),
            kind: put.kind.clone(),
            description: put.description.clone(),
            publisher: put.publisher.clone(),
            tree_sha256,
        },
        manifest,
        files,
    })
}

/// What a version takes.
fn size_of(files: &[File], sealed_bytes: u64) -> Size {
    // Sizes are read from the disk, too: what stands there need not be true.
    let sizes = files.iter().map(|file| file.size_bytes);
    let bytes = sizes.fold(sealed_bytes, u64::saturating_add);
    let mut directories = BTreeSet::new();
    for File { path, .. } in files {
        directories.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    Size {
        bytes,
        inodes: (files.len() + directories.len()) as u64 + INODES_BESIDE,
    }
}

/// With the bytes that it takes.
fn load_one(
    ground: &Ground,
    tenant: &TenantDir,
    name: &str,
    version: &str,
    path: &str,
) -> Result<(Version, Skill, u64)> {
    let parsed = check(name, version)?;
    let (Brief { head, files }, sealed_bytes) = seal::read_sized(ground.root(), path)?;
    of_this(&head, tenant, name, version, path)?;
    of_these(&head, &files, path)?;
    let size = size_of(&files, sealed_bytes).with_blocks();
    Ok((parsed, head.skill(), size.bytes))
}

/// The names of the directories in `path`; none when it is not there, or cannot be read, which counts.
fn directories(ground: &Ground, path: &str, unread: &mut usize) -> Result<Vec<String>> {
    let listed = beneath::open_dir(ground.root(), path).and_then(|dir| beneath::entries(dir, path));
    let entries = match listed {
        Ok(entries) => entries,
        Err(fault) if fault.is_missing() => return Ok(Vec::new()),
        // A start that does not see what is there must not go on as if it were not.
        Err(fault) if fault.is_shortage() => return Err(fault),
        Err(fault) => {
            *unread += 1;
            skip(ground, path, &fault.to_string());
            return Ok(Vec::new());
        }
    };
    let mut names = Vec::new();
    for (name, kind) in entries {
        if kind == FileType::Directory {
            names.push(name);
        } else {
            skip(ground, &format!("{path}/{name}"), "not a directory");
        }
    }
    Ok(names)
}

fn skip(ground: &Ground, path: &str, why: &str) {
    ground.host().log(
        Level::Warn,
        TARGET,
        "left out of the store: it is not what it should be",
        &[("path", path), ("reason", why)],
    );
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_is_out_of_reach_for_now_is_not_lost() {
        let is_lost = |fault| matches!(lost("a", fault), Fault::Corrupt(_));
        let os = |errno| Fault::os("open", "a/b")(errno);
        for fault in [os(Errno::MFILE), os(Errno::NOMEM), os(Errno::ACCESS)] {
            assert!(!is_lost(fault));
        }
        let there_is_more = Fault::OutOfRange(String::new());
        for fault in [os(Errno::NOENT), os(Errno::IO), there_is_more] {
            assert!(is_lost(fault));
        }
    }
}
