//! Checks that every linked crate may be shipped under our licence. The list of licences is in `deny.toml`.

use serde_json::Value;
use toml::Table;

/// The crates in the output of `cargo metadata` whose licence is not in the list of `deny`.
#[must_use]
pub fn check(deny: &str, metadata: &str) -> Vec<String> {
    let allowed = allowed(deny);
    let Ok(metadata) = serde_json::from_str::<Value>(metadata) else {
        return vec!["the output of cargo metadata cannot be read".to_owned()];
    };
    let packages = metadata.get("packages").and_then(Value::as_array).into_iter().flatten();
    let mut problems = Vec::new();
    for package in packages {
        let field = |name| package.get(name).and_then(Value::as_str).unwrap_or_default();
        if !covers(&allowed, field("license")) {
            problems.push(format!("{} {}: licence `{}`", field("name"), field("version"), field("license")));
        }
    }
    problems
}

fn allowed(deny: &str) -> Vec<String> {
    let deny: Table = deny.parse().unwrap_or_default();
    let list =
        deny.get("licenses").and_then(|licenses| licenses.get("allow")).and_then(toml::Value::as_array);
    list.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Whether an SPDX expression is satisfied: one side of an OR, both sides of an AND.
fn covers(allowed: &[String], expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let expression = expression.trim();
    if let Some((left, right)) = split(expression, " OR ") {
        return covers(allowed, left) || covers(allowed, right);
    }
    if let Some((left, right)) = split(expression, " AND ") {
        return covers(allowed, left) && covers(allowed, right);
    }
    match expression.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => covers(allowed, inner),
        None => allowed.iter().any(|name| name == expression),
    }
}

/// Splits at the first `operator` outside parentheses.
fn split<'a>(expression: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
    expression.match_indices(operator).find_map(|(at, _)| {
        let (left, right) = (expression.get(..at)?, expression.get(at + operator.len()..)?);
        (left.matches('(').count() == left.matches(')').count()).then_some((left, right))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_follow_spdx_rules() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned(), "A WITH B".to_owned()];
        let cases = [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("GPL-3.0-only/MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("(MIT AND GPL-3.0-only) OR Unicode-3.0", true),
            ("(MIT OR X) AND (Y OR Z)", false),
            ("A WITH B", true),
            ("A", false),
            ("", false),
        ];
        for (expression, covered) in cases {
            assert_eq!(covers(&allowed, expression), covered, "{expression}");
        }
    }

    #[test]
    fn crate_with_another_licence_is_reported() {
        let metadata = r#"{"packages": [{"name": "a", "version": "1", "license": "MIT"},
                                        {"name": "b", "version": "2", "license": "GPL-3.0-only"},
                                        {"name": "c", "version": "3", "license": null}]}"#;
        let problems = check("[licenses]\nallow = ['MIT']", metadata);
        assert_eq!(problems, ["b 2: licence `GPL-3.0-only`", "c 3: licence ``"]);
    }
}
