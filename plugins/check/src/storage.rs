//! A store: what it gives is what was put in, for its tenant alone, in the order of the contract.

pub(crate) mod at_once;
pub(crate) mod blobs;
pub(crate) mod committed_at_once;
pub(crate) mod ids;
pub(crate) mod lent;
pub(crate) mod life;
pub(crate) mod skills;
mod tree;
pub(crate) mod writers;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, BlobStat, Content, Error, PutSkill, Result, Skill, SkillQuery,
};

use crate::bench::{Done, Stop, Store, demand, failed_at};

/// Most that is asked for of a file of a skill.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// How much is read from a blob at once.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) const TENANT: &str = "check";
pub(crate) const OTHER: &str = "check-other";

/// What the gateway's service may have: modes that are left to it are not what the contract says.
fn strict_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The contract's digest of a skill's content.
fn tree_digest(files: &[(String, Vec<u8>)]) -> String {
    let lines = files
        .iter()
        .map(|(path, data)| format!("{path}\0{}\n", digest(data)));
    digest(lines.collect::<String>().as_bytes())
}

pub(crate) fn skill(tenant: &str, name: &str, version: &str, content: &[u8]) -> PutSkill {
    let manifest = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    skill_of(
        tenant,
        name,
        version,
        &[
            (
                "SKILL.md",
                b"---\nname: check\ndescription: of the kit\n---\n",
            ),
            ("code/lib/deep.py", b"x = 1\n"),
            ("code/main.py", content),
            ("skill.toml", manifest.as_bytes()),
        ],
    )
}

/// `files` sorted by path.
pub(crate) fn skill_of(
    tenant: &str,
    name: &str,
    version: &str,
    files: &[(&str, &[u8])],
) -> PutSkill {
    let files: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|(path, data)| ((*path).to_owned(), data.to_vec()))
        .collect();
    PutSkill {
        tenant: tenant.to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
        namespace: name
            .rsplit_once('.')
            .map_or("", |(space, _)| space)
            .to_owned(),
        kind: "action".to_owned(),
        description: "a skill of the kit".to_owned(),
        publisher: "kit".to_owned(),
        tree_sha256: tree_digest(&files),
        manifest_json: serde_json::json!({"name": name, "version": version})
            .to_string()
            .into_bytes(),
        files,
    }
}

