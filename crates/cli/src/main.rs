//! The binary `tiffin`. What it does is in the library, which the Python wheel runs as well.

// A put or a question is a few dozen small pieces of memory, which one thread takes and often another gives
// back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    std::process::exit(tiffin_cli::run(std::env::args_os()));
}
