//! The calls of the contract, each a type: how a plugin is called with it in C, how its answer is read, and (by [`Wire`])
//! how both are written for a plugin in a process of its own.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{
    BlobCreate, Content, Health, PutSkill, RunRequest, RunResult, Skill, SkillPage, SkillQuery,
};
use skillgate_plugin_sdk::wire::Malformed;

use crate::instance::{SandboxTable, StorageTable, Table};
use crate::wire::{In, Out, Read, Wire};
use crate::{answer, request};

/// One call of a plugin, ready to be made.
pub(crate) trait Ask<T: Table>: Wire + Send + Sync + 'static {
    /// As the contract names it.
    const NAME: &'static str;
    /// Its number between the gateway and a plugin's process.
    const CODE: u8;
    /// What it is answered with.
    type Answer: Wire + Send + 'static;

    /// Whom it is for; empty: for the gateway itself.
    fn tenant(&self) -> &str;

    /// It is about to reach the plugin.
    fn begun(&self) {}

    /// The plugin has refused it, and done nothing.
    fn refused(&self) {}

    /// Whether what ends with this call, however that ends, is still there to be thrown away: as long as the call has not reached
    /// the plugin, and when that has refused it. `None`: nothing ends with it.
    fn ends(&self) -> Option<&Arc<AtomicBool>> {
        None
    }

    /// Which life of a plugin's process its handle is of; `None`: it has none, any will do.
    fn life(&self) -> Option<u64> {
        None
    }

    /// Calls the plugin, which may use what this owns until the op completes.
    fn invoke(&self, table: &T, op: abi::Op) -> i32;

    /// Copies the answer.
    ///
    /// # Safety
    /// `p` is null or points to what the contract says that this call answers with, good during the call of complete.
    unsafe fn read(&self, p: *const c_void) -> Read<Self::Answer>;

    /// Is this an answer to this call? For answers of a plugin's process, which have not been through [`Ask::read`] here.
    fn check(&self, answer: &Self::Answer) -> Read<()> {
        let _ = answer;
        Ok(())
    }
}

/// Calls a function of a table, which may be missing.
macro_rules! invoke {
    ($table:ident . $f:ident ( $($arg:expr),* )) => {
        match $table.0.$f {
            // SAFETY: the instance lives until its ops have ended; what the arguments borrow outlives the call, and
            // buffers belong to the op, which keeps `self`.
            Some(f) => unsafe { f($table.0.self_, $($arg),*) },
            None => abi::E_UNIMPLEMENTED,
        }
    };
}

/// A request that is another value under its own name.
macro_rules! wraps {
    ($type:ident($inner:ty)) => {
        impl Wire for $type {
            fn put(&self, out: &mut Out) {
                self.0.put(out);
            }
            fn take(from: &mut In<'_>) -> Read<Self> {
                <$inner>::take(from).map($type)
            }
        }
    };
}

/// A request of texts and numbers.
macro_rules! request {
    ($type:ident { $($name:ident: $kind:ident),* }) => {
        impl Wire for $type {
            fn put(&self, out: &mut Out) {
                $(request!(@put $kind, self.$name, out);)*
                let _ = out;
            }
            fn take(from: &mut In<'_>) -> Read<Self> {
                $(let $name = request!(@take $kind, from, stringify!($name));)*
                let _ = from;
                Ok($type { $($name),* })
            }
        }
    };
    (@put text, $value:expr, $out:ident) => { $out.text(&$value) };
    (@put number, $value:expr, $out:ident) => { $out.u64($value) };
    (@put part, $value:expr, $out:ident) => { $value.put($out) };
    (@take text, $from:ident, $what:expr) => { $from.text($what, usize::MAX)? };
    (@take number, $from:ident, $what:expr) => { $from.u64($what)? };
    (@take part, $from:ident, $what:expr) => { Wire::take($from)? };
}

mod blobs;

/// Gives the calls of a store to a macro: what is served in a process and what is counted is one list.
macro_rules! storage_calls {
    ($to:ident) => {
        $to!(
            AskHealth, Drain, SkillList, SkillGet, SkillRead, SkillTree, SkillPut, BlobCreate,
            BlobWrite, BlobCommit, AskStat, BlobOpen, BlobRead, AskFd, BlobDelete
        )
    };
}
pub(crate) use storage_calls;

