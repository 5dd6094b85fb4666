//! Rules for one file: sizes, the comment it starts with, leftovers, words that are forbidden in a crate.
//!
//! The rules read lines, not syntax: they rely on the layout of `cargo fmt`.

use std::collections::BTreeMap;

/// Maximum number of lines of a file, without test modules.
pub const FILE_LINES_MAX: usize = 800;
/// Maximum number of lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Maximum length of a line, in characters.
pub const LINE_COLUMNS_MAX: usize = 110;

/// The only files that may contain `unsafe`; each wraps it in a type that cannot be misused.
pub const UNSAFE_MODULES: &[&str] = &[
    "crates/client/src/buffers.rs",
    // Forks, to test what a child keeps.
    "crates/client/tests/processes/forks.rs",
    // Asks the kernel for an io_uring, to find out whether it is available.
    "crates/cli/src/doctor/uring.rs",
    // Calls the CUDA driver, whose functions it finds at run time.
    "crates/gpu/src/bare.rs",
    "crates/gpu/src/driver.rs",
    "crates/gpu/src/ffi.rs",
    "crates/gpu/src/queued.rs",
    "crates/gpu/src/transfer.rs",
    "crates/gpu/tests/standin/main.rs",
    "crates/gpu/tests/standin/support.rs",
    // Implements the functions of the driver, for tests.
    "crates/gpu-standin/src/lib.rs",
    "crates/gpu-standin/src/memory.rs",
    // Its allocator counts what decoders allocate, in tests.
    "crates/smoke/src/memory.rs",
    // Gives device memory of an owner, and pages of the host, to the CUDA driver.
    "crates/kv-exec/src/cuda_device.rs",
    "crates/kv-exec/src/tests/cuda.rs",
    // Provides memory in pages, its own or borrowed.
    "crates/kv-exec/src/pages.rs",
    // Registers sockets that it owns with the runtime.
    "crates/rpc/src/watch.rs",
    // Passes memory to the kernel and to threads, and keeps it alive until they are done.
    "crates/ssd/src/bench.rs",
    "crates/ssd/src/engine/blocking.rs",
    "crates/ssd/src/engine/uring.rs",
    "crates/ssd/src/jobs.rs",
    "crates/ssd/src/memory.rs",
    "crates/ssd/tests/log/disk_log.rs",
    // Gives the memory of slots to a disk of the node.
    "crates/server/src/node/slot_memory.rs",
    // Maps memory and allocates it in blocks.
    "crates/transport/src/arena.rs",
    "crates/transport/src/buffer.rs",
    "crates/transport/src/cache_prefetch.rs",
    "crates/transport/src/checksum.rs",
    "crates/transport/src/copy.rs",
    // Gives mapped and device memory to the CUDA driver, and waits until it is done.
    "crates/transport/src/device.rs",
    "crates/transport/src/device_memory.rs",
    // Replaces inherited descriptors in a forked child.
    "crates/transport/src/forks.rs",
    "crates/transport/src/device_rates.rs",
    "crates/transport/src/lock.rs",
    "crates/transport/src/map.rs",
    "crates/transport/src/peer.rs",
    // Asks the kernel whether an address can be read or written.
    "crates/transport/src/probe.rs",
    "crates/transport/src/process.rs",
    "crates/transport/src/queued.rs",
    "crates/transport/src/tcp/stream.rs",
    // Lends futures to other threads, and waits until they are done.
    "crates/transport/src/tcp/together.rs",
    "crates/transport/tests/device.rs",
    "python/src/kv/memory.rs",
    "python/src/mooncake/memory.rs",
    "python/src/mooncake/owned.rs",
    "python/src/cuda.rs",
    "python/src/dlpack.rs",
    "python/src/memory.rs",
    "python/src/process.rs",
    "python/src/read_buffers.rs",
    "python/src/view.rs",
];

/// Words that must not be committed. Concatenated, so that this file passes its own check.
const LEFTOVERS_RUST: [&str; 6] = [
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("db", "g!("),
    concat!("#[", "ignore"),
];
const LEFTOVERS_PYTHON: [&str; 6] = [
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("Not", "ImplementedError"),
    concat!("pytest.mark.", "skip("),
    concat!("pytest.mark.", "xfail"),
    concat!("break", "point()"),
];

/// The crates that decide for client, master and node.
const DECIDING_CRATES: [&str; 4] = ["types", "session", "core", "node"];

