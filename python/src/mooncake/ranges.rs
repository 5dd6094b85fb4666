//! Ranges of objects for `get_into_ranges`: buffers × keys × fragments.
//!
//! The answer has the shape of the keys and of their target offsets. Lists of different shapes fail where
//! they differ: all cells if the outer lists differ, otherwise those of a buffer or of a key. A missing
//! list counts as one cell.

use tiffin_client::GetInto;
use tiffin_client::probe::Access;

use super::arguments::{Items, KeyArg, Number};
use super::checks;
use super::codes;
use super::log::tell;
use super::memory;
use super::open::Open;

type Fragments = Items<Items<Items<Number>>>;

/// The given lists.
pub(super) struct Ranges {
    pub(super) buffers: Items<Number>,
    pub(super) keys: Items<Items<KeyArg>>,
    pub(super) targets: Fragments,
    pub(super) sources: Fragments,
    pub(super) sizes: Fragments,
}

impl Ranges {
    /// The reads, one per fragment, and the number of fragments of each key of each buffer.
    pub(super) fn gets(&self, open: &Open) -> (Vec<Result<GetInto<'static>, i64>>, Vec<Vec<usize>>) {
        let (mut gets, mut counts, mut refused) = (Vec::new(), Vec::new(), None);
        let fits =
            self.lengths(|it| it.0.len(), self.keys.0.len()) && self.keys.0.len() == self.buffers.0.len();
        for (at, buffer) in self.buffers.0.iter().enumerate() {
            let keys = self.keys.0.get(at).map(|it| it.0.as_slice());
            let fits = fits
                && self.lengths(|it| it.0.get(at).map_or(0, |it| it.0.len()), keys.map_or(1, <[_]>::len));
            let mut of_buffer = Vec::new();
            for place in 0..keys.map_or(1, <[_]>::len) {
                let list =
                    |it: &Fragments| it.0.get(at).and_then(|it| it.0.get(place)).map(|it| it.0.clone());
                let targets = list(&self.targets);
                let count = targets.as_ref().map_or(1, Vec::len);
                of_buffer.push(count);
                let lists =
                    (targets, list(&self.sources), list(&self.sizes), keys.and_then(|it| it.get(place)));
                let (Some(targets), Some(sources), Some(sizes), Some(key)) = lists else {
                    gets.extend((0..count).map(|_| Err(codes::INVALID_PARAMS)));
                    continue;
                };
                if !fits || sources.len() != count || sizes.len() != count {
                    gets.extend((0..count).map(|_| Err(codes::INVALID_PARAMS)));
                    continue;
                }
                let fragments = targets.iter().zip(&sources).zip(&sizes);
                gets.extend(fragments.map(|((target, source), size)| {
                    let got = fragment(open, key, (buffer.0, target.0), source.0, size.0);
                    got.map_err(|error| match error {
                        Refused::Code(code) => code,
                        Refused::Address(start) => {
                            refused = refused.or(Some((start, size.0)));
                            codes::INVALID_PARAMS
                        }
                    })
                }));
            }
            counts.push(of_buffer);
        }
        if let Some((start, len)) = refused {
            tell_refused(open, start, len);
        }
        (gets, counts)
    }

    /// Whether the three lists of fragments all have that length at one level.
    fn lengths(&self, len: impl Fn(&Fragments) -> usize, expected: usize) -> bool {
        [&self.targets, &self.sources, &self.sizes].iter().all(|it| len(it) == expected)
    }
}

/// Why a fragment is not read.
enum Refused {
    /// Its target is not registered, writable memory.
    Address(u64),
    Code(i64),
}

/// Prints one line with the rejected address, and the reason.
fn tell_refused(open: &Open, start: u64, len: u64) {
    let what = "get_into_ranges refused";
    if let Err(error) = checks::find(open, start, len, Access::Write) {
        return checks::tell_refused(what, (start, len), Access::Write, &error);
    }
    let code = codes::INVALID_PARAMS;
    tell(&format!(
        "{what} ({code}): {len} bytes at {start:#x} are not registered; hint: call `register_buffer` first"
    ));
}

/// One fragment, whose target must be registered memory or the local buffer.
fn fragment(
    open: &Open,
    key: &KeyArg,
    (buffer, offset): (u64, u64),
    source: u64,
    size: u64,
) -> Result<GetInto<'static>, Refused> {
    let invalid = || Refused::Code(codes::INVALID_PARAMS);
    let target = buffer.checked_add(offset).ok_or_else(invalid)?;
    if !open.is_registered(target, size) {
        return Err(Refused::Address(target));
    }
    let place = checks::find(open, target, size, Access::Write).map_err(|_| Refused::Address(target))?;
    let target = memory::target(target, size, place).ok_or_else(invalid)?;
    let end = source.checked_add(size).ok_or_else(invalid)?;
    let key = key.key().ok_or(Refused::Code(codes::OBJECT_NOT_FOUND))?;
    Ok(GetInto::scattered(key, vec![target]).range(source..end))
}

/// The answers in the shape of the request.
pub(super) fn nest(answers: Vec<i64>, counts: &[Vec<usize>]) -> Vec<Vec<Vec<i64>>> {
    let mut answers = answers.into_iter();
    let mut take = |count: &usize| answers.by_ref().take(*count).collect();
    counts.iter().map(|keys| keys.iter().map(&mut take).collect()).collect()
}
