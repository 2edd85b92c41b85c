//! Makes the shared object executable: its ELF entry point is the launcher (see `src/entry.rs`).
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-e,skillgate_sandbox_launcher_start");
}
