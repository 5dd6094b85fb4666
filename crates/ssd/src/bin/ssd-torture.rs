//! Kills a process that appends, changes and deletes records on a real disk, repeatedly, and verifies the
//! log.
//!
//! The process writes its requests and their answers to a pipe; those before the kill count. Afterwards every
//! record is complete or absent. Answered appends exist unless they may have been evicted, and deleted
//! records do not exist.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tiffin_ssd::{
    DiskLog, DiskLogConfig, Drive, Event, Generation, Limits, Name, Opened, Pieces, ReadError, Record,
    RecordId, Span, wait,
};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);
const USAGE: &str = "usage: ssd-torture --path FOLDER [--seed N] [--rounds N] [--blocking] [--json]";

struct Args {
    path: PathBuf,
    seed: u64,
    rounds: u64,
    start: u64,
    blocking: bool,
    json: bool,
    child: bool,
}

fn main() -> ExitCode {
    let Some(args) = parse() else { return complain(USAGE) };
    let result = if args.child { child(&args) } else { torture(&args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => complain(&text),
    }
}

fn complain(text: &str) -> ExitCode {
    drop(writeln!(std::io::stderr(), "{text}"));
    ExitCode::FAILURE
}

fn parse() -> Option<Args> {
    let mut args = Args {
        path: PathBuf::new(),
        seed: 1,
        rounds: 20,
        start: 1,
        blocking: false,
        json: false,
        child: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--path" => args.path = words.next()?.into(),
            "--seed" => args.seed = words.next()?.parse().ok()?,
            "--rounds" => args.rounds = words.next()?.parse().ok()?,
            "--start" => args.start = words.next()?.parse().ok()?,
            "--blocking" => args.blocking = true,
            "--json" => args.json = true,
            "--child" => args.child = true,
            _ => return None,
        }
    }
    (!args.path.as_os_str().is_empty()).then_some(args)
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end.max(1)
    }
}

fn open(path: &Path, blocking: bool, listen: impl FnMut(Event) + Send + 'static) -> Result<Opened, String> {
    let config = DiskLogConfig {
        path: path.to_owned(),
        budget_bytes: 34 * MIB,
        segment_bytes: Some(2 * MIB),
        limits: Limits::default(),
        drive: if blocking { Drive::Blocking } else { Drive::Auto },
    };
    DiskLog::open(&config, listen).map_err(|error| error.to_string())
}

