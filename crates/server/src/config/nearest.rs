//! Guesses what somebody meant to write.

/// How many letters two words may be apart to be taken for each other, for a word of this many letters.
fn distance_max(letters: usize) -> usize {
    (letters / 3).max(1)
}

/// The candidate nearest to `word`, if one is near enough to be meant.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = candidates.into_iter().map(|it| (distance(word, it), it)).min()?;
    (best.0 <= distance_max(word.chars().count())).then_some(best.1)
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour to make one word of
/// the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    let mut last = '\0';
    for (number, letter) in (1..).zip(left.chars()) {
        let mut next = vec![number];
        for (at, &other) in right.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let replaced = cell(&row, at) + usize::from(letter != other);
            let mut best = replaced.min(cell(&row, at + 1) + 1).min(cell(&next, at) + 1);
            let is_swapped = at > 0 && letter == cell_char(&right, at - 1) && last == other;
            if is_swapped && number > 1 {
                best = best.min(cell(&before, at - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
        last = letter;
    }
    row.last().copied().unwrap_or_default()
}

fn cell_char(letters: &[char], at: usize) -> char {
    letters.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_if_it_is_near() {
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

    #[test]
    fn distances_count_edits() {
        for (left, right, expected) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
            ("é", "e", 1),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
            assert_eq!(distance(right, left), expected, "{right} {left}");
        }
    }
}