/// Words that are forbidden in them: clocks, orders that differ from run to run, randomness, tasks.
const DECIDING_FORBIDDEN: [&str; 8] =
    ["Instant", "SystemTime", "HashMap", "HashSet", "RandomState", "async", "await", "println"];

/// Words that are forbidden in `kv`. It has hash tables with a fixed hasher, which it never iterates.
const KV_FORBIDDEN: [&str; 6] = ["Instant", "SystemTime", "RandomState", "async", "await", "println"];

/// Folders of a particular machine.
const MACHINE_FOLDERS: [&str; 4] = ["work", "farm", "root", "home"];

/// All problems of the file `text` at `path`.
#[must_use]
pub fn check(path: &str, text: &str) -> Vec<String> {
    let mut problems = machine_paths(path, text);
    if path.ends_with(".rs") {
        problems.extend(rust(path, text));
    } else if path.ends_with(".py") || path.ends_with(".pyi") {
        problems.extend(python(path, text));
    }
    problems
}

/// The table of [`UNSAFE_MODULES`] in SECURITY.md.
#[must_use]
pub fn unsafe_table() -> String {
    let mut folders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for module in UNSAFE_MODULES {
        let at = ["/src/", "/tests/"].iter().find_map(|it| Some(module.find(it)? + it.len())).unwrap_or(0);
        let (folder, name) = module.split_at(at);
        let name = name.trim_end_matches(".rs");
        folders.entry(folder.trim_end_matches('/')).or_default().push(format!("`{name}`"));
    }
    let row = |(folder, mut names): (&str, Vec<String>)| {
        names.sort();
        format!("| `{folder}` | {} |\n", names.join(", "))
    };
    format!("| folder | modules |\n|---|---|\n{}", folders.into_iter().map(row).collect::<String>())
}

fn rust(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{path}:1: does not start with a module comment (`//!`)"));
    }
    problems.extend(lines(path, text, &LEFTOVERS_RUST));
    if !is_test_file(path) {
        let product = outside_test_modules(text);
        problems.extend(file_length(path, product.len()));
        problems.extend(function_lengths(path, &product));
        for name in DECIDING_CRATES {
            if path.starts_with(&format!("crates/{name}/src/")) {
                let why = format!("which is forbidden in `{name}`");
                problems.extend(words(path, &product, &DECIDING_FORBIDDEN, &why));
            }
        }
        if path.starts_with("crates/kv/src/") {
            problems.extend(words(path, &product, &KV_FORBIDDEN, "which is forbidden in `kv`"));
        }
    }
    if !UNSAFE_MODULES.iter().any(|module| path.starts_with(module)) {
        let all: Vec<_> = (1..).zip(text.lines()).collect();
        problems.extend(words(path, &all, &["unsafe"], "outside the modules listed for it"));
    }
    problems
}

fn python(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.is_empty() && !text.starts_with("\"\"\"") && !text.starts_with("#!") {
        problems.push(format!("{path}:1: does not start with a docstring"));
    }
    if !is_test_file(path) {
        problems.extend(file_length(path, text.lines().count()));
    }
    problems.extend(lines(path, text, &LEFTOVERS_PYTHON));
    problems
}

fn file_length(path: &str, count: usize) -> Option<String> {
    (FILE_LINES_MAX < count).then(|| format!("{path}:1: {count} lines, maximum {FILE_LINES_MAX}"))
}

/// Width and leftovers, also in tests.
fn lines(path: &str, text: &str, leftovers: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // Snapshots and addresses cannot be wrapped.
        let may_be_wide = line.contains("expect![") || line.contains("://");
        if LINE_COLUMNS_MAX < line.chars().count() && !may_be_wide {
            problems.push(format!("{path}:{number}: wider than {LINE_COLUMNS_MAX} columns"));
        }
        let left = leftovers.iter().filter(|word| line.contains(**word));
        problems.extend(left.map(|word| format!("{path}:{number}: leftover `{word}`")));
    }
    problems
}