fn payload(counter: u64) -> Vec<u8> {
    let mut chance = Chance(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let len = match counter {
        // Larger than a segment.
        _ if counter.is_multiple_of(47) => 2 * MIB + chance.below(3 * MIB),
        _ if counter.is_multiple_of(9) => chance.below(MIB),
        _ => chance.below(60_000),
    };
    (0..len.div_ceil(8)).flat_map(|_| chance.below(u64::MAX).to_le_bytes()).take(len as usize).collect()
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // The pipe is closed: the parent process has ended.
    if out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Runs until it is killed. Generations start at `start`, and none is used twice.
fn child(args: &Args) -> Result<(), String> {
    let opened = open(&args.path, args.blocking, |event| {
        if let Event::Left(_, ids) = event {
            ids.iter().for_each(|id| say(&format!("left {}", id.0)));
        }
    })?;
    let log = Arc::new(opened.log);
    let here: Arc<Mutex<Vec<RecordId>>> =
        Arc::new(Mutex::new(opened.records.iter().map(|(id, _)| *id).collect()));
    let mut chance = Chance(args.seed | 1);
    for counter in args.start.. {
        let bytes = payload(counter);
        let key = chance.below(400);
        let protected = chance.below(20) == 0;
        let record = Record {
            name: Arc::new(Name { namespace: "torture".into(), key: key.to_le_bytes().to_vec() }),
            generation: Generation { epoch: 1, counter },
            attributes: counter.to_le_bytes().to_vec(),
            protected,
            payload_bytes: bytes.len() as u64,
        };
        say(&format!("ask {counter} {key} {}", u8::from(protected)));
        let known = Arc::clone(&here);
        log.append(record, Pieces::copy_of(&bytes), LONG, move |result| {
            if let Ok(id) = result {
                say(&format!("kept {counter} {}", id.0));
                known.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }
        });
        if chance.below(3) == 0 {
            let mut here = here.lock().unwrap_or_else(PoisonError::into_inner);
            if !here.is_empty() {
                let at = chance.below(here.len() as u64) as usize;
                let id = here.swap_remove(at);
                drop(here);
                say(&format!("forgetting {}", id.0));
                log.forget(vec![id], LONG, move |result| {
                    if result.is_ok() {
                        say(&format!("forgotten {}", id.0));
                    }
                });
            }
        }
        if counter.is_multiple_of(16) {
            let flushed: Result<(), _> = wait(|done| log.flush(LONG, done));
            flushed.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// What is known of a generation.
#[derive(Clone, Debug, Default)]
struct Known {
    key: u64,
    protected: bool,
    id: Option<u64>,
    forgetting: bool,
    gone: bool,
}

fn torture(args: &Args) -> Result<(), String> {
    let mut chance = Chance(args.seed.wrapping_mul(0x9e37_79b9) | 1);
    let mut known: BTreeMap<u64, Known> = BTreeMap::new();
    let (mut start, mut recovered, mut bad, mut read) = (1, 0, 0, 0);
    for round in 0..args.rounds {
        let lines = run_and_kill(args, start, 20 + chance.below(1500), round)?;
        lines.iter().for_each(|line| apply(&mut known, line));
        start = known.last_key_value().map_or(start, |(counter, _)| counter + 1);
        let left = Arc::new(Mutex::new(Vec::new()));
        let receiver = Arc::clone(&left);
        let opened = open(&args.path, args.blocking, move |event| {
            if let Event::Left(_, ids) = event {
                receiver.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
            }
        })?;
        recovered += opened.recovery.records;
        bad += opened.recovery.records_bad;
        read += look(&mut known, &opened, &left)
            .map_err(|text| format!("seed {} round {round}: {text}", args.seed))?;
        if args.json || round + 1 == args.rounds {
            let word = format!(
                "{{\"round\": {round}, \"records\": {}, \"recovered\": {recovered}, \"bad\": {bad}, \
                 \"read\": {read}, \"engine\": \"{}\"}}",
                opened.recovery.records, opened.driven
            );
            say(&word);
        }
    }
    Ok(())
}

fn run_and_kill(args: &Args, start: u64, count: u64, round: u64) -> Result<Vec<String>, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.arg("--child").arg("--path").arg(&args.path);
    command
        .arg("--seed")
        .arg((args.seed * 1_000_003 + round).to_string())
        .arg("--start")
        .arg(start.to_string());
    if args.blocking {
        command.arg("--blocking");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let Some(out) = child.stdout.take() else { return Err("a child without output".to_owned()) };
    let mut lines = Vec::new();
    let mut reader = BufReader::new(out).lines();
    while let Some(Ok(line)) = reader.next() {
        lines.push(line);
        if lines.len() as u64 == count {
            child.kill().map_err(|error| error.to_string())?;
        }
    }
    child.wait().map_err(|error| error.to_string())?;
    // Lines are shorter than an atomic write to a pipe, so none is torn.
    Ok(lines)
}

fn apply(known: &mut BTreeMap<u64, Known>, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    match words.first().copied() {
        Some("ask") => {
            let asked = Known { key: number(2), protected: number(3) == 1, ..Known::default() };
            known.insert(number(1), asked);
        }
        Some("kept") => {
            if let Some(kept) = known.get_mut(&number(1)) {
                kept.id = Some(number(2));
            }
        }
        Some(word @ ("forgetting" | "forgotten" | "left")) => {
            let id = number(1);
            for of in known.values_mut().filter(|of| of.id == Some(id)) {
                of.forgetting = true;
                of.gone |= word != "forgetting";
            }
        }
        _ => {}
    }
}

/// Verifies the records against the answers; returns how many were read.
fn look(
    known: &mut BTreeMap<u64, Known>,
    opened: &Opened,
    left: &Mutex<Vec<RecordId>>,
) -> Result<u64, String> {
    let mut found: BTreeMap<u64, RecordId> = BTreeMap::new();
    for (id, record) in &opened.records {
        let counter = record.generation.counter;
        let Some(of) = known.get_mut(&counter) else {
            return Err(format!("generation {counter} was never asked for"));
        };
        if of.gone {
            return Err(format!("generation {counter} came back: {of:?}"));
        }
        let into = Pieces::zeroed(record.payload_bytes);
        let span = Span { offset: 0, len: record.payload_bytes };
        let result = wait(|done| opened.log.read(*id, span, into.clone(), LONG, done));
        // A log that opens nearly full evicts at once.
        let evicted = left.lock().unwrap_or_else(PoisonError::into_inner).contains(id);
        if result == Err(ReadError::Gone) && evicted {
            of.gone = true;
            continue;
        }
        if result != Ok(record.payload_bytes) || into.to_vec() != payload(counter) {
            return Err(format!("generation {counter} has not its bytes: {result:?}"));
        }
        of.id = Some(id.0);
        of.forgetting = false;
        found.insert(counter, *id);
    }
    let newest: BTreeMap<u64, u64> = known.iter().map(|(counter, of)| (of.key, *counter)).collect();
    for (counter, of) in known.iter_mut().filter(|(counter, _)| !found.contains_key(counter)) {
        let must = of.protected && of.id.is_some() && !of.forgetting && !of.gone;
        if must && newest.get(&of.key) == Some(counter) {
            return Err(format!("generation {counter} is lost: {of:?}"));
        }
        of.gone = true;
    }
    Ok(found.len() as u64)
}
