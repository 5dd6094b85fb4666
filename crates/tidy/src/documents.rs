//! Rules for documents: their length, words that STYLE.md replaces, and sources and tests that they name.
//!
//! Called by `tests/tree.rs`, like all rules of this crate. Code blocks and generated tables are not prose,
//! and are skipped.

use crate::tree::File;

/// Maximum number of words of documents with a limit.
pub const WORDS_MAX: [(&str, usize); 1] = [("ARCHITECTURE.md", 2500)];

/// Rejected words: they name no actor, or the field has another word. STYLE.md has the replacements.
const REJECTED: [&str; 7] =
    ["anybody", "life of the master", "lives of the master", "nobody", "room at hand", "somebody", "whoever"];
/// The document that quotes these words.
const EXEMPT: &str = "STYLE.md";
/// The document, and the start of its section, whose table names a test in each row.
const ATTACKS: (&str, &str) = ("SECURITY.md", "## Attacks");
/// The document that describes the past.
const HISTORY: &str = "CHANGELOG.md";

/// All problems of the documents among the files.
#[must_use]
pub fn check(files: &[File]) -> Vec<String> {
    let mut problems = lengths(files);
    let documents = files.iter().filter(|file| file.path.ends_with(".md") && file.path != EXEMPT);
    problems.extend(documents.flat_map(rejected));
    problems.extend(stale(files));
    problems.extend(lost_tests(files));
    problems.extend(files.iter().filter(|file| file.path == ATTACKS.0).flat_map(untested));
    problems
}

/// Documents with more words than their limit, and limits for documents that do not exist.
fn lengths(files: &[File]) -> Vec<String> {
    let check = |(path, words_max): &(&str, usize)| {
        let Some(file) = files.iter().find(|file| file.path == *path) else {
            return Some(format!("{path}: has a limit of words and does not exist"));
        };
        let words = file.text.split_whitespace().count();
        (words > *words_max).then(|| format!("{path}: has {words} words, more than {words_max}"))
    };
    WORDS_MAX.iter().filter_map(check).collect()
}

/// Lines of prose with rejected words. The name of a test is not prose.
fn rejected(file: &File) -> Vec<String> {
    let (mut problems, mut is_code, mut is_generated) = (Vec::new(), false, false);
    for (number, line) in (1..).zip(file.text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        is_generated = (is_generated || line == "<!-- table -->") && line != "<!-- end of the table -->";
        if is_code || is_generated {
            continue;
        }
        let named = named_tests(line)
            .fold(line.to_owned(), |it, (path, test)| it.replace(&format!("`{path}::{test}`"), ""));
        let lower = named.to_lowercase();
        let found = REJECTED.iter().filter(|words| contains(&lower, words));
        problems.extend(found.map(|words| format!("{}:{number}: `{words}`: see STYLE.md", file.path)));
    }
    problems
}

/// Names of source files, in backquotes and with a folder, that do not exist.
fn stale(files: &[File]) -> Vec<String> {
    let documents = files.iter().filter(|file| file.path.ends_with(".md") && file.path != HISTORY);
    let lines = documents.flat_map(|file| (1..).zip(file.text.lines()).map(|it| (&file.path, it)));
    let mut problems = Vec::new();
    for (path, (number, line)) in lines {
        let quoted = line.split('`').skip(1).step_by(2);
        let named = quoted.filter(|it| it.contains('/') && (it.ends_with(".rs") || it.ends_with(".py")));
        let lost = named.filter(|name| {
            let is_it = |file: &File| {
                file.path.strip_suffix(*name).is_some_and(|it| it.is_empty() || it.ends_with('/'))
            };
            !files.iter().any(is_it)
        });
        problems.extend(lost.map(|name| format!("{path}:{number}: `{name}` does not exist")));
    }
    problems
}

/// Tests that a line names, in backquotes: the end of the path of a source file, `::` and the function.
fn named_tests(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = line.split('`').skip(1).step_by(2).filter_map(|it| it.split_once("::"));
    quoted.filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".py"))
}

/// Named tests that do not exist.
fn lost_tests(files: &[File]) -> Vec<String> {
    let documents = files.iter().filter(|file| file.path.ends_with(".md") && file.path != HISTORY);
    let lines = documents.flat_map(|file| (1..).zip(file.text.lines()).map(|it| (&file.path, it)));
    let has_test = |path: &str, test: &str| {
        let is_it = |file: &&File| file.path.strip_suffix(path).is_some_and(|it| it.ends_with('/'));
        let starts = [format!("fn {test}("), format!("def {test}(")];
        let is_test = |line: &str| starts.iter().any(|it| line.trim_start().contains(it));
        files.iter().filter(is_it).any(|file| file.text.lines().any(is_test))
    };
    let mut problems = Vec::new();
    for (document, (number, line)) in lines {
        let lost = named_tests(line).filter(|(path, test)| !has_test(path, test));
        problems.extend(lost.map(|(path, test)| format!("{document}:{number}: {path} has no test `{test}`")));
    }
    problems
}

