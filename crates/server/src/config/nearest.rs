//! Suggestions for misspelt names of settings.

use strsim::osa_distance;

/// The maximum edit distance at which a word of this many letters counts as misspelt.
fn distance_max(letters: usize) -> usize {
    (letters / 3).max(1)
}

/// The candidate that is most similar to `word`, if one is similar enough.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = candidates.into_iter().map(|it| (osa_distance(word, it), it)).min()?;
    (best.0 <= distance_max(word.chars().count())).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_found_within_the_distance() {
        let known = ["listen", "lease_ttl", "lease_mode", "memory"];
        for (word, expected) in [
            ("lisen", Some("listen")),
            ("lease_tll", Some("lease_ttl")),
            ("leasettl", Some("lease_ttl")),
            ("memroy", Some("memory")),
            ("listen", Some("listen")),
            ("x", None),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest("a", []), None);
    }
}
