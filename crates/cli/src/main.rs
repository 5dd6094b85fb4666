//! The binary `tiffin`. The code is in the library, which the Python wheel runs as well.

// Requests allocate a few dozen small blocks, which are often freed by another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    std::process::exit(tiffin_cli::run(std::env::args_os()));
}
