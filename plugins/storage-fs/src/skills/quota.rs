//! What the published skills of one tenant may take together (`tenant_skill_bytes`).
//!
//! A version stays, so what is there is added up at the start, and what is published after that.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fault::{Fault, Result};
use crate::names::TenantDir;

/// Of all tenants.
#[derive(Debug)]
pub(super) struct Quota {
    /// 0: any amount.
    tenant_bytes: u64,
    used: Mutex<HashMap<TenantDir, u64>>,
}

/// What a version that is being published takes of its tenant's quota. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Part<'a> {
    quota: &'a Quota,
    tenant: &'a TenantDir,
    bytes: u64,
}

impl Quota {
    pub(super) fn new(tenant_bytes: u64) -> Self {
        Quota {
            tenant_bytes,
            used: Mutex::default(),
        }
    }

    /// For a version that is there, whatever is left.
    pub(super) fn add(&self, tenant: &TenantDir, bytes: u64) {
        let mut used = self.used();
        let sum = used.entry(tenant.clone()).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// For a version that is to be there.
    pub(super) fn take<'a>(&'a self, tenant: &'a TenantDir, bytes: u64) -> Result<Part<'a>> {
        let mut used = self.used();
        let before = used.get(tenant).copied().unwrap_or_default();
        let sum = before.saturating_add(bytes);
        if self.tenant_bytes > 0 && sum > self.tenant_bytes {
            return Err(Fault::SkillsOfTenant(format!(
                "the skills of this tenant would take more than the {} bytes that they may (tenant_skill_bytes): publish less, \
                 or ask the operator for room",
                self.tenant_bytes
            )));
        }
        used.insert(tenant.clone(), sum);
        Ok(Part {
            quota: self,
            tenant,
            bytes,
        })
    }

    fn used(&self) -> MutexGuard<'_, HashMap<TenantDir, u64>> {
        // A panic while it was held leaves numbers, each of them valid.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part<'_> {
    /// The version is there, and stays.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut used = self.quota.used();
        if let Some(sum) = used.get_mut(self.tenant) {
            *sum -= self.bytes;
            // Whoever has nothing is not remembered.
            if *sum == 0 {
                used.remove(self.tenant);
            }
        }
    }
}
