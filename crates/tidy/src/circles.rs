//! Checks that few files of a crate import each other in a circle.
//!
//! A file imports another one if it names something of that file: in a `use`, or in a path that starts with
//! `crate`, `self` or `super`. What a parent module re-exports counts as an import of the file that has it.
//! Imports between a file and a module that contains it do not count, because a parent declares its parts.
//! Tests do not count either.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::File;

/// Maximum number of files that import each other.
const FILES_MAX: usize = 3;

/// Circles that may have more files, by source folder: their number of files, which must not grow.
///
/// - `sim`: test code; all of it works on one `World`.
pub const LARGER: [(&str, usize); 1] = [("crates/sim/src", 25)];

/// The imports of each module.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Reports circles of too many files, and entries of `larger` that are too large.
#[must_use]
pub fn check(files: &[File], larger: &[(&str, usize)]) -> Vec<String> {
    let mut crates: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for file in files {
        if let Some((folder, module)) = module_of(&file.path) {
            crates.entry(folder).or_default().insert(module, code_of(&file.text));
        }
    }
    let mut problems = Vec::new();
    for (folder, modules) in crates {
        let max = larger.iter().find(|it| it.0 == folder).map_or(FILES_MAX, |it| it.1);
        let circles = circles(&imports(&modules));
        let largest = circles.iter().map(BTreeSet::len).max().unwrap_or_default();
        if max > FILES_MAX && largest < max {
            problems
                .push(format!("{folder}: its largest circle has {largest} files: lower the limit of {max}"));
        }
        for circle in circles.iter().filter(|it| it.len() > max) {
            let names: Vec<_> = circle.iter().map(String::as_str).collect();
            problems.push(format!(
                "{folder}: {} files import each other, more than {max}: {}",
                names.len(),
                names.join(", ")
            ));
        }
    }
    problems
}

/// The source folder of a file, and the path of its module; `None` for tests and other files.
fn module_of(path: &str) -> Option<(&str, String)> {
    let at = path.find("/src/")? + "/src".len();
    let (folder, rest) = path.split_at_checked(at)?;
    let mut parts: Vec<_> = rest.strip_prefix('/')?.strip_suffix(".rs")?.split('/').collect();
    if parts.iter().any(|it| it.starts_with("test") || *it == "bin") {
        return None;
    }
    parts.pop_if(|it| matches!(*it, "mod" | "lib" | "main"));
    Some((folder, parts.join("::")))
}

/// The text without comments and without test modules at its end.
fn code_of(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn imports(modules: &BTreeMap<String, String>) -> Imports {
    let paths: BTreeMap<_, _> = modules.iter().map(|(name, code)| (name.as_str(), paths(code))).collect();
    let exports: BTreeMap<&str, BTreeMap<String, String>> = paths
        .iter()
        .map(|(module, paths)| {
            let named = |path: &Vec<String>| {
                let (target, rest) = resolve(module, path, modules)?;
                (target != *module && rest.len() == 1)
                    .then(|| rest.first().cloned().map(|it| (it, target)))?
            };
            (*module, paths.iter().filter_map(named).collect())
        })
        .collect();
    let mut imports = Imports::new();
    for (module, paths) in &paths {
        let of_module = imports.entry((*module).to_owned()).or_default();
        for path in paths {
            let Some((mut target, rest)) = resolve(module, path, modules) else { continue };
            // A name may be re-exported more than once.
            let mut seen = BTreeSet::new();
            while let Some(name) = rest.first()
                && target != *module
                && let Some(next) = exports.get(target.as_str()).and_then(|it| it.get(name))
                && seen.insert(next.clone())
            {
                target.clone_from(next);
            }
            if target != *module && !contains(module, &target) && !contains(&target, module) {
                of_module.insert(target);
            }
        }
    }
    imports
}

/// Whether a module is the other one or one of the modules around it.
fn contains(outer: &str, inner: &str) -> bool {
    outer.is_empty() || inner.strip_prefix(outer).is_some_and(|it| it.is_empty() || it.starts_with("::"))
}

/// The module that a path leads to, and the rest of the path; `None` if it leaves the crate.
fn resolve(
    module: &str,
    path: &[String],
    modules: &BTreeMap<String, String>,
) -> Option<(String, Vec<String>)> {
    let mut base: Vec<String> = module.split("::").filter(|it| !it.is_empty()).map(str::to_owned).collect();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = rest.get(1..)?;
        }
        "self" => rest = rest.get(1..)?,
        "super" => {
            while let Some(("super", behind)) = rest.split_first().map(|(it, behind)| (it.as_str(), behind)) {
                base.pop();
                rest = behind;
            }
        }
        child => {
            let inner: Vec<_> = base.iter().map(String::as_str).chain([child]).collect();
            modules.get(&inner.join("::"))?;
        }
    }
    base.extend(rest.iter().cloned());
    (0..=base.len()).rev().find_map(|len| {
        let (module, rest) = base.split_at_checked(len)?;
        let module = module.join("::");
        modules.contains_key(&module).then(|| (module, rest.to_vec()))
    })
}

