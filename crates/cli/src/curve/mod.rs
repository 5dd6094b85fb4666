//! `tiffin curve`: memory usage while samples are produced and consumed, for short and for long leases.
//!
//! The workload is that of hidden states for a trainer, scaled down. Its steps are derived from a seed and
//! run one after the other, so that two runs can be compared step by step.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tiffin_client::{
    Acked, Client, Deadline, Dtype, Error, Generation, ResolveOptions, SamplePut, SpaceWait, TensorRef,
};
use tiffin_report::curve as plot;
use tiffin_types::Key;
use tiffin_types::space_for;

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};
use crate::show::{self, Table};
use crate::store_client::explain;
use crate::torture::{Cluster, Program, Rng};

/// Lease times of the two runs.
const TTLS: [&str; 2] = ["1s", "300s"];
/// Tokens of a sample: lognormal with this mean and spread, up to the maximum.
const TOKENS_MEAN: f64 = 550.0;
const TOKENS_SIGMA: f64 = 0.8;
const TOKENS_MAX: u64 = 3072;
/// Bytes of a token's hidden states at full size: five layers of 4096 values of two bytes.
const HIDDEN_BYTES: u64 = 5 * 4096 * 2;
/// Bytes of a token's id, and of its mask.
const WORD_BYTES: u64 = 8;
/// Number of samples that are acknowledged together.
const ACK_BATCH: usize = 4;
/// Maximum usage in addition to the samples in flight.
const CONSTANT_BYTES_MAX: u64 = 64 << 10;
const NAMESPACE: &str = "curve";

/// Shows that memory usage follows the samples in flight, independent of the lease time.
///
/// Starts a store of its own, twice: with leases of 1 s and of 300 s. Samples of tensors are put, leased,
/// read and acknowledged, many more than fit. It plots the memory usage after each step, and exits with 1
/// unless both curves are equal and the peak is the size of the samples in flight plus a constant.
#[derive(Debug, clap::Args)]
pub(crate) struct Curve {
    /// Number of samples to produce.
    #[arg(long, default_value_t = 300, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    samples: u64,

    /// Maximum number of samples in flight.
    #[arg(long, default_value_t = 16, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=4096))]
    in_flight: u64,

    /// Scale-down factor of hidden states relative to an 8B model.
    #[arg(long, default_value_t = 64, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    scale: u64,

    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// The file for the plot.
    #[arg(short, long, default_value = "curve.svg", value_name = "FILE")]
    output: PathBuf,
}

/// Memory usage after each step, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    in_flight: Vec<u64>,
    used: Vec<u64>,
    produced: u64,
}

impl Run {
    fn peak(&self) -> u64 {
        self.used.iter().copied().max().unwrap_or_default()
    }

    /// Maximum usage in addition to the samples in flight.
    fn over(&self) -> u64 {
        let over =
            self.used.iter().zip(&self.in_flight).map(|(used, in_flight)| used.saturating_sub(*in_flight));
        over.max().unwrap_or_default()
    }
}

/// Runs the workload twice, and compares.
pub(crate) async fn run(curve: Curve, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let program = Program::own(context, String::new());
    let mut runs = Vec::new();
    for ttl in TTLS {
        console.note(format!("{} samples, with leases of {ttl}", curve.samples));
        let memory =
            (curve.in_flight * (sample_bytes_max(curve.scale) + (64 << 10))).next_multiple_of(1 << 20);
        let cluster = Cluster::start(&program, &["--lease-ttl", ttl], 1, memory, true).await?;
        let (producer, consumer) =
            (cluster.client(NAMESPACE, "").await?, cluster.client(NAMESPACE, "").await?);
        runs.push(
            Pipeline { producer, consumer, curve: &curve }.run().await.map_err(|error| explain(&error))?,
        );
    }
    let curves = TTLS.into_iter().zip(&runs).map(|(lease_time, run)| plot::Curve {
        lease_time,
        in_flight: &run.in_flight,
        used: &run.used,
    });
    let text = plot::svg(&curves.collect::<Vec<_>>());
    let fail = |error| Failure::file("write", &curve.output, &error);
    std::fs::write(&curve.output, text).map_err(fail)?;
    report(&curve, &runs, console)
}

fn sample_bytes_max(scale: u64) -> u64 {
    TOKENS_MAX * (HIDDEN_BYTES.div_ceil(scale).next_multiple_of(2) + 2 * WORD_BYTES)
}

fn report(curve: &Curve, runs: &[Run], console: &mut Console) -> Result<i32, Failure> {
    let same = runs.windows(2).all(|pair| pair.first() == pair.last());
    let good = same && runs.iter().all(|run| run.over() <= CONSTANT_BYTES_MAX);
    if console.json {
        let runs = TTLS.iter().zip(runs).map(|(ttl, run)| {
            json!({ "lease_ttl": ttl, "produced": run.produced, "peak": run.peak(), "over": run.over() })
        });
        let runs: Vec<Value> = runs.collect();
        let file = curve.output.display().to_string();
        console.value(&json!({ "runs": runs, "same": same, "good": good, "file": file }))?;
    } else {
        let mut table = Table::new(&["leases", "produced", "peak", "peak above in flight"]);
        for (ttl, run) in TTLS.iter().zip(runs) {
            let sizes = [run.produced, run.peak(), run.over()].map(show::size);
            table.row([(*ttl).to_owned()].into_iter().chain(sizes));
        }
        console.text(table)?;
        let verdict = if same { "are the same" } else { "differ" };
        console.note(format!("the curves {verdict}; the plot is in `{}`", curve.output.display()));
    }
    Ok(if good { STATUS_OK } else { STATUS_FAILED })
}

