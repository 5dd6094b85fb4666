//! Records larger than a segment: complete or absent after a crash at any point, readable in any range, and
//! limited in size.

use std::sync::Arc;

use tiffin_ssd::sim::{Fate, Output, Rig, SimDisk};
use tiffin_ssd::{
    Answer, AppendError, Config, Effect, Generation, Input, Limits, Mutant, Name, OpId, PARTS_MAX, Record,
    RecordId, SUM_BYTES, Span,
};

const MIB: u64 = 1 << 20;
const LARGE: u64 = 3 * MIB + 12_345;

fn config(budget_bytes: u64) -> Config {
    let (limits, mutant) = (Limits::default(), Mutant::None);
    Config { log: 5, budget_bytes, segment_bytes: Some(2 * MIB), limits, mutant }
}

fn open(disk: SimDisk) -> Rig {
    let mut rig = Rig::open(config(33 * MIB), disk);
    rig.settle(0);
    rig
}

fn record(key: u64, payload_bytes: u64) -> Record {
    Record {
        name: Arc::new(Name { namespace: "n".into(), key: key.to_le_bytes().to_vec() }),
        generation: Generation { epoch: 1, counter: key },
        attributes: vec![],
        protected: false,
        payload_bytes,
    }
}

fn payload(key: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 12) * 7 + key) as u8).collect()
}

fn append(rig: &mut Rig, key: u64, len: u64) -> Vec<Output> {
    rig.append(OpId(key), record(key, len), payload(key, len), 1000, 0)
}

fn kept(said: &[Output], key: u64) -> Option<RecordId> {
    said.iter().find_map(|said| match said {
        Output::Answer(op, Answer::Append(Ok(id)), _) if *op == OpId(key) => Some(*id),
        _ => None,
    })
}

fn read(rig: &mut Rig, op: u64, id: RecordId, span: Span) -> Option<Vec<u8>> {
    let mut said = rig.read(OpId(op), id, span, 1000, 0);
    said.extend(rig.settle(0));
    said.into_iter().find_map(|said| match said {
        Output::Answer(_, Answer::Read(Ok(_)), bytes) => bytes,
        _ => None,
    })
}

#[test]
fn crash_leaves_a_record_complete_or_absent() {
    let mut seen = [false; 2];
    for steps in 0.. {
        let mut ended = false;
        for keep in [0, 1, 2, 3] {
            let mut rig = open(SimDisk::new());
            append(&mut rig, 1, 5000);
            let said = rig.settle(0);
            let small = kept(&said, 1).unwrap();
            let mut said = append(&mut rig, 2, LARGE);
            for _ in 0..steps {
                let Some(io) = rig.pending().first().copied() else { break };
                said.extend(rig.finish(io, Fate::Ok, 0));
            }
            let answered = kept(&said, 2);
            ended = answered.is_some() && rig.pending().is_empty();
            let mut count = 0;
            let disk = rig.crash(&mut || {
                count += 1;
                // Nothing that is not durable, all of it, or some.
                match keep {
                    0 => false,
                    1 => true,
                    keep => count % keep == 0,
                }
            });
            let mut rig = open(disk);
            let whole = |len| Span { offset: 0, len };
            assert!(read(&mut rig, 10, small, whole(5000)).unwrap() == payload(1, 5000));
            let found = rig.log.find(&record(2, 0).name);
            assert!(found.is_some() || answered.is_none(), "lost after {steps} steps, keeping {keep}");
            if let Some(id) = found {
                assert!(rig.log.places_of(id).len() > 2, "it has parts");
                let bytes = read(&mut rig, 11, id, whole(LARGE));
                assert!(bytes.unwrap() == payload(2, LARGE), "torn after {steps} steps, keeping {keep}");
            }
            seen = [seen[0] || found.is_none(), seen[1] || found.is_some()];
        }
        if ended {
            break;
        }
    }
    assert_eq!(seen, [true, true]);
}

#[test]
fn every_range_can_be_read() {
    let mut rig = open(SimDisk::new());
    append(&mut rig, 1, LARGE);
    let said = rig.settle(0);
    let id = kept(&said, 1).unwrap();
    let all = payload(1, LARGE);
    let edges = [0, 1, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB - 5, 2 * MIB, 3 * MIB + 1, LARGE];
    let mut op = 100;
    for (at, offset) in edges.iter().enumerate() {
        for end in edges.iter().skip(at + 1) {
            op += 1;
            let span = Span { offset: *offset, len: end - offset };
            let expected = all.get(*offset as usize..*end as usize).unwrap();
            assert!(read(&mut rig, op, id, span).unwrap() == expected, "{span:?}");
        }
    }
}

#[test]
fn cancelled_or_late_append_leaves_nothing() {
    for steps in 0..8 {
        for input in [Input::Cancel { op: OpId(1) }, Input::Tick] {
            let mut rig = open(SimDisk::new());
            let mut said = append(&mut rig, 1, LARGE);
            for _ in 0..steps {
                let Some(io) = rig.pending().first().copied() else { break };
                said.extend(rig.finish(io, Fate::Ok, 0));
            }
            if kept(&said, 1).is_some() {
                continue;
            }
            said.extend(rig.apply(input, 2000));
            said.extend(rig.settle(2000));
            rig.log.check();
            let answers: Vec<_> = said
                .iter()
                .filter_map(|said| match said {
                    Output::Answer(_, Answer::Append(result), _) => Some(result.clone()),
                    _ => None,
                })
                .collect();
            let refused = [Err(AppendError::Cancelled), Err(AppendError::TimedOut)];
            assert!(answers.len() == 1 && refused.contains(answers.first().unwrap()), "{answers:?}");
            assert_eq!((rig.log.records().count(), rig.log.stats().live_bytes), (0, 0), "{steps}");
            // Its key can be used again at once, and what is left of it counts for nothing.
            rig.append(OpId(2), record(1, LARGE), payload(1, LARGE), 9000, 2000);
            let id = kept(&rig.settle(2000), 2).unwrap();
            let mut rig = open(rig.crash(&mut || false));
            assert_eq!(rig.log.records().map(|(id, _)| id).collect::<Vec<_>>(), [id], "{steps}");
            assert!(read(&mut rig, 3, id, Span { offset: 0, len: LARGE }).unwrap() == payload(1, LARGE));
        }
    }
}

#[test]
fn number_of_parts_is_limited() {
    let mut rig = Rig::open(config(48 << 30), SimDisk::new());
    let mut ios = rig.pending();
    while let Some(io) = ios.pop() {
        rig.finish(io, Fate::Ok, 0);
        ios = rig.pending();
    }
    let bytes_max = rig.log.stats().record_bytes_max;
    assert_eq!(bytes_max, (PARTS_MAX - 1) * 31 * SUM_BYTES - 1);
    for (op, bytes) in [(1, bytes_max + 1), (2, bytes_max)] {
        let sums = vec![0; bytes.div_ceil(SUM_BYTES) as usize].into();
        let input = Input::Append { op: OpId(op), record: record(op, bytes), sums, deadline: 10 };
        let effects = rig.log.apply(input, 0);
        let refused = Answer::Append(Err(AppendError::TooLarge { bytes, bytes_max }));
        let answer = Effect::Answer { op: OpId(op), answer: refused };
        assert_eq!(effects.contains(&answer), bytes > bytes_max, "{bytes}");
    }
}
