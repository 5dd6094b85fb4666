//! Checks that every document is reachable by links from the README.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::File;

/// The first document of a reader.
const START: &str = "README.md";

/// Documents that no chain of links leads to, and links to files that do not exist.
#[must_use]
pub fn check(files: &[File]) -> Vec<String> {
    let all: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let is_document = |path: &str| path.ends_with(".md");
    let documents: BTreeMap<&str, &str> = files
        .iter()
        .filter(|file| is_document(&file.path))
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let mut problems = Vec::new();
    let (mut reached, mut open) = (BTreeSet::from([START.to_owned()]), vec![START.to_owned()]);
    while let Some(path) = open.pop() {
        for target in targets(documents.get(path.as_str()).copied().unwrap_or_default()) {
            let target = resolve(&path, &target);
            let is_there = all.contains(target.as_str())
                || all.iter().any(|it| it.strip_prefix(&target).is_some_and(|rest| rest.starts_with('/')));
            if !is_there {
                problems.push(format!("{path}: the link to `{target}` is broken"));
            } else if is_document(&target) && reached.insert(target.clone()) {
                open.push(target);
            }
        }
    }
    let lost = documents.keys().filter(|path| !reached.contains(**path));
    problems.extend(lost.map(|path| format!("{path}: not reachable by links from {START}")));
    problems
}

/// Targets of a document's links, except those to other sites and to its own sections.
fn targets(text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let files = links.map(|(target, _)| target.split('#').next().unwrap_or_default());
    files.filter(|it| !it.is_empty() && !it.contains("://") && !it.contains(' ')).map(str::to_owned).collect()
}

/// Resolves a target relative to its document into a path from the root.
fn resolve(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        check(&files.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn documents_are_reached_through_other_documents() {
        let files = [
            (
                "README.md",
                "See [a](docs/a.md#part), [the web](https://example.org/x.md) and [folder](examples).",
            ),
            ("docs/a.md", "[b](b.md) and [up](../examples/x/README.md) and [here](#part)"),
            ("docs/b.md", ""),
            ("examples/x/README.md", "[back](../../README.md)"),
        ];
        assert_eq!(problems(&files), Vec::<String>::new());
    }

    #[test]
    fn unreachable_documents_and_broken_links_are_reported() {
        let files = [("README.md", "[a](docs/a.md)"), ("docs/b.md", "[c](c.md)"), ("docs/c.md", "")];
        assert_eq!(
            problems(&files),
            [
                "README.md: the link to `docs/a.md` is broken",
                "docs/b.md: not reachable by links from README.md",
                "docs/c.md: not reachable by links from README.md",
            ]
        );
    }
}
