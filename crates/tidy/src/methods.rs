//! Checks that no type has too many methods: state should have small owners, each with a narrow interface.
//!
//! Methods are the functions in `impl` blocks of a type, in all files of its crate. Implementations of traits
//! do not count, nor do tests and the simulator.

use std::collections::BTreeMap;

use crate::tree::File;

/// Maximum number of methods of a type.
const METHODS_MAX: usize = 60;

/// Reports types with too many methods.
#[must_use]
pub fn check(files: &[File]) -> Vec<String> {
    let larger = counts(files).into_iter().filter(|(_, count)| *count > METHODS_MAX);
    let problem = |((path, name), count)| {
        format!("{path}: `{name}` has {count} methods, maximum {METHODS_MAX}: split its state")
    };
    larger.map(problem).collect()
}

/// The number of methods of each type, by the file that declares it and its name.
fn counts(files: &[File]) -> BTreeMap<(&str, &str), usize> {
    let sources: Vec<_> = files.iter().filter(|it| is_source(&it.path)).collect();
    let mut declared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in &sources {
        for name in code_of(&file.text).filter_map(declaration) {
            declared.entry(name).or_default().push(&file.path);
        }
    }
    let mut counts = BTreeMap::new();
    for file in &sources {
        let mut current = None;
        for line in code_of(&file.text) {
            if let Some(name) = implemented(line) {
                // Of several types of that name, the one that is declared nearest.
                let places = declared.get(name).into_iter().flatten();
                let nearest = places.max_by_key(|place| common(place, &file.path));
                current = nearest.map(|place| (*place, name));
            } else if line.starts_with('}') {
                current = None;
            } else if let Some(current) = current.filter(|_| is_method(line)) {
                *counts.entry(current).or_default() += 1;
            }
        }
    }
    counts
}

fn is_source(path: &str) -> bool {
    let is_test = path.split('/').any(|it| it.starts_with("test"));
    path.contains("/src/") && path.ends_with(".rs") && !is_test && !path.starts_with("crates/sim/")
}

/// The lines before the test module.
fn code_of(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines()
}

/// The number of leading folders that two paths share.
fn common(a: &str, b: &str) -> usize {
    a.split('/').zip(b.split('/')).take_while(|(a, b)| a == b).count()
}

/// A line without its visibility: `pub`, `pub(super)`, `pub(in a::b)`.
fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = if rest.starts_with('(') { rest.split_once(')').map_or(rest, |it| it.1) } else { rest };
    rest.trim_start()
}

/// The name of a type that a line declares.
fn declaration(line: &str) -> Option<&str> {
    let line = without_visibility(line);
    let rest = ["struct ", "enum ", "union "].iter().find_map(|it| line.strip_prefix(it))?;
    Some(name_of(rest))
}

/// The name of the type that an `impl` without a trait is for.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    (!rest.contains(" for ")).then(|| name_of(rest))
}

fn name_of(rest: &str) -> &str {
    rest.split(|it: char| !it.is_alphanumeric() && it != '_').next().unwrap_or_default()
}

fn is_method(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ").filter(|it| !it.starts_with(' ')) else { return false };
    let rest = without_visibility(rest);
    let words = rest.split(' ').take_while(|it| *it != "fn").collect::<Vec<_>>();
    let is_qualifier = |it: &&str| matches!(*it, "const" | "async" | "unsafe");
    words.iter().all(is_qualifier) && rest.split(' ').nth(words.len()) == Some("fn")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: &str = "crates/a/src/big.rs";

    fn file(path: &str, text: String) -> File {
        File { path: path.to_owned(), text }
    }

    fn methods(name: &str, count: usize) -> String {
        let all = ["fn", "pub fn", "pub(super) const fn", "pub(in crate::a) fn", "async fn"];
        let inner = "        fn inner() {}";
        let one = |(at, form)| format!("    {form} f{at}(&self) {{\n{inner}\n    }}\n");
        let body: String = (0..count).zip(all.into_iter().cycle()).map(one).collect();
        let other = format!("impl Clone for {name} {{\n    fn clone(&self) {{}}\n}}\n");
        format!("impl<T: Clone> {name}<T> {{\n{body}}}\n{other}")
    }

    fn problems(extra: usize) -> Vec<String> {
        let declared = "pub(in crate::a) struct Big {\n}\n".to_owned() + &methods("Big", METHODS_MAX);
        let files = [
            file(BIG, declared.clone()),
            file("crates/a/src/big/more.rs", methods("Big", extra)),
            file("crates/a/src/tests.rs", methods("Big", 9)),
            file("crates/b/src/lib.rs", declared),
        ];
        check(&files)
    }

    #[test]
    fn type_has_no_more_methods_than_allowed() {
        assert_eq!(problems(0), Vec::<String>::new());
        assert_eq!(problems(1), [format!("{BIG}: `Big` has 61 methods, maximum 60: split its state")]);
    }
}