impl Store<'_> {
    /// Goes on only if the store says that it can do this.
    pub(crate) fn needs(&self, flags: u32, what: &str) -> Done {
        if self.instance.caps() & flags == flags {
            Ok(())
        } else {
            Err(Stop::Skipped(format!("caps says that it has no {what}")))
        }
    }

    pub(crate) fn needs_publishing(&self) -> Done {
        self.needs(
            abi::ST_SKILLS | abi::ST_SKILLS_WRITE,
            "publishing of skills",
        )
    }

    pub(crate) fn put(&self, put: PutSkill) -> Result<Skill> {
        let step = format!(
            "skill_put of {} {} for {}",
            put.name, put.version, put.tenant
        );
        self.call(step, |store| async move { store.skill_put(put).await })
    }

    pub(crate) fn get(&self, tenant: &str, name: &str, version: &str) -> Result<Skill> {
        let step = format!("skill_get of {name:?} {version:?} for {tenant:?}");
        self.call(step, |store| async move {
            store.skill_get(tenant, name, version).await
        })
    }

    pub(crate) fn read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Done<Vec<u8>> {
        Ok(self.try_read(tenant, name, version, path)?)
    }

    pub(crate) fn try_read(
        &self,
        tenant: &str,
        name: &str,
        version: &str,
        path: &str,
    ) -> Result<Vec<u8>> {
        let step = format!("skill_read of {name:?} {version:?} {path:?} for {tenant:?}");
        let content = self.call(step, |store| async move {
            store.skill_read(tenant, name, version, path).await
        })?;
        let io = |error: io::Error| {
            Error::new(
                abi::E_PROTOCOL,
                format!("its descriptor cannot be read: {error}"),
            )
        };
        match content {
            Content::Data(data) => Ok(data),
            Content::File(fd, size) => {
                let data = from_its_beginning(&File::from(fd), FILE_BYTES_MAX).map_err(io)?;
                if data.len() as u64 != size {
                    let text = format!("size_bytes is {size}, and its file has {}", data.len());
                    return Err(Error::new(abi::E_PROTOCOL, text));
                }
                Ok(data)
            }
            Content::Dir(_) | Content::Tar(..) => Err(Error::new(
                abi::E_PROTOCOL,
                "skill_read is answered with a directory",
            )),
        }
    }

    pub(crate) fn list(&self, query: SkillQuery) -> Result<skillgate_plugin_sdk::model::SkillPage> {
        let step = format!(
            "skill_list of {:?}, at most {}, after {:?} {:?}",
            query.namespace, query.limit, query.after.name, query.after.version
        );
        self.call(step, |store| async move { store.skill_list(query).await })
    }

    /// Makes a blob of these chunks.
    pub(crate) fn blob(&self, tenant: &str, chunks: &[&[u8]]) -> Result<BlobStat> {
        let chunks: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.to_vec()).collect();
        let total: usize = chunks.iter().map(Vec::len).sum();
        let create = blob_of(tenant);
        self.call(
            format!("a blob of {total} bytes for {tenant:?}"),
            |store| async move {
                let mut writer = store.blob_create(create).await?;
                for chunk in chunks {
                    writer.write(chunk).await?;
                }
                writer.commit().await
            },
        )
    }

    pub(crate) fn stat(&self, tenant: &str, id: &str) -> Result<BlobStat> {
        self.call(format!("blob_stat for {tenant:?}"), |store| async move {
            store.blob_stat(tenant, id).await
        })
    }

    /// Reads a range of a blob, to its end.
    pub(crate) fn range(&self, tenant: &str, id: &str, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.call(
            format!("blob_open of {len} bytes from {offset} for {tenant:?}"),
            |store| async move {
                let mut reader = store.blob_open(tenant, id, offset, len).await?;
                let mut all = Vec::new();
                loop {
                    let (data, end) = reader.read(CHUNK_BYTES).await?;
                    let stuck = data.is_empty() && !end;
                    all.extend(data);
                    if end {
                        return Ok(all);
                    }
                    if stuck {
                        return Err(Error::new(
                            abi::E_PROTOCOL,
                            "blob_read gives no bytes and no end",
                        ));
                    }
                }
            },
        )
    }
}

pub(crate) fn blob_of(tenant: &str) -> BlobCreate {
    BlobCreate {
        tenant: tenant.to_owned(),
        kind: "application/octet-stream".into(),
        owner: "kit".into(),
        run_id: String::new(),
        max_bytes: 1 << 33,
        ttl_s: 0,
    }
}

/// A call that has to fail in one way.
pub(crate) fn refused<T>(function: &'static str, what: &str, code: i32, result: Result<T>) -> Done {
    match result {
        Ok(_) => Err(failed_at(
            function,
            format!("{what} succeeds; it has to end with {code}"),
        )),
        Err(error) if error.code == code => Ok(()),
        Err(error) => Err(failed_at(
            function,
            format!(
                "{what} ends with {} instead of {code}: {}",
                error.code, error.message
            ),
        )),
    }
}

/// What is told of a skill wherever it is told of, in a list as well, must be what was put.
pub(crate) fn same_head(put: &PutSkill, got: &Skill) -> Done {
    let wanted = [
        &put.name,
        &put.version,
        &put.namespace,
        &put.kind,
        &put.description,
        &put.publisher,
        &put.tree_sha256,
    ];
    let said = [
        &got.name,
        &got.version,
        &got.namespace,
        &got.kind,
        &got.description,
        &got.publisher,
        &got.tree_sha256,
    ];
    demand(said == wanted, || format!("put {wanted:?}, got {said:?}"))?;
    demand(!got.read_only, || {
        format!(
            "{} {} was published, and its flags say SKG_SKILL_READ_ONLY: that it is the operator's",
            got.name, got.version
        )
    })
}