/// All paths that a file names: its imports, and paths inside the crate.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_word = |it: char| it.is_alphanumeric() || it == '_';
    for (at, _) in code.match_indices("use ") {
        let is_start = code.get(..at).is_some_and(|it| !it.ends_with(is_word));
        if let Some(tree) = code.get(at + 4..).and_then(|it| it.split(';').next()).filter(|_| is_start) {
            expand(&[], tree, &mut found);
        }
    }
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let is_start = code.get(..at).is_some_and(|it| !it.ends_with(is_word) && !it.ends_with(':'));
            let path = code.get(at..).and_then(|it| it.split(|it| !is_word(it) && it != ':').next());
            if let Some(path) = path.filter(|_| is_start) {
                found.push(path.split("::").filter(|it| !it.is_empty()).map(str::to_owned).collect());
            }
        }
    }
    found
}

/// The paths of a tree of imports such as `a::{b, c::{self, d}}`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let (mut depth, mut first) = (0_usize, 0);
    let mut parts = Vec::new();
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(tree.get(first..at));
                first = at + 1;
            }
            _ => (),
        }
    }
    parts.extend(tree.get(first..));
    for part in parts.iter().map(|it| it.trim()).filter(|it| !it.is_empty()) {
        let (path, inner) = part.split_once('{').map_or((part, None), |(path, inner)| (path, Some(inner)));
        let path = path.split(" as ").next().unwrap_or_default();
        let names = path.split("::").map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned);
        let whole: Vec<_> = prefix.iter().cloned().chain(names).collect();
        match inner {
            Some(inner) => expand(&whole, inner.trim_end().trim_end_matches('}'), found),
            None => found.push(whole),
        }
    }
}

/// The groups of modules of which each reaches all others.
fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut reached, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = left.pop() {
            for next in imports.get(&module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    left.push(next.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|it| (it, reached(it))).collect();
    let circle = |(module, all): (&&String, &BTreeSet<String>)| {
        let returns = |it: &&String| reached.get(it).is_some_and(|it| it.contains(*module));
        all.iter().filter(returns).cloned().collect::<BTreeSet<_>>()
    };
    reached.iter().map(circle).filter(|it| it.len() > 1).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)], larger: &[(&str, usize)]) -> Vec<String> {
        let file = |(name, text): &(&str, &str)| File { path: format!("a/src/{name}"), text: (*text).into() };
        check(&files.iter().map(file).collect::<Vec<_>>(), larger)
    }

    const FOUR: [(&str, &str); 5] = [
        ("lib.rs", "mod p;\nmod q;\nmod r;\nmod s;\npub use q::{Q, T as U};\n"),
        ("p.rs", "use std::fmt;\nuse crate::{Q, lock};\n"),
        ("q.rs", "use super::r::{self, R};\n"),
        ("r.rs", "fn f() { crate::s::g() }\n"),
        ("s.rs", "use crate::p::P;\n"),
    ];

    #[test]
    fn circle_of_four_files_is_reported() {
        assert_eq!(problems(&FOUR, &[]), ["a/src: 4 files import each other, more than 3: p, q, r, s"]);
    }

    #[test]
    fn circle_of_three_files_passes() {
        let three: Vec<_> = FOUR.iter().filter(|it| it.0 != "s.rs").copied().collect();
        let closed = [three, vec![("r.rs", "use crate::p::P;\n")]].concat();
        assert_eq!(problems(&closed, &[]), Vec::<String>::new());
    }

    #[test]
    fn parents_comments_and_tests_do_not_count() {
        let files = [
            ("lib.rs", "mod p;\nmod q;\nuse p::P;\nuse q::Q;\n"),
            (
                "p.rs",
                "use crate::Shared;\n// crate::q::Q\n\n#[cfg(test)]\nmod tests {\n    use crate::s::S;\n}\n",
            ),
            ("q.rs", "use crate::Shared;\nuse crate::p::P;\n"),
            ("r.rs", "use crate::q::Q;\n"),
            ("s.rs", "use crate::r::R;\n"),
        ];
        assert_eq!(problems(&files, &[]), Vec::<String>::new());
    }

    #[test]
    fn named_exception_is_exact() {
        assert_eq!(problems(&FOUR, &[("a/src", 4)]), Vec::<String>::new());
        let lower = ["a/src: its largest circle has 4 files: lower the limit of 5"];
        assert_eq!(problems(&FOUR, &[("a/src", 5)]), lower);
    }
}
