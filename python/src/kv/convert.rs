//! Inputs and results as plain tuples. `tiffin/kv.py` gives them names.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use tiffin_kv::{
    ChainHash, Effect, Ending, Input, Media, Medium, Namespace, OpKind, Operation, Outcome, PageRecord,
    Place, Pressure, Progress, Prompt, RankPart, ReqId, RetractReason, SpaceId, Submit, Tier,
};
use tiffin_kv_exec::Step;

use crate::errors::invalid;

/// The fields of a namespace, in the order of `tiffin.kv.Namespace`.
pub(super) type Names = (String, String, u64, String, String, String, String, String);
/// Positions and digests of media.
pub(super) type Mediums = Vec<(u32, Vec<u8>)>;
/// Rank and number of ranks: tensor, pipeline, context.
pub(super) type Coordinates = ((u32, u32), (u32, u32), (u32, u32));
/// Request, namespace, tokens, media, hashes, number of tokens, priority, seconds to wait.
type Submission = (u64, u32, Option<Vec<u8>>, Mediums, Option<Vec<[u8; 16]>>, u32, u8, Option<f64>);

/// The inputs of a step, one list for each kind, in the order in which they are applied.
#[derive(FromPyObject)]
pub(super) struct Inputs {
    computed: Vec<(u64, u32, Vec<u8>)>,
    finish: Vec<u64>,
    abort: Vec<u64>,
    retract: Vec<u64>,
    define: Vec<(u32, Names)>,
    clear: Vec<u32>,
    vanished: Vec<(u32, String, Vec<[u8; 16]>)>,
    pressure: Vec<(String, String)>,
    submit: Vec<Submission>,
}

impl Inputs {
    /// Converts them into inputs of the engine.
    pub(super) fn parse(self, py: Python<'_>) -> PyResult<Vec<Input>> {
        let progress = |(request, upto, generated): (u64, u32, Vec<u8>)| Progress {
            request: ReqId(request),
            upto,
            generated: tokens(&generated),
        };
        // Progress comes first: it refers to pages that no other input has removed yet.
        let computed = self.computed.into_iter().map(progress).collect();
        let finished = self.finish.into_iter().map(ReqId).collect();
        let mut inputs = vec![Input::Pass { computed, finished }];
        inputs.extend(self.abort.into_iter().map(|id| Input::Abort(ReqId(id))));
        inputs.extend(self.retract.into_iter().map(|id| Input::Retract(ReqId(id))));
        inputs
            .extend(self.define.into_iter().map(|(id, names)| Input::Define(SpaceId(id), namespace(names))));
        inputs.extend(self.clear.into_iter().map(|id| Input::Clear(SpaceId(id))));
        for (space, place, hashes) in self.vanished {
            let hashes = hashes.into_iter().map(ChainHash).collect();
            inputs.push(Input::Vanished(SpaceId(space), medium(py, &place)?, hashes));
        }
        for (place, level) in self.pressure {
            let level = match level.as_str() {
                "calm" => Pressure::Calm,
                "tight" => Pressure::Tight,
                "full" => Pressure::Full,
                other => return Err(no_word(py, other, "calm, tight or full")),
            };
            inputs.push(Input::Pressure(medium(py, &place)?, level));
        }
        inputs.extend(self.submit.into_iter().map(submission));
        Ok(inputs)
    }
}

fn submission(submission: Submission) -> Input {
    let (request, space, given, mediums, hashes, count, priority, seconds) = submission;
    let prompt = match hashes {
        Some(hashes) => {
            Prompt::Hashes { tokens: count, pages: (0..).zip(hashes.into_iter().map(ChainHash)).collect() }
        }
        None => Prompt::Tokens { tokens: tokens(&given.unwrap_or_default()), media: media(mediums) },
    };
    let deadline = seconds.map(|seconds| (seconds.max(0.0) * 1000.0).round() as u64);
    Input::Submit(Submit { request: ReqId(request), space: SpaceId(space), prompt, priority, deadline })
}