/// Everything of a skill as the store has it must be what was put.
pub(crate) fn same(store: &Store<'_>, put: &PutSkill, got: &Skill) -> Done {
    same_head(put, got)?;
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    demand(json(&got.manifest_json) == json(&put.manifest_json), || {
        "manifest_json is not what was put".into()
    })?;
    let listed: Vec<_> = got
        .files
        .iter()
        .map(|file| (file.path.clone(), file.sha256.clone(), file.size_bytes))
        .collect();
    let expected: Vec<_> = put
        .files
        .iter()
        .map(|(path, data)| (path.clone(), digest(data), data.len() as u64))
        .collect();
    demand(listed == expected, || {
        format!("files are {listed:?}, and what was put has {expected:?}")
    })?;
    for (path, data) in &put.files {
        let read = store.read(&put.tenant, &put.name, &put.version, path)?;
        if read != *data {
            let seen = format!(
                "{path} has {} bytes that are not those that were put",
                read.len()
            );
            return Err(failed_at("skill_read", seen));
        }
    }
    Ok(())
}

/// One of each call, as the gateway makes it; the first that goes wrong.
pub(crate) fn plain_calls(store: &Store<'_>) -> Result<()> {
    let malformed = |error: Error| {
        if error.code == abi::E_PROTOCOL {
            Err(error)
        } else {
            Ok(())
        }
    };
    store
        .call("health", |store| async move { store.health().await })
        .map(drop)
        .or_else(malformed)?;
    let put = skill(
        TENANT,
        "check.plain",
        "1.0.0",
        b"def main(args):\n    return 1\n",
    );
    store.put(put).map(drop).or_else(malformed)?;
    store
        .get(TENANT, "check.plain", "1.0.0")
        .map(drop)
        .or_else(malformed)?;
    let query = SkillQuery {
        limit: 10,
        tenant: TENANT.into(),
        ..SkillQuery::default()
    };
    store.list(query).map(drop).or_else(malformed)?;
    store
        .try_read(TENANT, "check.plain", "1.0.0", "SKILL.md")
        .map(drop)
        .or_else(malformed)?;
    let tree = store.call("skill_tree", |store| async move {
        store.skill_tree(TENANT, "check.plain", "1.0.0").await
    });
    tree.map(drop).or_else(malformed)?;
    let stat = match store.blob(TENANT, &[b"hello"]) {
        Ok(stat) => stat,
        Err(error) => return malformed(error),
    };
    store.stat(TENANT, &stat.id).map(drop).or_else(malformed)?;
    store
        .range(TENANT, &stat.id, 1, 2)
        .map(drop)
        .or_else(malformed)?;
    let fd = store.call("blob_fd", |store| {
        let id = stat.id.clone();
        async move { store.blob_fd(TENANT, &id).await }
    });
    fd.map(drop).or_else(malformed)
}

/// So many bytes at most, from offset 0 wherever the descriptor stands, as the header says: another may read the same one.
fn from_its_beginning(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (mut data, mut piece) = (Vec::new(), vec![0; CHUNK_BYTES]);
    while (data.len() as u64) < bytes_max {
        match file.read_at(&mut piece, data.len() as u64)? {
            0 => break,
            n => data.extend_from_slice(&piece[..n]),
        }
    }
    data.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_is_read_from_its_beginning_wherever_its_descriptor_stands() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; CHUNK_BYTES + 3]).unwrap();
        for _ in 0..2 {
            let data = from_its_beginning(&file, FILE_BYTES_MAX).unwrap();
            assert_eq!(data, [7; CHUNK_BYTES + 3]);
        }
        assert_eq!(from_its_beginning(&file, 5).unwrap(), [7; 5]);
    }
}
