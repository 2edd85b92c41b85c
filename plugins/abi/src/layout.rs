//! Every struct and field as the compiler has laid it out, for the test that compares them with the header.

use core::any::type_name;
use core::mem::size_of;

use crate::{basics::*, sandbox::*, storage::*};

/// Lists fields; the pattern without `..` does not compile when one is missing.
macro_rules! layout {
    ($emit:ident; $($name:ident = $c:literal: $($field:ident)+;)+) => { $({
        $emit($c, "", 0, size_of::<$name>(), type_name::<$name>());
        $(
            let (size, name) = described(|s: &$name| &s.$field);
            $emit($c, stringify!($field), crate::offset_of!($name, $field), size, name);
        )+
        let _all = |s: &$name| {
            let $name { $($field: _),+ } = s;
        };
    })+ };
}

fn described<S, T>(_: fn(&S) -> &T) -> (usize, &'static str) {
    (size_of::<T>(), type_name::<T>())
}

/// Calls `emit` with the C struct's name, the field (empty: the struct itself), its offset and size in bytes, and the
/// Rust type.
pub fn layout(mut emit: impl FnMut(&'static str, &'static str, usize, usize, &'static str)) {
    layout! { emit;
        Str = "skg_str": ptr len;
        Bytes = "skg_bytes": ptr len;
        List = "skg_list": ptr len stride;
        Error = "skg_error": struct_size code flags retry_after_ms message detail_json;
        Completion = "skg_completion": struct_size status error result;
        Kv = "skg_kv": key value;
        LogRecord = "skg_log_record": struct_size level op target message fields;
        BlobStat = "skg_blob_stat": struct_size flags size_bytes id kind sha256 owner created_unix_ms;
        Host = "skg_host": struct_size abi_major abi_minor flags ctx name version complete op_cancelled
            log_enabled log get_extension run_output secret_read blob_fd blob_read blob_create blob_write
            blob_finish gate_serve;
        CreateRequest = "skg_create_request": struct_size flags instance_id state_dir config_json;
        SandboxCaps = "skg_sandbox_caps": struct_size egress max_concurrent isolation max_memory_bytes
            max_timeout_ms enforces reserved;
        Limits = "skg_limits": struct_size max_pids wall_ms cpu_ms memory_bytes disk_bytes disk_inodes
            output_bytes;
        Mount = "skg_mount": struct_size source_kind read_only fd target path blob_id sha256 size_bytes;
        RunSkill = "skg_run_skill": struct_size reserved name version entrypoint function;
        EgressRule = "skg_egress_rule": struct_size port scheme host path_prefix;
        Gate = "skg_gate": struct_size mode url token ca_pem rules;
        RunRequest = "skg_run_request": struct_size flags run_id tenant language code skill function args_json
            skills mounts env secrets limits gate traceparent;
        RunResult = "skg_run_result": struct_size status output_json summary error_type error_message
            output_blobs exit_code signal create_us exec_us cpu_us peak_memory_bytes output_spilled reserved;
        Health = "skg_health": struct_size state in_flight capacity message metrics_json report_json;
        Sandbox = "skg_sandbox": struct_size reserved self_ caps run cancel health drain destroy get_extension;
        SandboxFactory = "skg_sandbox_factory": struct_size reserved create;
        SkillRef = "skg_skill_ref": name version;
        SkillKey = "skg_skill_key": namespace_ name version;
        SkillFile = "skg_skill_file": struct_size reserved path sha256 size_bytes;
        Skill = "skg_skill": struct_size flags name version namespace_ kind description tree_sha256 publisher
            manifest_json files;
        ListRequest = "skg_list_request": struct_size limit tenant namespace_ after;
        SkillPage = "skg_skill_page": struct_size more skills;
        Content = "skg_content": struct_size kind fd reserved data size_bytes;
        PutFile = "skg_put_file": path data;
        PutSkill = "skg_put_skill": struct_size flags tenant name version namespace_ kind description publisher
            tree_sha256 manifest_json files;
        BlobOpened = "skg_blob_opened": struct_size fd reader stat;
        Count = "skg_count": n eof;
        Handle = "skg_handle": handle;
        BlobCreateRequest = "skg_blob_create_request": struct_size flags tenant kind owner run_id max_bytes
            ttl_s;
        Storage = "skg_storage": struct_size reserved self_ caps cancel health drain destroy get_extension
            skill_list skill_get skill_read skill_tree skill_put blob_create blob_write blob_commit blob_abort
            blob_stat blob_open blob_read blob_close blob_fd blob_delete;
        StorageFactory = "skg_storage_factory": struct_size reserved create;
        PluginInfo = "skg_plugin_info": struct_size reserved id version vendor description license
            config_schema_json build_info;
        EntryV1 = "skg_entry_v1": magic struct_size abi_major abi_minor min_host_minor flags info get_factory;
        NoteV1 = "skg_note_v1": namesz descsz type_ name magic abi_major abi_minor min_host_minor flags id;
    }
}
