//! A blob on its way in: data streams to a temporary file and through two digests, one of the whole, one of the chunk.

use std::os::fd::OwnedFd;

use sha2::{Digest, Sha256};
use skillgate_plugin_sdk::model::BlobCreate;

use super::quota::Part;
use super::{BlobMeta, CHUNK_BYTES, CHUNKS_FILE, DATA_FILE, DIGEST_BYTES};
use crate::beneath;
use crate::fault::{Fault, Result};
use crate::ground::Staging;
use crate::names::TenantDir;

/// Digests of chunks are written when so many bytes of them are there.
const DIGESTS_BUFFERED: usize = 128 * DIGEST_BYTES;

/// Dropped, it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Writer {
    tenant: TenantDir,
    /// All but id and digest; `expires_unix_ms` is still relative to the commit.
    meta: BlobMeta,
    max_bytes: u64,
    data: OwnedFd,
    /// Only a blob of more than one chunk has the file.
    chunks: Option<OwnedFd>,
    digests: Vec<u8>,
    whole: Sha256,
    chunk: Sha256,
    in_chunk: usize,
    /// After a refused or failed write the content is not what the caller meant: it is never committed.
    failed: bool,
    /// Where tenants have a quota.
    part: Option<Part>,
    /// The last: what is open in it is closed before it is removed.
    staging: Staging,
}

impl Writer {
    pub(super) fn new(
        mut staging: Staging,
        tenant: TenantDir,
        create: &BlobCreate,
        part: Option<Part>,
    ) -> Result<Writer> {
        let data = staging.create(DATA_FILE)?;
        Ok(Writer {
            staging,
            tenant,
            meta: BlobMeta {
                tenant: create.tenant.clone(),
                id: String::new(),
                kind: create.kind.clone(),
                owner: create.owner.clone(),
                run_id: create.run_id.clone(),
                size_bytes: 0,
                sha256: String::new(),
                created_unix_ms: 0,
                expires_unix_ms: create.ttl_s.saturating_mul(1000),
            },
            max_bytes: create.max_bytes,
            data,
            chunks: None,
            digests: Vec::new(),
            whole: Sha256::new(),
            chunk: Sha256::new(),
            in_chunk: 0,
            failed: false,
            part,
        })
    }

    pub(super) fn write(&mut self, data: &[u8]) -> Result<()> {
        self.refuse_failed()?;
        // Until all of it is in.
        self.failed = true;
        let size = self.meta.size_bytes.saturating_add(data.len() as u64);
        if size > self.max_bytes {
            return Err(Fault::OutOfRange(format!(
                "the blob would be larger than the {} bytes that it may have",
                self.max_bytes
            )));
        }
        if let Some(part) = &mut self.part {
            part.grow(size)?;
        }
        self.staging.expect(data.len() as u64)?;
        beneath::write_all(&self.data, DATA_FILE, data)?;
        self.meta.size_bytes = size;
        self.whole.update(data);
        let mut rest = data;
        while !rest.is_empty() {
            let (part, later) = rest.split_at(rest.len().min(CHUNK_BYTES - self.in_chunk));
            self.chunk.update(part);
            self.in_chunk += part.len();
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk()?;
            }
            rest = later;
        }
        self.failed = false;
        Ok(())
    }

    /// Everything but `meta.json` is in place.
    pub(super) fn finish(mut self) -> Result<(Staging, TenantDir, BlobMeta, Option<Part>)> {
        self.refuse_failed()?;
        if self.in_chunk > 0 {
            self.end_chunk()?;
        }
        if self.meta.size_bytes > CHUNK_BYTES as u64 {
            self.flush_digests()?;
        }
        self.meta.sha256 = hex::encode(self.whole.finalize());
        self.staging.close(self.data, DATA_FILE)?;
        if let Some(chunks) = self.chunks {
            self.staging.close(chunks, CHUNKS_FILE)?;
        }
        Ok((self.staging, self.tenant, self.meta, self.part))
    }

    fn end_chunk(&mut self) -> Result<()> {
        self.digests.extend_from_slice(&self.chunk.finalize_reset());
        self.in_chunk = 0;
        if self.digests.len() >= DIGESTS_BUFFERED {
            self.flush_digests()?;
        }
        Ok(())
    }

    fn flush_digests(&mut self) -> Result<()> {
        let file = match self.chunks.take() {
            Some(file) => file,
            None => self.staging.create(CHUNKS_FILE)?,
        };
        beneath::write_all(&file, CHUNKS_FILE, &self.digests)?;
        self.chunks = Some(file);
        self.digests.clear();
        Ok(())
    }

    fn refuse_failed(&self) -> Result<()> {
        if self.failed {
            return Err(Fault::Precondition(
                "an earlier write to this blob failed: abort it and start anew".to_owned(),
            ));
        }
        Ok(())
    }
}
