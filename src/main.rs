//! The program `skillgate`: see `cli` for its commands.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    skillgate::cli::main()
}