macro_rules! names {
    ($($ask:ty),+) => { &[$(<$ask as Ask<StorageTable>>::NAME),+] };
}
/// The calls of a store, as [`crate::CallCounts`] has them.
pub const STORAGE_CALLS: &[&str] = storage_calls!(names);
/// The calls of a sandbox.
pub const SANDBOX_CALLS: &[&str] = &[
    <AskHealth as Ask<SandboxTable>>::NAME,
    <Drain as Ask<SandboxTable>>::NAME,
    Run::NAME,
];

pub(crate) use blobs::{
    AskFd, AskStat, Blob, BlobCommit, BlobDelete, BlobOpen, BlobRead, BlobWrite, Handle,
};

// === every kind ===

pub(crate) struct AskHealth;
request!(AskHealth {});

impl<T: Table> Ask<T> for AskHealth {
    const NAME: &'static str = "health";
    const CODE: u8 = 1;
    type Answer = Health;
    fn tenant(&self) -> &str {
        ""
    }
    fn invoke(&self, table: &T, op: abi::Op) -> i32 {
        match table.health() {
            // SAFETY: the instance lives until its ops have ended.
            Some(f) => unsafe { f(table.self_(), op) },
            None => abi::E_UNIMPLEMENTED,
        }
    }
    unsafe fn read(&self, p: *const c_void) -> Read<Health> {
        // SAFETY: the caller's promise: health answers with a skg_health.
        unsafe { answer::health(p.cast()) }
    }
}

pub(crate) struct Drain;
request!(Drain {});

impl<T: Table> Ask<T> for Drain {
    const NAME: &'static str = "drain";
    const CODE: u8 = 2;
    type Answer = ();
    fn tenant(&self) -> &str {
        ""
    }
    fn invoke(&self, table: &T, op: abi::Op) -> i32 {
        match table.drain() {
            // SAFETY: the instance lives until its ops have ended.
            Some(f) => unsafe { f(table.self_(), op) },
            None => abi::E_UNIMPLEMENTED,
        }
    }
    unsafe fn read(&self, _: *const c_void) -> Read<()> {
        Ok(())
    }
}

// === skills ===

pub(crate) struct SkillList(pub(crate) SkillQuery);

wraps!(SkillList(SkillQuery));

impl Ask<StorageTable> for SkillList {
    const NAME: &'static str = "skill_list";
    const CODE: u8 = 10;
    type Answer = SkillPage;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.skill_list(op, &request::list(&self.0)))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<SkillPage> {
        // SAFETY: the caller's promise: skill_list answers with a skg_skill_page.
        unsafe { answer::skill_page(p.cast(), self.0.limit) }
    }
    fn check(&self, page: &SkillPage) -> Read<()> {
        if page.skills.len() > self.0.limit as usize {
            return Err(Malformed(format!(
                "skills: {} elements, more than the {} that were asked for",
                page.skills.len(),
                self.0.limit
            )));
        }
        Ok(())
    }
}

/// Whose, and which skill: owned, because the call may outlive its caller.
pub(crate) struct Which {
    pub(crate) tenant: String,
    pub(crate) name: String,
    pub(crate) version: String,
}
request!(Which {
    tenant: text,
    name: text,
    version: text
});

impl Which {
    pub(crate) fn new(tenant: &str, name: &str, version: &str) -> Self {
        Which {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
        }
    }
    fn tenant(&self) -> abi::Str {
        abi::Str::of(&self.tenant)
    }
    fn skill(&self) -> abi::SkillRef {
        abi::SkillRef {
            name: abi::Str::of(&self.name),
            version: abi::Str::of(&self.version),
        }
    }
}

pub(crate) struct SkillGet(pub(crate) Which);

wraps!(SkillGet(Which));

impl Ask<StorageTable> for SkillGet {
    const NAME: &'static str = "skill_get";
    const CODE: u8 = 11;
    type Answer = Skill;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.skill_get(op, self.0.tenant(), &self.0.skill()))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<Skill> {
        // SAFETY: the caller's promise: skill_get answers with a skg_skill.
        unsafe { answer::skill(p.cast()) }
    }
}

pub(crate) struct SkillRead {
    pub(crate) which: Which,
    pub(crate) path: String,
}
request!(SkillRead {
    which: part,
    path: text
});

