//! The binary `tiffin`. What it does is in the library, which the Python wheel runs as well.

fn main() {
    std::process::exit(tiffin_cli::run(std::env::args_os()));
}
