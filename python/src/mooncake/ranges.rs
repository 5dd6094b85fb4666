//! Ranges of objects, as `get_into_ranges` takes them: buffers × keys × fragments.
//!
//! Lists whose shapes do not match fail where they do not, and nowhere else.

use tiffin_client::GetInto;

use super::arguments::{Items, KeyArg, Number};
use super::codes;
use super::memory;
use super::open::Open;

type Fragments = Items<Items<Items<Number>>>;

/// The lists that were given.
pub(super) struct Ranges {
    pub(super) buffers: Items<Number>,
    pub(super) keys: Items<Items<KeyArg>>,
    pub(super) targets: Fragments,
    pub(super) sources: Fragments,
    pub(super) sizes: Fragments,
}

impl Ranges {
    /// What is to be read, fragment by fragment, and how many fragments each key of each buffer has.
    pub(super) fn gets(&self, open: &Open) -> (Vec<Result<GetInto<'static>, i64>>, Vec<Vec<usize>>) {
        let (mut gets, mut counts) = (Vec::new(), Vec::new());
        for (at, (buffer, keys)) in self.buffers.0.iter().zip(&self.keys.0).enumerate() {
            let mut of_buffer = Vec::new();
            for (place, key) in keys.0.iter().enumerate() {
                let list = |it: &Fragments| Some(it.0.get(at)?.0.get(place)?.0.clone());
                let lists = (list(&self.targets), list(&self.sources), list(&self.sizes));
                let (Some(targets), Some(sources), Some(sizes)) = lists else {
                    gets.push(Err(codes::INVALID_PARAMS));
                    of_buffer.push(1);
                    continue;
                };
                let fits = targets.len() == sizes.len() && sources.len() == sizes.len();
                of_buffer.push(sizes.len());
                if !fits {
                    gets.extend(sizes.iter().map(|_| Err(codes::INVALID_PARAMS)));
                    continue;
                }
                let fragments = targets.iter().zip(&sources).zip(&sizes);
                gets.extend(fragments.map(|((target, source), size)| {
                    fragment(open, key, (buffer.0, target.0), source.0, size.0)
                }));
            }
            counts.push(of_buffer);
        }
        (gets, counts)
    }
}

/// One fragment, which must go to registered memory.
fn fragment(
    open: &Open,
    key: &KeyArg,
    (buffer, offset): (u64, u64),
    source: u64,
    size: u64,
) -> Result<GetInto<'static>, i64> {
    let target = buffer.checked_add(offset).ok_or(codes::INVALID_PARAMS)?;
    if !open.registry.covers(target, size) {
        return Err(codes::INVALID_PARAMS);
    }
    let target = memory::target(target, size).ok_or(codes::INVALID_PARAMS)?;
    let end = source.checked_add(size).ok_or(codes::INVALID_PARAMS)?;
    let key = key.key().ok_or(codes::OBJECT_NOT_FOUND)?;
    Ok(GetInto::scattered(key, vec![target]).range(source..end))
}

/// The answers in the shape of the question.
pub(super) fn nest(answers: Vec<i64>, counts: &[Vec<usize>]) -> Vec<Vec<Vec<i64>>> {
    let mut answers = answers.into_iter();
    let mut take = |count: &usize| answers.by_ref().take(*count).collect();
    counts.iter().map(|keys| keys.iter().map(&mut take).collect()).collect()
}
