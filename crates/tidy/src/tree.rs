//! Finds the source files of the tree: everything except built, downloaded or hidden files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Folders with generated or downloaded contents.
const SKIPPED: [&str; 7] =
    ["target", "dist", "bench-out", "__pycache__", "corpus", "artifacts", "proptest-regressions"];
/// Hidden folders that belong to the tree.
const HIDDEN_BUT_OURS: [&str; 2] = [".ci", ".config"];
/// Generated files: the lock file, and the link of a worktree to its repository.
const GENERATED: [&str; 2] = ["Cargo.lock", ".git"];

/// A text file: its path from the root, separated by `/`, and its content.
pub struct File {
    /// The path from the root of the tree.
    pub path: String,
    /// The content.
    pub text: String,
}

/// The root of the workspace this crate was built in.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All text files below `root`, in order of their paths.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn files(root: &Path) -> io::Result<Vec<File>> {
    let mut found = Vec::new();
    visit(root, "", &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn visit(folder: &Path, prefix: &str, found: &mut Vec<File>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() && is_ours(&name) {
            visit(&entry.path(), &format!("{path}/"), found)?;
        } else if kind.is_file()
            && !GENERATED.contains(&name.as_str())
            && let Ok(text) = String::from_utf8(fs::read(entry.path())?)
        {
            found.push(File { path, text });
        }
    }
    Ok(())
}

fn is_ours(folder: &str) -> bool {
    !SKIPPED.contains(&folder) && (!folder.starts_with('.') || HIDDEN_BUT_OURS.contains(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_found_and_built_files_are_not() {
        let paths: Vec<String> = files(&root()).unwrap().into_iter().map(|file| file.path).collect();
        for ours in ["Makefile", ".ci/run", "crates/core/src/lib.rs", "python/tiffin/__init__.py"] {
            assert!(paths.iter().any(|path| path == ours), "{ours} was not found");
        }
        let built = |path: &&String| path.starts_with("target/") || path.starts_with(".venv");
        assert_eq!(paths.iter().find(built), None);
    }
}