/// Functions over the limit, counted from `fn` to the brace that closes it at the same indentation.
fn function_lengths(path: &str, product: &[(usize, &str)]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for &(number, line) in product {
        let code = code_of(line);
        let code = code.trim();
        let indent = line.len() - line.trim_start().len();
        if declares_function(code) && !code.ends_with([';', '}']) {
            open.push((number, indent));
        } else if let Some(&(start, start_indent)) = open.last()
            && indent == start_indent
            && (code.starts_with('}') || code.ends_with(';'))
        {
            open.pop();
            let count = number - start + 1;
            if FUNCTION_LINES_MAX < count {
                problems.push(format!(
                    "{path}:{start}: a function of {count} lines, maximum {FUNCTION_LINES_MAX}"
                ));
            }
        }
    }
    problems
}

/// Whether the line declares a function, as opposed to the type `fn(u8)`.
fn declares_function(code: &str) -> bool {
    let name =
        if code.starts_with("fn ") { code.get(3..) } else { code.split_once(" fn ").map(|(_, name)| name) };
    name.is_some_and(|name| name.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

fn words(path: &str, product: &[(usize, &str)], forbidden: &[&str], why: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for &(number, line) in product {
        let code = code_of(line);
        let found = forbidden.iter().filter(|word| has_word(&code, word));
        problems.extend(found.map(|word| format!("{path}:{number}: `{word}`, {why}")));
    }
    problems
}

fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for folder in MACHINE_FOLDERS {
            let needle = format!("/{folder}/");
            let mut hits = line.match_indices(&needle);
            let absolute = hits.any(|(at, _)| {
                let before = line.get(..at).and_then(|head| head.chars().next_back());
                before.is_none_or(|c| !(c.is_alphanumeric() || "_.-/:>})$".contains(c)))
            });
            if absolute {
                problems.push(format!("{path}:{number}: a path of a particular machine (`{needle}`)"));
            }
        }
    }
    problems
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "behavior.rs")
}

/// The lines outside `#[cfg(test)] mod …`, with their numbers.
fn outside_test_modules(text: &str) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let mut lines = (1..).zip(text.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        let opens_tests = line.trim() == "#[cfg(test)]"
            && lines.peek().is_some_and(|(_, next)| has_word(next, "mod") && next.trim_end().ends_with('{'));
        if opens_tests {
            let end = format!("{}}}", line.strip_suffix(line.trim()).unwrap_or_default());
            lines.by_ref().find(|(_, inside)| *inside == end);
        } else {
            kept.push((number, line));
        }
    }
    kept
}

/// The line without its strings and without a comment at its end.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut in_string = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => drop(chars.next()),
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            _ if !in_string => code.push(c),
            _ => {}
        }
    }
    code
}

