//! The host's requests: plain values as C structs that borrow from them. Each is built, lent to one call, and gone.

use std::os::fd::AsRawFd;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, CreateRequest, PutSkill, RunRequest, SkillQuery, Source,
};
use skillgate_plugin_sdk::wire::size_of_u32;

pub(crate) fn create(r: &CreateRequest) -> abi::CreateRequest {
    abi::CreateRequest {
        struct_size: size_of_u32::<abi::CreateRequest>(),
        flags: 0,
        instance_id: abi::Str::of(&r.instance_id),
        state_dir: abi::Str::of(&r.state_dir),
        config_json: abi::Bytes::of(&r.config_json),
    }
}

pub(crate) fn list(q: &SkillQuery) -> abi::ListRequest {
    abi::ListRequest {
        struct_size: size_of_u32::<abi::ListRequest>(),
        limit: q.limit,
        tenant: abi::Str::of(&q.tenant),
        namespace_: abi::Str::of(&q.namespace),
        after: abi::SkillKey {
            namespace_: abi::Str::of(&q.after.namespace),
            name: abi::Str::of(&q.after.name),
            version: abi::Str::of(&q.after.version),
        },
    }
}

pub(crate) fn put_files(p: &PutSkill) -> Vec<abi::PutFile> {
    p.files
        .iter()
        .map(|(path, data)| abi::PutFile {
            path: abi::Str::of(path),
            data: abi::Bytes::of(data),
        })
        .collect()
}

pub(crate) fn put(p: &PutSkill, files: &[abi::PutFile]) -> abi::PutSkill {
    abi::PutSkill {
        struct_size: size_of_u32::<abi::PutSkill>(),
        flags: 0,
        tenant: abi::Str::of(&p.tenant),
        name: abi::Str::of(&p.name),
        version: abi::Str::of(&p.version),
        namespace_: abi::Str::of(&p.namespace),
        kind: abi::Str::of(&p.kind),
        description: abi::Str::of(&p.description),
        publisher: abi::Str::of(&p.publisher),
        tree_sha256: abi::Str::of(&p.tree_sha256),
        manifest_json: abi::Bytes::of(&p.manifest_json),
        files: abi::List::of(files),
    }
}

pub(crate) fn blob_create(c: &BlobCreate) -> abi::BlobCreateRequest {
    abi::BlobCreateRequest {
        struct_size: size_of_u32::<abi::BlobCreateRequest>(),
        flags: 0,
        tenant: abi::Str::of(&c.tenant),
        kind: abi::Str::of(&c.kind),
        owner: abi::Str::of(&c.owner),
        run_id: abi::Str::of(&c.run_id),
        max_bytes: c.max_bytes,
        ttl_s: c.ttl_s,
    }
}

/// Builds a run request and lends it to `f`.
pub(crate) fn with_run<R>(r: &RunRequest, f: impl FnOnce(&abi::RunRequest) -> R) -> R {
    let skills: Vec<_> = r
        .skills
        .iter()
        .map(|s| abi::RunSkill {
            struct_size: size_of_u32::<abi::RunSkill>(),
            reserved: 0,
            name: abi::Str::of(&s.name),
            version: abi::Str::of(&s.version),
            entrypoint: abi::Str::of(&s.entrypoint),
            function: abi::Str::of(&s.function),
        })
        .collect();
    let mounts: Vec<_> = r
        .mounts
        .iter()
        .map(|m| {
            let (source_kind, fd, path, blob_id) = match &m.source {
                Source::Path(path) => (abi::SRC_PATH, -1, path.as_str(), ""),
                Source::Fd(fd) => (abi::SRC_FD, fd.as_raw_fd(), "", ""),
                Source::Tar(fd) => (abi::SRC_TAR, fd.as_raw_fd(), "", ""),
                Source::Blob(id) => (abi::SRC_BLOB, -1, "", id.as_str()),
            };
            abi::Mount {
                struct_size: size_of_u32::<abi::Mount>(),
                source_kind,
                read_only: u32::from(m.read_only),
                fd,
                target: abi::Str::of(&m.target),
                path: abi::Str::of(path),
                blob_id: abi::Str::of(blob_id),
                sha256: abi::Str::of(&m.sha256),
                size_bytes: m.size_bytes,
            }
        })
        .collect();
    let env: Vec<_> = r
        .env
        .iter()
        .map(|(k, v)| abi::Kv {
            key: abi::Str::of(k),
            value: abi::Str::of(v),
        })
        .collect();
    let secrets: Vec<_> = r.secrets.iter().map(|s| abi::Str::of(s)).collect();
    let limits = abi::Limits {
        struct_size: size_of_u32::<abi::Limits>(),
        max_pids: r.limits.max_pids,
        wall_ms: r.limits.wall_ms,
        cpu_ms: r.limits.cpu_ms,
        memory_bytes: r.limits.memory_bytes,
        disk_bytes: r.limits.disk_bytes,
        disk_inodes: r.limits.disk_inodes,
        output_bytes: r.limits.output_bytes,
    };
    let gate = abi::Gate {
        struct_size: size_of_u32::<abi::Gate>(),
        mode: r.network,
        url: abi::Str::EMPTY,
        token: abi::Str::EMPTY,
        ca_pem: abi::Str::EMPTY,
        rules: abi::List::EMPTY,
    };
    f(&abi::RunRequest {
        struct_size: size_of_u32::<abi::RunRequest>(),
        flags: if r.fresh { abi::REQUEST_FRESH } else { 0 },
        run_id: abi::Str::of(&r.run_id),
        tenant: abi::Str::of(&r.tenant),
        language: abi::Str::of(&r.language),
        code: abi::Str::of(&r.code),
        skill: abi::Str::of(&r.skill),
        function: abi::Str::of(&r.function),
        args_json: abi::Bytes::of(&r.args_json),
        skills: abi::List::of(&skills),
        mounts: abi::List::of(&mounts),
        env: abi::List::of(&env),
        secrets: abi::List::of(&secrets),
        limits: &raw const limits,
        gate: &raw const gate,
        traceparent: abi::Str::of(&r.traceparent),
    })
}
