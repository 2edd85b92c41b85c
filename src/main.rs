//! The program `skillgate`: see `cli` for its commands.

/// A decision makes hundreds of small values: a tenth less time than with the C library's allocator
/// (`cargo bench --bench policy`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    skillgate::cli::main()
}
