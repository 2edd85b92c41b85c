//! The program `skillgate`: see `cli` for its commands.

fn main() -> std::process::ExitCode {
    skillgate::cli::main()
}
