/// Makes this crate a plugin: declares the entry that the host looks for, the ELF note that it reads first, and a
/// factory for each kind. Once per cdylib, at the top of its `lib.rs`.
///
/// ```ignore
/// skillgate_plugin_sdk::export_plugin! {
///     id: "com.acme.store", version: env!("CARGO_PKG_VERSION"), vendor: "Acme",
///     description: "skills in a bucket", license: "Apache-2.0",
///     config_schema: r#"{"type":"object"}"#,
///     storage: crate::Bucket,          // and/or   sandbox: crate::Cloud,
/// }
/// ```
///
/// `storage` and `sandbox` are types with [`Storage`](crate::Storage) and [`Sandbox`](crate::Sandbox). Those with
/// [`blocking::Storage`](crate::blocking::Storage) and [`blocking::Sandbox`](crate::blocking::Sandbox) are named with
/// `blocking storage: crate::Files,` and `blocking sandbox: crate::Local,`: then the plugin is `SKG_F_BLOCKING`, which is a
/// matter of the whole plugin, so that one plugin does not offer one of each. One program can link only one crate with this
/// macro in it as a Rust library: there is one entry symbol.
#[macro_export]
macro_rules! export_plugin {
    // Repeats something once for a kind that is there.
    (@with $kind:path => $e:expr) => {
        $e
    };
    // Before those whose kinds may all be left out. It would load, and the host would find nothing in it.
    (
        id: $id:expr, version: $version:expr, vendor: $vendor:expr, description: $description:expr,
        license: $license:expr, config_schema: $schema:expr $(,)?
    ) => {
        ::core::compile_error!(
            "a plugin without a kind does nothing: after `config_schema` comes `storage: T` or `sandbox: U`, or both in this \
             order"
        );
    };
    (
        id: $id:expr, version: $version:expr, vendor: $vendor:expr, description: $description:expr,
        license: $license:expr, config_schema: $schema:expr
        $(, storage: $storage:path)? $(, sandbox: $sandbox:path)? $(,)?
    ) => {
        $crate::export_plugin! {
            @entry 0, $id, $version, $vendor, $description, $license, $schema,
            $(storage $storage = storage_factory)? $(sandbox $sandbox = sandbox_factory)?
        }
    };
    (
        id: $id:expr, version: $version:expr, vendor: $vendor:expr, description: $description:expr,
        license: $license:expr, config_schema: $schema:expr
        $(, blocking storage: $storage:path)? $(, blocking sandbox: $sandbox:path)? $(,)?
    ) => {
        $crate::export_plugin! {
            @entry $crate::abi::F_BLOCKING, $id, $version, $vendor, $description, $license, $schema,
            $(storage $storage = blocking_storage_factory)? $(sandbox $sandbox = blocking_sandbox_factory)?
        }
    };
    // Whatever else is said of kinds. Without it the compiler would say no more than that it expects no such word.
    (
        id: $id:expr, version: $version:expr, vendor: $vendor:expr, description: $description:expr,
        license: $license:expr, config_schema: $schema:expr, $($kinds:tt)+
    ) => {
        ::core::compile_error!(
            "a plugin is blocking as a whole, or not: after `config_schema` comes `storage: T` or `sandbox: U`, or both in \
             this order, each of them or none with `blocking` before it; one of each makes two plugins"
        );
    };
    (
        @entry $flags:expr, $id:expr, $version:expr, $vendor:expr, $description:expr, $license:expr, $schema:expr,
        $(storage $storage:path = $storage_factory:ident)? $(sandbox $sandbox:path = $sandbox_factory:ident)?
    ) => {
        const _: () = {
            use $crate::{abi, glue};

            const FLAGS: u32 = $flags;
            static INFO: abi::PluginInfo = abi::PluginInfo {
                struct_size: ::core::mem::size_of::<abi::PluginInfo>() as u32,
                reserved: 0,
                id: abi::Str::new($id),
                version: abi::Str::new($version),
                vendor: abi::Str::new($vendor),
                description: abi::Str::new($description),
                license: abi::Str::new($license),
                config_schema_json: abi::Str::new($schema),
                build_info: abi::Str::new($crate::BUILD_INFO),
            };
            $(static STORAGE: abi::StorageFactory = glue::$storage_factory::<$storage>();)?
            $(static SANDBOX: abi::SandboxFactory = glue::$sandbox_factory::<$sandbox>();)?

            unsafe extern "C" fn get_factory(id: *const u8) -> *const ::core::ffi::c_void {
                let factories: &[(&[u8], *const ::core::ffi::c_void)] = &[
                    $($crate::export_plugin!(@with $storage => (abi::STORAGE_ID, ::core::ptr::addr_of!(STORAGE).cast())),)?
                    $($crate::export_plugin!(@with $sandbox => (abi::SANDBOX_ID, ::core::ptr::addr_of!(SANDBOX).cast())),)?
                ];
                // SAFETY: the contract: the host gives a NUL-terminated id.
                unsafe { glue::find_factory(id, factories) }
            }

            #[no_mangle]
            #[allow(non_upper_case_globals)]
            pub static skillgate_plugin_entry_v1: abi::EntryV1 = glue::entry(&INFO, FLAGS, get_factory);

            #[used]
            #[link_section = ".note.skillgate"]
            static NOTE: abi::NoteV1 = glue::note($id, FLAGS);
        };
    };
}