/// A producer and a consumer.
struct Pipeline<'a> {
    producer: Client,
    consumer: Client,
    curve: &'a Curve,
}

/// A sample in flight.
struct InFlight {
    key: Key,
    generation: Generation,
    bytes: u64,
}

impl Pipeline<'_> {
    async fn run(&self) -> Result<Run, Error> {
        let mut rng = Rng::new(self.curve.seed);
        let mut run = Run::default();
        let mut in_flight = VecDeque::new();
        let mut count = 0;
        while count < self.curve.samples || !in_flight.is_empty() {
            let is_full = in_flight.len() as u64 >= self.curve.in_flight || count == self.curve.samples;
            // Both work in bursts: while one is slow, the other fills or empties the store.
            let produces = rng.chance(if (count / 32).is_multiple_of(2) { 9 } else { 6 }, 10);
            if !is_full && (produces || in_flight.is_empty()) {
                count += 1;
                let sample = self.produce(count, &mut rng).await?;
                run.produced += sample.bytes;
                in_flight.push_back(sample);
            } else {
                let batch = in_flight.drain(..in_flight.len().min(ACK_BATCH)).collect();
                self.consume(batch).await?;
            }
            run.in_flight.push(in_flight.iter().map(|it| it.bytes).sum());
            run.used.push(self.used().await?);
        }
        for client in [&self.producer, &self.consumer] {
            client.close(soon()).await?;
        }
        Ok(run)
    }

    async fn produce(&self, number: u64, rng: &mut Rng) -> Result<InFlight, Error> {
        let tokens = tokens(rng);
        let width = HIDDEN_BYTES.div_ceil(self.curve.scale).next_multiple_of(2);
        let hidden = vec![number as u8; (tokens * width) as usize];
        let words = vec![1; (tokens * WORD_BYTES) as usize];
        let tensors = vec![
            TensorRef::new("hidden", Dtype::Bf16, &[tokens, width / 2], &hidden),
            TensorRef::new("ids", Dtype::I64, &[tokens], &words),
            TensorRef::new("mask", Dtype::I64, &[tokens], &words),
        ];
        let key = Key::new(format!("sample/{number}").as_bytes())?;
        let put = SamplePut::new(key.clone(), tensors);
        let stored = self.producer.put_samples(&[put], SpaceWait::UntilDeadline, soon()).await;
        let stored = one(stored)?;
        let bytes = space_for(stored.len).unwrap_or(u64::MAX);
        Ok(InFlight { key, generation: stored.generation, bytes })
    }

    async fn consume(&self, batch: Vec<InFlight>) -> Result<(), Error> {
        let keys: Vec<Key> = batch.iter().map(|it| it.key.clone()).collect();
        // In other stores this alone would keep the samples for the lease time, consumed or not.
        let options = ResolveOptions { lease: true, ..ResolveOptions::default() };
        self.consumer.resolve(&keys, options, soon()).await;
        let wanted: Vec<_> = batch.iter().map(|it| (it.key.clone(), Some(it.generation))).collect();
        for lease in self.consumer.lease(&wanted, "", soon()).await {
            let read = lease?.read(&["hidden", "ids", "mask"], soon()).await?;
            assert!(read.iter().all(|tensor| !tensor.is_empty()), "a tensor is empty");
        }
        let done: Vec<_> = batch.into_iter().map(|it| (it.key, it.generation)).collect();
        for acked in self.consumer.ack(&done, "", soon()).await {
            let acked = acked?;
            assert!(acked == Acked::Freed, "a consumed sample is {acked:?}");
        }
        Ok(())
    }

    async fn used(&self) -> Result<u64, Error> {
        let stat = self.producer.stat(soon()).await?;
        Ok(stat.namespaces.iter().find(|it| it.name == NAMESPACE).map_or(0, |it| it.used))
    }
}

/// A length with the distribution of texts: most are short, few are long.
fn tokens(rng: &mut Rng) -> u64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.unit()).cos();
    let median = TOKENS_MEAN.ln() - TOKENS_SIGMA * TOKENS_SIGMA / 2.0;
    ((median + TOKENS_SIGMA * normal).exp() as u64).clamp(1, TOKENS_MAX)
}

fn one<T>(results: Vec<Result<T, Error>>) -> Result<T, Error> {
    let nothing = || Error::Unreachable { what: "a call of one item has no outcome".to_owned() };
    results.into_iter().next().unwrap_or_else(|| Err(nothing()))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_expected_mean() {
        let mut rng = Rng::new(1);
        let lengths: Vec<u64> = (0..20_000).map(|_| tokens(&mut rng)).collect();
        let mean = lengths.iter().sum::<u64>() / 20_000;
        // The truncated lengths reduce the mean a little.
        assert!((500..=560).contains(&mean), "{mean}");
        assert!(lengths.iter().all(|it| (1..=TOKENS_MAX).contains(it)));
    }

    #[test]
    fn usage_above_in_flight_is_reported() {
        let run = Run { in_flight: vec![10, 0], used: vec![12, 7], produced: 10 };
        assert_eq!((run.peak(), run.over()), (12, 7));
    }
}