impl Ask<StorageTable> for SkillRead {
    const NAME: &'static str = "skill_read";
    const CODE: u8 = 12;
    type Answer = Content;
    fn tenant(&self) -> &str {
        &self.which.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        let path = abi::Str::of(&self.path);
        invoke!(t.skill_read(op, self.which.tenant(), &self.which.skill(), path))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<Content> {
        // SAFETY: the caller's promise: skill_read answers with a skg_content, whose descriptor it gives away.
        unsafe { answer::content(p.cast()) }
    }
}

pub(crate) struct SkillTree(pub(crate) Which);

wraps!(SkillTree(Which));

impl Ask<StorageTable> for SkillTree {
    const NAME: &'static str = "skill_tree";
    const CODE: u8 = 13;
    type Answer = Content;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        invoke!(t.skill_tree(op, self.0.tenant(), &self.0.skill()))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<Content> {
        // SAFETY: the caller's promise: skill_tree answers with a skg_content, whose descriptor it gives away.
        unsafe { answer::content(p.cast()) }
    }
}

pub(crate) struct SkillPut(pub(crate) PutSkill);

wraps!(SkillPut(PutSkill));

impl Ask<StorageTable> for SkillPut {
    const NAME: &'static str = "skill_put";
    const CODE: u8 = 14;
    type Answer = Skill;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, t: &StorageTable, op: abi::Op) -> i32 {
        let files = request::put_files(&self.0);
        invoke!(t.skill_put(op, &request::put(&self.0, &files)))
    }
    unsafe fn read(&self, p: *const c_void) -> Read<Skill> {
        // SAFETY: the caller's promise: skill_put answers with a skg_skill.
        unsafe { answer::skill(p.cast()) }
    }
}

// === runs ===

/// The mounts' descriptors are the plugin's to use until the op completes: the op keeps the request.
pub(crate) struct Run(pub(crate) Arc<RunRequest>);

impl Wire for Run {
    fn put(&self, out: &mut Out) {
        self.0.put(out);
    }
    fn take(from: &mut In<'_>) -> Read<Self> {
        RunRequest::take(from).map(|request| Run(Arc::new(request)))
    }
}

impl Ask<SandboxTable> for Run {
    const NAME: &'static str = "run";
    const CODE: u8 = 30;
    type Answer = RunResult;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn invoke(&self, table: &SandboxTable, op: abi::Op) -> i32 {
        match table.0.run {
            // SAFETY: the instance lives, and the request is borrowed for the call.
            Some(f) => request::with_run(&self.0, |r| unsafe { f(table.0.self_, op, r) }),
            None => abi::E_UNIMPLEMENTED,
        }
    }
    unsafe fn read(&self, p: *const c_void) -> Read<RunResult> {
        // SAFETY: the caller's promise: run answers with a skg_run_result.
        let result = unsafe { answer::run_result(p.cast(), self.0.limits.output_bytes) }?;
        answer::check_output(&result)?;
        Ok(result)
    }
    fn check(&self, result: &RunResult) -> Read<()> {
        let max = answer::output_max(self.0.limits.output_bytes);
        if result.output_json.len() > max {
            return Err(Malformed(format!(
                "output_json: {} bytes, more than the {max} that are allowed",
                result.output_json.len()
            )));
        }
        answer::check_output(result)
    }
}

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::model::Limits;

    use super::*;

    /// What is read of a struct in C is bounded while it is read; these are the bounds of what another process has read.
    #[test]
    fn the_answer_of_a_process_is_held_to_what_was_asked() {
        let list = SkillList(SkillQuery {
            limit: 1,
            ..SkillQuery::default()
        });
        let page = |len| SkillPage {
            skills: vec![Skill::default(); len],
            more: false,
        };
        assert!(list.check(&page(1)).is_ok());
        let error = list.check(&page(2)).unwrap_err().0;
        assert_eq!(
            error,
            "skills: 2 elements, more than the 1 that were asked for"
        );

        let limits = Limits {
            output_bytes: 4,
            ..Limits::default()
        };
        let run = Run(Arc::new(RunRequest {
            limits,
            ..RunRequest::default()
        }));
        let result = |output: &str, output_spilled, blobs: &[&str]| RunResult {
            completed: true,
            output_json: output.into(),
            output_spilled,
            output_blobs: blobs.iter().map(|id| (*id).to_owned()).collect(),
            ..RunResult::default()
        };
        for (result, why) in [
            (result("null", false, &[]), None),
            (result("12345", false, &[]), Some("output_json: 5 bytes")),
            (result("", true, &["blob:a"]), None),
            (result("", true, &[]), Some("output_blobs is empty")),
            (result("1", true, &["a"]), Some("output_json is not empty")),
        ] {
            let checked = run.check(&result).map_err(|error| error.0);
            match why {
                None => assert_eq!(checked, Ok(())),
                Some(why) => assert!(checked.unwrap_err().contains(why), "{why}"),
            }
        }
    }
}
