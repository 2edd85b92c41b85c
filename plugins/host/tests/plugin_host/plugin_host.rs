//! The program that the tests start as a plugin's own process; the gateway starts itself.

use std::io::Write as _;

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some("lies") {
        return lie();
    }
    let Err(why) = skillgate_plugin_host::serve_plugin();
    eprintln!("{why}");
    std::process::ExitCode::FAILURE
}

/// Says what makes no sense, and waits.
fn lie() -> std::process::ExitCode {
    let socket = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let said = socket
        .map(std::os::unix::net::UnixStream::from)
        .and_then(|mut socket| {
            socket.write_all(&[0xff; 4096])?;
            std::io::Read::read_to_end(&mut socket, &mut Vec::new())
        });
    std::process::ExitCode::from(u8::from(said.is_err()))
}