/// Tokens from the bytes of numpy's `uint32`.
pub(super) fn tokens(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

pub(super) fn media(mediums: Mediums) -> Vec<Media> {
    mediums.into_iter().map(|(at, content)| Media { at, content }).collect()
}

pub(super) fn namespace(names: Names) -> Namespace {
    let (model, revision, weight_version, dtype, layout, tenant, lora, salt) = names;
    Namespace { model, revision, weight_version, dtype, layout, tenant, lora, salt }
}

pub(super) fn rank((tensor, pipeline, context): Coordinates) -> RankPart {
    RankPart { tensor, pipeline, context }
}

fn medium(py: Python<'_>, word: &str) -> PyResult<Medium> {
    match word {
        "device" => Ok(Medium::Tier(Tier::Device)),
        "host" => Ok(Medium::Tier(Tier::Host)),
        "store" => Ok(Medium::Store),
        other => Err(no_word(py, other, "device, host or store")),
    }
}

/// An unknown word.
pub(super) fn no_word(py: Python<'_>, given: &str, words: &str) -> PyErr {
    invalid(py, format!("`{given}` is unknown\n\nhint: give {words}"))
}

/// The results of a step: lists of tuples, in the order of the fields of `tiffin.kv.Plan`.
pub(super) fn plan<'py>(py: Python<'py>, step: &Step) -> PyResult<Bound<'py, PyTuple>> {
    let (mut ready, mut granted, mut recompute, mut retracted) = (vec![], vec![], vec![], vec![]);
    let (mut ended, mut refused, mut stored, mut removed) = (vec![], vec![], vec![], vec![]);
    let mut loading = vec![];
    for effect in &step.effects {
        match effect {
            Effect::Loading { request, cached, pages } => {
                let cached = (cached.device, cached.host, cached.store);
                loading.push((request.0, cached, page_ids(py, pages)));
            }
            Effect::Ready { request, cached, pages } => {
                let cached = (cached.device, cached.host, cached.store);
                ready.push((request.0, cached, page_ids(py, pages)));
            }
            Effect::Grant { request, pages } => granted.push((request.0, page_ids(py, pages))),
            Effect::MustRecompute { request, from } => recompute.push((request.0, *from)),
            Effect::Retracted(request, reason) => {
                retracted.push((request.0, reason_word(*reason)));
                forget(request.0, [&mut ready, &mut loading], &mut granted);
            }
            Effect::Ended(request, how) => {
                ended.push((request.0, ending_word(*how)));
                forget(request.0, [&mut ready, &mut loading], &mut granted);
            }
            Effect::Refused(refusal) => refused.push(refusal.to_string()),
            Effect::Stored(tier, space, hash) => stored.push(copy(py, *tier, *space, *hash)),
            Effect::Removed(tier, space, hash) => removed.push(copy(py, *tier, *space, *hash)),
            // The executor carries these out itself.
            Effect::Issue(_) | Effect::CancelHint(_) => {}
        }
    }
    let operations: Vec<_> = step
        .ended
        .iter()
        .map(|ended| {
            let by_rank: Vec<i64> = ended.by_rank.iter().map(count).collect();
            let request = ended.request.map(|request| request.0);
            (ended.id.0, kind_word(ended.kind), request, ended.pages, by_rank)
        })
        .collect();
    let begun: Vec<_> = step.begun.iter().map(|operation| begun(py, operation)).collect();
    (ready, granted, recompute, retracted, ended, refused, stored, removed, operations, begun, loading)
        .into_pyobject(py)
}

/// An operation that starts: its name, kind and request, the concatenated hashes of its pages, and the
/// pages that it reads and writes. The bytes are empty for pages that are not in a tier.
type Begun<'py> = (u64, &'static str, Option<u64>, [Bound<'py, PyBytes>; 3]);

fn begun<'py>(py: Python<'py>, operation: &Operation) -> Begun<'py> {
    let hashes: Vec<u8> = operation.records.iter().flat_map(|it| it.hash.0).collect();
    let ids = |of: fn(&PageRecord) -> Place| {
        let pages = operation.records.iter().filter_map(|it| match of(it) {
            Place::Page(page) => Some(page.index.to_le_bytes()),
            Place::Store | Place::Nowhere => None,
        });
        PyBytes::new(py, pages.collect::<Vec<_>>().as_flattened())
    };
    let pages = [PyBytes::new(py, &hashes), ids(|it| it.source), ids(|it| it.target)];
    (operation.id.0, kind_word(operation.kind), operation.request.map(|it| it.0), pages)
}

/// Removes pages that a request got earlier in the same step, and has lost.
fn forget<A, B, C>(request: u64, tables: [&mut Vec<(u64, A, B)>; 2], granted: &mut Vec<(u64, C)>) {
    tables.into_iter().for_each(|table| table.retain(|(id, ..)| *id != request));
    granted.retain(|(id, _)| *id != request);
}

/// Page ids as the bytes of numpy's `int32`.
pub(super) fn page_ids<'py>(py: Python<'py>, pages: &[u32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = pages.iter().flat_map(|page| (*page as i32).to_le_bytes()).collect();
    PyBytes::new(py, &bytes)
}

fn copy(
    py: Python<'_>,
    tier: Tier,
    space: SpaceId,
    ChainHash(hash): ChainHash,
) -> (&'static str, u32, Bound<'_, PyBytes>) {
    let tier = if tier == Tier::Device { "device" } else { "host" };
    (tier, space.0, PyBytes::new(py, &hash))
}

/// The number of completed pages, or −1 for a failure.
fn count(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Done { leading } => i64::from(*leading),
        Outcome::Failed => -1,
    }
}

pub(super) fn kind_word(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Probe => "probe",
        OpKind::Fetch => "fetch",
        OpKind::Load => "load",
        OpKind::Save => "save",
        OpKind::Backup => "backup",
        OpKind::Drop => "drop",
    }
}

fn reason_word(reason: RetractReason) -> &'static str {
    match reason {
        RetractReason::NoSpace => "no-space",
        RetractReason::Vanished => "vanished",
        RetractReason::Redefined => "redefined",
    }
}

fn ending_word(ending: Ending) -> &'static str {
    match ending {
        Ending::Finished => "finished",
        Ending::Aborted => "aborted",
        Ending::TooLong => "too-long",
    }
}
