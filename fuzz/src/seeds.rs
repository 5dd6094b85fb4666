//! Writes the seeds of every target into `corpus/`, for cargo-fuzz to begin with.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, _, seeds) in tiffin_fuzz::targets() {
        let folder = corpus.join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