/// Rows of the table of attacks that name no test; a problem as well if there is no such table.
fn untested(file: &File) -> Vec<String> {
    let lines = (1..).zip(file.text.lines()).skip_while(|(_, line)| !line.starts_with(ATTACKS.1)).skip(1);
    let section = lines.take_while(|(_, line)| !line.starts_with("## "));
    // After the names of the columns and the line below them.
    let rows: Vec<_> = section.filter(|(_, line)| line.starts_with('|')).skip(2).collect();
    if rows.is_empty() {
        return vec![format!("{}: `{}` has no table", file.path, ATTACKS.1)];
    }
    let bare = rows.into_iter().filter(|(_, line)| named_tests(line).next().is_none());
    bare.map(|(number, _)| format!("{}:{number}: the row names no test", file.path)).collect()
}

/// Whether a line contains these words, and not only as part of longer ones.
fn contains(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| {
        let before = line.get(..at).and_then(|it| it.chars().next_back());
        let behind = line.get(at + words.len()..).and_then(|it| it.chars().next());
        !before.is_some_and(char::is_alphanumeric) && !behind.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn problems(words: usize) -> Vec<String> {
        check(&[file("ARCHITECTURE.md", &"word ".repeat(words))])
    }

    #[test]
    fn document_within_its_limit_passes() {
        assert_eq!(problems(2500), Vec::<String>::new());
    }

    #[test]
    fn document_over_its_limit_is_reported() {
        assert_eq!(problems(2501), ["ARCHITECTURE.md: has 2501 words, more than 2500"]);
    }

    #[test]
    fn missing_document_is_reported() {
        assert_eq!(check(&[]), ["ARCHITECTURE.md: has a limit of words and does not exist"]);
    }

    #[test]
    fn rejected_words_are_reported_with_their_line() {
        let text = "One.\nNobody reads, in this life of the master.\n";
        let found =
            ["docs/a.md:2: `life of the master`: see STYLE.md", "docs/a.md:2: `nobody`: see STYLE.md"];
        assert_eq!(rejected(&file("docs/a.md", text)), found);
    }

    #[test]
    fn names_of_tests_are_not_prose() {
        let text = "`a.py::test_nobody`, `src/b.rs::nobody` and nobody.\n";
        assert_eq!(rejected(&file("docs/a.md", text)), ["docs/a.md:1: `nobody`: see STYLE.md"]);
        let text = "`a.py::test_nobody` and `src/b.rs::nobody`.\n";
        assert_eq!(rejected(&file("docs/a.md", text)), Vec::<String>::new());
    }

    #[test]
    fn parts_of_words_code_and_generated_tables_pass() {
        let text = "`WakeNobody`\n```text\nnobody\n```\n<!-- table -->\nnobody\n<!-- end of the table -->\n";
        assert_eq!(rejected(&file("docs/a.md", text)), Vec::<String>::new());
    }

    #[test]
    fn source_files_that_do_not_exist_are_reported() {
        let text = "See `core/src/a.rs`, `b.rs`, `lore/src/a.rs` and `src/b.rs`.\n";
        let files = [file("docs/a.md", text), file("crates/core/src/a.rs", "")];
        let found = ["docs/a.md:1: `lore/src/a.rs` does not exist", "docs/a.md:1: `src/b.rs` does not exist"];
        assert_eq!(stale(&files), found);
    }

    #[test]
    fn named_tests_that_do_not_exist_are_reported() {
        let text = "`a/b.rs::here`, `a/b.rs::gone`, `c.py::here`, `d.py::here` and `here::there`.\n";
        let rust = file("crates/a/b.rs", "#[test]\nfn here() {}\n// gone\nfn gone_too() {}\n");
        let python = file("python/c.py", "def here():\n");
        let found = ["docs/a.md:1: a/b.rs has no test `gone`", "docs/a.md:1: d.py has no test `here`"];
        assert_eq!(lost_tests(&[file("docs/a.md", text), rust, python]), found);
    }

    #[test]
    fn attacks_without_a_test_are_reported() {
        let table = |rows: &str| file("SECURITY.md", &format!("## Attacks\n\n| a | b |\n|---|---|\n{rows}"));
        assert_eq!(untested(&table("| x | `a.rs::b` |\n\n## Other\n| c | d |\n")), Vec::<String>::new());
        let found = untested(&table("| x | `a.rs::b` |\n| y | `a.rs` |\n"));
        assert_eq!(found, ["SECURITY.md:6: the row names no test"]);
        assert_eq!(untested(&table("")), ["SECURITY.md: `## Attacks` has no table"]);
    }

    #[test]
    fn prose_after_code_is_checked_again() {
        let text = "```text\n```\n<!-- table -->\n<!-- end of the table -->\nwhoever\n";
        assert_eq!(rejected(&file("docs/a.md", text)), ["docs/a.md:5: `whoever`: see STYLE.md"]);
    }
}
