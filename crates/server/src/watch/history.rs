//! The growth of all histograms over the last minutes.
//!
//! **Invariant:** at most [`POINTS_MAX`] points are kept.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use tiffin_measure::Counts;

use super::INTERVAL;
use crate::metrics::Side;

/// The maximum number of points: five minutes.
pub(crate) const POINTS_MAX: usize = 150;
/// The points of the last minute, for rates and quantiles.
const MINUTE_POINTS: usize = 30;

/// Whose latencies, of which operation, on which path.
type Name = (Side, &'static str, &'static str);

/// The growth of all histograms over the last minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: BTreeMap<Name, Counts>,
    points: VecDeque<BTreeMap<Name, Counts>>,
}

impl History {
    /// Adds a point: what has grown since the last one.
    pub(crate) fn push(&mut self, series: Vec<(Side, &'static str, &'static str, Counts)>) {
        let mut point = BTreeMap::new();
        for (side, operation, path, now) in series {
            let name = (side, operation, path);
            let grown = self.last.get(&name).map_or_else(|| now.clone(), |it| now.since(it));
            if !grown.is_empty() {
                point.insert(name, grown);
            }
            self.last.insert(name, now);
        }
        if self.points.len() >= POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Each operation with its rate, quantiles and bytes over the last minute, and its rate and 99th
    /// percentile at each point.
    pub(crate) fn operations(&self) -> Vec<Value> {
        let minute = self.points.len().saturating_sub(MINUTE_POINTS);
        let seconds = (self.points.len() - minute).max(1) as f64 * INTERVAL.as_secs_f64();
        let operation = |name: &Name| {
            let mut sum = Counts::default();
            let recent = self.points.iter().skip(minute).filter_map(|it| it.get(name));
            recent.for_each(|it| sum.merge(it));
            let point = |it: &BTreeMap<Name, Counts>| {
                let rate = it.get(name).map_or(0.0, |it| it.count() as f64 / INTERVAL.as_secs_f64());
                (rate, it.get(name).and_then(|it| it.quantile_us(0.99)))
            };
            let (rates, tails): (Vec<_>, Vec<_>) = self.points.iter().map(point).unzip();
            let total = self.last.get(name).map_or(0, Counts::count);
            json!({
                "side": name.0.name(), "operation": name.1, "path": name.2, "total": total,
                "per_second": sum.count() as f64 / seconds,
                "bytes_per_second": sum.bytes as f64 / seconds,
                "p50_us": sum.quantile_us(0.5), "p90_us": sum.quantile_us(0.9),
                "p99_us": sum.quantile_us(0.99), "rates": rates, "p99s_us": tails,
            })
        };
        self.last.keys().map(operation).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tiffin_measure::Histogram;

    use super::*;

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let (mut history, histogram) = (History::default(), Histogram::default());
        let mut point = |count: u64| {
            (0..count).for_each(|_| histogram.record(Duration::from_micros(15), 100));
            history.push(vec![(Side::Client, "get", "tcp", histogram.counts())]);
            history.operations().pop().unwrap()
        };
        let first = point(4);
        assert_eq!(first["per_second"], 2.0);
        assert_eq!((&first["p50_us"], &first["bytes_per_second"]), (&json!(20), &json!(200.0)));
        (0..MINUTE_POINTS - 1).for_each(|_| _ = point(0));
        let last = point(0);
        assert_eq!(
            (&last["per_second"], &last["p50_us"], &last["total"]),
            (&json!(0.0), &json!(null), &json!(4))
        );
        assert_eq!(last["rates"].as_array().unwrap().len(), MINUTE_POINTS + 1);
        // The oldest point leaves when there are too many.
        for _ in 0..POINTS_MAX - MINUTE_POINTS - 1 {
            assert_eq!(point(0)["rates"][0], 2.0);
        }
        let beyond = point(0);
        assert_eq!(beyond["rates"].as_array().unwrap().len(), POINTS_MAX);
        assert_eq!(beyond["rates"][0], 0.0);
    }
}
