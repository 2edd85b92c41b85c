//! The program that the tests start as a plugin's own process; the gateway starts itself.

fn main() -> std::process::ExitCode {
    let Err(why) = skillgate_plugin_host::serve_plugin();
    eprintln!("{why}");
    std::process::ExitCode::FAILURE
}