fn has_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code.get(..at).and_then(|head| head.chars().next_back());
        let after = code.get(at + word.len()..).and_then(|tail| tail.chars().next());
        !before.is_some_and(part_of_name) && !after.is_some_and(part_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(path: &str, text: &str, problems: &[&str]) {
        assert_eq!(check(path, text), problems, "in {path}:\n{text}");
    }

    fn function(body_lines: usize) -> String {
        format!("pub fn long(\n    a: u8,\n) -> u8 {{\n{}}}\n", "    ();\n".repeat(body_lines - 4))
    }

    #[test]
    fn tidy_file_passes() {
        let text = format!("//! Doc.\n\n{}{}", function(FUNCTION_LINES_MAX), function(FUNCTION_LINES_MAX));
        expect("crates/server/src/a.rs", &text, &[]);
    }

    #[test]
    fn long_function_is_reported_anywhere() {
        let long = function(FUNCTION_LINES_MAX + 1);
        expect(
            "crates/server/src/a.rs",
            &format!("//! Doc.\n{long}"),
            &["crates/server/src/a.rs:2: a function of 71 lines, maximum 70"],
        );
        let method: String = long.lines().map(|line| format!("    {line}\n")).collect();
        expect(
            "crates/server/src/a.rs",
            &format!("//! Doc.\nimpl A {{\n    fn b(&self);\n    fn c() {{}}\n{method}}}\n"),
            &["crates/server/src/a.rs:5: a function of 71 lines, maximum 70"],
        );
        let with_callback =
            format!("//! Doc.\nfn b(f: impl Fn()) {{\n{}}}\n", "    f();\n".repeat(FUNCTION_LINES_MAX));
        expect(
            "crates/server/src/a.rs",
            &with_callback,
            &["crates/server/src/a.rs:2: a function of 72 lines, maximum 70"],
        );
    }

    #[test]
    fn tests_may_be_long() {
        let long = function(FILE_LINES_MAX);
        expect("crates/server/tests/a.rs", &format!("//! Doc.\n{long}"), &[]);
        let indented: String = long.lines().map(|line| format!("    {line}\n")).collect();
        expect(
            "crates/server/src/a.rs",
            &format!("//! Doc.\n#[cfg(test)]\nmod tests {{\n{indented}}}\n"),
            &[],
        );
    }

    #[test]
    fn code_after_a_test_module_is_checked() {
        let long = function(FUNCTION_LINES_MAX + 1);
        let text = format!("//! Doc.\n#[cfg(test)]\nmod tests {{\n}}\n{long}");
        let problem = "crates/server/src/a.rs:5: a function of 71 lines, maximum 70";
        expect("crates/server/src/a.rs", &text, &[problem]);
    }

    #[test]
    fn long_file_is_reported() {
        let rust = format!("//! Doc.\n{}", "mod a;\n".repeat(FILE_LINES_MAX));
        expect("crates/rpc/src/a.rs", &rust, &["crates/rpc/src/a.rs:1: 801 lines, maximum 800"]);
        let python = format!("\"\"\"Doc.\"\"\"\n{}", "a = 1\n".repeat(FILE_LINES_MAX));
        expect("python/tiffin/a.py", &python, &["python/tiffin/a.py:1: 801 lines, maximum 800"]);
    }

    #[test]
    fn file_must_start_with_its_purpose() {
        expect("a.rs", "use b;\n", &["a.rs:1: does not start with a module comment (`//!`)"]);
        expect("a.py", "import b\n", &["a.py:1: does not start with a docstring"]);
    }

    #[test]
    fn wide_lines_are_reported() {
        let wide = "é".repeat(LINE_COLUMNS_MAX - 3);
        expect("a.rs", &format!("//! {wide}\n"), &["a.rs:1: wider than 110 columns"]);
        expect("a.py", &format!("\"\"\"{wide}\"\"\"\n"), &["a.py:1: wider than 110 columns"]);
        expect("a.rs", &format!("//! {}\n", "é".repeat(LINE_COLUMNS_MAX - 4)), &[]);
    }

    #[test]
    fn leftovers_are_reported_in_tests_too() {
        for word in LEFTOVERS_RUST {
            let problem = format!("crates/a/tests/b.rs:2: leftover `{word}`");
            expect("crates/a/tests/b.rs", &format!("//! Doc.\n    {word}\n"), &[&problem]);
        }
        for word in LEFTOVERS_PYTHON {
            expect("a.py", &format!("\"\"\"Doc.\"\"\"\n{word}\n"), &[&format!("a.py:2: leftover `{word}`")]);
        }
    }

    #[test]
    fn unsafe_outside_the_listed_modules_is_reported() {
        let problem = "crates/rpc/src/a.rs:2: `unsafe`, outside the modules listed for it";
        expect("crates/rpc/src/a.rs", "//! Doc.\n    let b = unsafe { c() };\n", &[problem]);
        expect("crates/rpc/src/a.rs", "//! Is `unsafe`.\n#![deny(unsafe_code)] // unsafe\n", &[]);
        expect("crates/rpc/src/a.rs", "//! Doc.\nconst A: &str = \"an unsafe \\\" unsafe\";\n", &[]);
    }

    #[test]
    fn clocks_and_randomness_are_rejected_in_decisions() {
        for word in DECIDING_FORBIDDEN {
            for name in DECIDING_CRATES {
                let path = format!("crates/{name}/src/a.rs");
                let problem = format!("{path}:2: `{word}`, which is forbidden in `{name}`");
                expect(&path, &format!("//! Doc.\nuse a::{word};\n"), &[&problem]);
                expect(&path, &format!("//! No {word}.\nuse a::{word}s;\n"), &[]);
            }
            expect("crates/server/src/a.rs", &format!("//! Doc.\nuse a::{word};\n"), &[]);
        }
    }

    #[test]
    fn machine_paths_are_reported_in_any_file() {
        for folder in MACHINE_FOLDERS {
            let problem = format!("docs/a.md:2: a path of a particular machine (`/{folder}/`)");
            expect("docs/a.md", &format!("See\n`/{folder}/me/notes`.\n"), &[&problem]);
            expect(
                "docs/a.md",
                &format!("See a/{folder}/b and https://c/{folder}/d and ../{folder}/e.\n"),
                &[],
            );
        }
    }
}
