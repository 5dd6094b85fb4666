//! The file with the quotas of tenants. The master reads it at the start and rewrites it with every change.
//!
//! The file is YAML of one form: `version: 1`, and below `tenants:` a name and a quota in bytes for each.
//! The file is authoritative: a tenant that it does not list has no quota after a start.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The maximum length of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Quotas in bytes, by the name of the tenant.
pub(crate) type Quotas = BTreeMap<String, u64>;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the quotas of tenants in `{}`: {what}\n\nhint: {HINT}", .path.display())]
pub struct TenantFileError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub what: String,
}

const HINT: &str = "write a line `version: 1`, and `tenants:` with a `name` and a `quota` in bytes for each";

/// Reads the file.
pub(crate) fn read(path: &Path) -> Result<Quotas, TenantFileError> {
    let fail = |what: String| TenantFileError { path: path.to_owned(), what };
    let text = || -> io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = text().map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    parse(&text).map_err(fail)
}

/// Replaces the file atomically.
pub(crate) fn write(path: &Path, quotas: &Quotas) -> Result<(), TenantFileError> {
    let fail = |error: io::Error| TenantFileError { path: path.to_owned(), what: error.to_string() };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, render(quotas)).map_err(fail)?;
    std::fs::File::open(&new).and_then(|file| file.sync_all()).map_err(fail)?;
    std::fs::rename(&new, path).map_err(fail)
}

fn render(quotas: &Quotas) -> String {
    let rows = quotas.iter().map(|(name, quota)| format!("  - name: {}\n    quota: {quota}\n", quoted(name)));
    let rows = rows.collect::<String>();
    if rows.is_empty() {
        "version: 1\n\ntenants: []\n".to_owned()
    } else {
        format!("version: 1\n\ntenants:\n{rows}")
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(crate) fn parse(text: &str) -> Result<Quotas, String> {
    let mut version = None;
    let mut has_tenants = false;
    let mut items: Vec<(Option<String>, Option<u64>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let odd = || format!("line {number} cannot be parsed");
        let rest = line.trim();
        if rest.is_empty() || rest.starts_with('#') || rest == "---" {
            continue;
        }
        let (rest, is_item) = match rest.strip_prefix('-') {
            Some(rest) => (rest.trim(), true),
            None => (rest, false),
        };
        if is_item {
            items.push((None, None));
        }
        let flow = rest.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
        let pairs: Vec<_> = flow.map_or_else(|| vec![rest], |it| it.split(',').collect());
        for pair in pairs {
            let (name, value) = pair.split_once(':').ok_or_else(odd)?;
            let value = value.trim();
            match (name.trim(), items.last_mut().filter(|_| has_tenants)) {
                ("version", None) => version = Some(value.to_owned()),
                ("tenants", None) if value.is_empty() || value == "[]" => has_tenants = true,
                ("name", Some(item)) => item.0 = Some(unquoted(value)),
                ("quota", Some(item)) => item.1 = Some(value.parse().map_err(|_| odd())?),
                _ => return Err(odd()),
            }
        }
    }
    if version.as_deref() != Some("1") || !has_tenants {
        return Err("`version: 1` or `tenants:` is missing".to_owned());
    }
    let mut quotas = Quotas::new();
    for item in items {
        let (Some(name), Some(quota @ 1..)) = item else {
            return Err("a tenant has no name or no quota".to_owned());
        };
        if quotas.insert(name.clone(), quota).is_some() {
            return Err(format!("tenant `{name}` is listed twice"));
        }
    }
    Ok(quotas)
}

fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    match inner {
        Some(inner) => inner.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.strip_prefix('\'').and_then(|it| it.strip_suffix('\'')).unwrap_or(text).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_written() {
        let quotas = Quotas::from([("tb".to_owned(), 100_000_000), ("a \"b\"".to_owned(), 5)]);
        let text = "version: 1\n\ntenants:\n  - name: \"a \\\"b\\\"\"\n    quota: 5\n  - name: \"tb\"\n    \
                    quota: 100000000\n";
        assert_eq!(render(&quotas), text);
        assert_eq!(parse(text).unwrap(), quotas);
        assert_eq!(parse(&render(&Quotas::new())).unwrap(), Quotas::new());
        let other = "# ours\n---\nversion: 1\ntenants:\n- quota: 7\n  name: 'x'\n- {name: y, quota: 8}\n";
        assert_eq!(parse(other).unwrap(), Quotas::from([("x".to_owned(), 7), ("y".to_owned(), 8)]));
        for text in [
            "",
            "version: 2\ntenants: []",
            "tenants: []",
            "version: 1",
            "version: 1\ntenants:\n- name: a",
            "version: 1\ntenants:\n- name: a\n  quota: 0",
            "version: 1\ntenants:\n- name: a\n  quota: -1",
            "version: 1\ntenants:\n- name: a\n  quota: 1\n- name: a\n  quota: 1",
            "version: 1\nname: a\ntenants: []",
            "version: 1\ntenants: [a]",
            "version: 1\ntenants: []\nnonsense",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn file_is_bounded_and_replaced_atomically() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quotas.yaml");
        assert!(read(&path).unwrap_err().to_string().contains("hint: "));
        let quotas = Quotas::from([("a".to_owned(), 5)]);
        write(&path, &quotas).unwrap();
        assert_eq!(read(&path).unwrap(), quotas);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let head = "version: 1\ntenants: []\n#";
        let fill = |bytes: usize| format!("{head}{}", "x".repeat(bytes - head.len()));
        std::fs::write(&path, fill(1 << 20)).unwrap();
        assert_eq!(read(&path).unwrap(), Quotas::new());
        std::fs::write(&path, fill((1 << 20) + 1)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("more than 1048576 bytes"));
    }
}
