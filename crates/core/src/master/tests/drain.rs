//! Drain jobs: the master's account of them, and its messages to the nodes.

use super::*;
use crate::message::{DrainJob, DrainReport, DrainState, JobId};

fn job(number: u64, sources: &[&str]) -> DrainJob {
    DrainJob {
        id: JobId { first: number, second: 1 },
        sources: sources.iter().map(ToString::to_string).collect(),
        concurrency: 4,
        ..DrainJob::default()
    }
}

impl Cluster {
    fn start(&mut self, job: DrainJob) -> Result<(), DrainRefusal> {
        let started = self.master.start_drain(self.now, job);
        self.carry_out();
        started
    }

    fn cancel(&mut self, number: u64) -> Result<(), DrainRefusal> {
        let cancelled = self.master.cancel_drain(self.now, JobId { first: number, second: 1 });
        self.carry_out();
        cancelled
    }

    fn drain(&mut self, number: u64) -> Option<DrainStat> {
        let stat = self.master.drain_stat(self.now, JobId { first: number, second: 1 });
        self.carry_out();
        stat
    }

    fn status(&mut self, number: u64) -> Option<DrainStatus> {
        self.drain(number).map(|it| it.status)
    }

    fn report(&mut self, index: usize, job: &DrainJob, state: DrainState, succeeded: u64) {
        let report = DrainReport { job: job.clone(), state, succeeded, ..DrainReport::default() };
        self.node_event(index, node::Event::DrainReport(report));
    }

    fn capacity(&self, index: usize) -> u64 {
        self.nodes[index].usage().capacity
    }
}

#[test]
fn drained_segments_take_nothing_new_until_the_job_is_cancelled() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let there = PutOptions { preferred: vec!["node1".into()], ..plain() };
    cluster.put("old", UNIT, there.clone());
    let work = job(1, &["node1"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    assert_eq!((cluster.capacity(0), cluster.status(1)), (0, Some(DrainStatus::Created)));
    assert_eq!(cluster.master.drain_phase(SegmentId(1)), Some(false));
    cluster.put("new", UNIT, there.clone());
    assert_eq!(cluster.nodes[0].inventory().len(), 1, "an object goes elsewhere");
    cluster.report(0, &work, DrainState::Moving, 3);
    let stat = cluster.drain(1).unwrap();
    assert_eq!((stat.status, stat.succeeded), (DrainStatus::Running, 3));
    assert_eq!(cluster.cancel(1), Ok(()));
    assert_eq!((cluster.capacity(0), cluster.status(1)), (4 * UNIT, Some(DrainStatus::Cancelled)));
    assert_eq!(cluster.master.drain_phase(SegmentId(1)), None);
    cluster.put("again", UNIT, there);
    assert_eq!(cluster.nodes[0].inventory().len(), 2);
    assert_eq!(cluster.cancel(1), Err(DrainRefusal::WrongState));
    assert_eq!(cluster.cancel(2), Err(DrainRefusal::NoJob));
}

#[test]
fn job_succeeds_when_every_segment_is_empty() {
    let mut cluster = Cluster::new(&[4 * UNIT; 3]);
    let work = job(1, &["node1", "node2"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    cluster.report(0, &work, DrainState::Empty, 2);
    assert_eq!(cluster.status(1), Some(DrainStatus::Running));
    cluster.report(1, &work, DrainState::Empty, 5);
    let stat = cluster.drain(1).unwrap();
    assert_eq!((stat.status, stat.succeeded), (DrainStatus::Succeeded, 7));
    assert_eq!(cluster.master.drain_phase(SegmentId(2)), Some(true));
    assert_eq!(cluster.start(job(2, &["node1"])), Err(DrainRefusal::WrongState));
    // A segment that leaves afterwards changes nothing.
    cluster.unlink(0);
    cluster.wait(10_000);
    assert_eq!(cluster.status(1), Some(DrainStatus::Succeeded));
}

#[test]
fn invalid_drain_jobs_are_refused() {
    let mut cluster = Cluster::new(&[4 * UNIT; 2]);
    let to = |targets: &[&str]| DrainJob {
        targets: targets.iter().map(ToString::to_string).collect(),
        ..job(1, &["node1"])
    };
    for (wanted, refusal) in [
        (job(1, &[]), DrainRefusal::Invalid),
        (job(1, &["node1", "node1"]), DrainRefusal::Invalid),
        (DrainJob { concurrency: 0, ..job(1, &["node1"]) }, DrainRefusal::Invalid),
        (to(&["node1"]), DrainRefusal::Invalid),
        (job(1, &["other"]), DrainRefusal::NoSegment),
        (to(&["other"]), DrainRefusal::NoSegment),
    ] {
        assert_eq!(cluster.start(wanted), Err(refusal));
    }
    assert_eq!((cluster.capacity(0), cluster.status(1)), (4 * UNIT, None), "nothing was begun");
    assert_eq!(cluster.start(job(2, &["node2"])), Ok(()));
    assert_eq!(cluster.start(to(&["node2"])), Err(DrainRefusal::WrongState));
}

#[test]
fn failed_job_gives_its_segments_back() {
    let mut cluster = Cluster::new(&[4 * UNIT; 2]);
    let work = job(1, &["node1"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    cluster.report(0, &work, DrainState::Failed, 0);
    assert_eq!((cluster.capacity(0), cluster.status(1)), (4 * UNIT, Some(DrainStatus::Failed)));
}

#[test]
fn job_fails_when_a_segment_leaves_early() {
    let mut cluster = Cluster::new(&[4 * UNIT; 3]);
    let work = job(1, &["node1", "node2"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    cluster.report(1, &work, DrainState::Empty, 0);
    let conn = cluster.links[0];
    cluster.event(Event::Request(conn, RequestId(9), Request::Goodbye));
    cluster.event(Event::Closed(conn));
    assert_eq!((cluster.status(1), cluster.capacity(1)), (Some(DrainStatus::Left), 4 * UNIT));
}

#[test]
fn restarted_master_learns_jobs_from_the_reports() {
    let mut cluster = Cluster::new(&[4 * UNIT; 2]);
    let work = job(1, &["node1"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    cluster.restart_master(6);
    assert_eq!((cluster.status(1), cluster.capacity(0)), (None, 0), "the node drains on");
    cluster.report(0, &work, DrainState::Moving, 4);
    let stat = cluster.drain(1).unwrap();
    assert_eq!((stat.status, stat.succeeded), (DrainStatus::Running, 4));
    assert_eq!(cluster.cancel(1), Ok(()));
    assert_eq!(cluster.capacity(0), 4 * UNIT);
}

#[test]
fn cancelled_job_ends_on_a_node_that_was_away() {
    let mut cluster = Cluster::new(&[4 * UNIT; 2]);
    let work = job(1, &["node1"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    cluster.unlink(0);
    assert_eq!(cluster.cancel(1), Ok(()));
    cluster.link(0);
    assert_eq!(cluster.capacity(0), 0, "the node does not know yet");
    cluster.report(0, &work, DrainState::Moving, 0);
    assert_eq!((cluster.capacity(0), cluster.status(1)), (4 * UNIT, Some(DrainStatus::Cancelled)));
}

impl Cluster {
    /// The process of a node is started again on its memory pool, which is empty. It knows of no drain job.
    fn restart_node(&mut self, index: usize) {
        self.unlink(index);
        self.nodes[index] = node::Node::new(node_config(index as u64 + 1, 4 * UNIT));
        self.link(index);
    }
}

/// The connection breaks before the job arrives, or the process ends. Returns whether the node takes objects
/// then, and after the end of the job.
fn takes_objects_after_it_returns(mutant: Mutant, receives: bool) -> [bool; 2] {
    let mut cluster = Cluster::with(&[4 * UNIT; 2], |config| config.mutant = mutant);
    let work = job(1, &["node1"]);
    cluster.hold_up(0);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    if receives {
        cluster.let_go(0);
        cluster.report(0, &work, DrainState::Moving, 3);
        cluster.restart_node(0);
    } else {
        cluster.held_up[0].clear();
        cluster.is_held_up[0] = false;
        cluster.unlink(0);
        cluster.link(0);
    }
    cluster.node_event(0, node::Event::Beat);
    let there = PutOptions { preferred: vec!["node1".into()], ..plain() };
    cluster.put("new", UNIT, there.clone());
    let takes = |cluster: &Cluster| cluster.nodes[0].usage().objects > 0;
    let before = takes(&cluster);
    cluster.report(0, &work, DrainState::Moving, 1);
    assert_eq!(cluster.cancel(1), Ok(()));
    cluster.put("again", UNIT, there);
    [before, takes(&cluster)]
}

#[test]
fn node_that_returns_without_its_job_is_drained_again() {
    for receives in [false, true] {
        let takes = takes_objects_after_it_returns(Mutant::None, receives);
        assert_eq!(takes, [false, true], "{receives}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_drain_jobs_is_noticed() {
    for receives in [false, true] {
        assert!(takes_objects_after_it_returns(Mutant::ForgetDrains, receives)[0]);
    }
}

#[test]
fn drained_node_that_is_started_again_is_in_use() {
    let mut cluster = Cluster::new(&[4 * UNIT; 3]);
    let work = job(1, &["node1", "node2"]);
    assert_eq!(cluster.start(work.clone()), Ok(()));
    for index in 0..2 {
        cluster.report(index, &work, DrainState::Empty, 2);
    }
    // A connection that breaks changes nothing.
    cluster.unlink(1);
    cluster.link(1);
    cluster.restart_node(0);
    let phases = [1, 2].map(|it| cluster.master.drain_phase(SegmentId(it)));
    assert_eq!(phases, [None, Some(true)]);
    let stat = cluster.drain(1).unwrap();
    assert_eq!((stat.status, stat.succeeded), (DrainStatus::Succeeded, 4));
    cluster.put("k", UNIT, PutOptions { preferred: vec!["node1".into()], ..plain() });
    assert_eq!(cluster.nodes[0].usage().objects, 1);
    assert_eq!(cluster.start(job(2, &["node1"])), Ok(()));
    assert_eq!(cluster.master.drain_phase(SegmentId(1)), Some(false));
}

#[test]
fn drain_jobs_and_ended_ones_are_bounded() {
    let mut cluster = Cluster::new(&[4 * UNIT; DRAIN_JOBS_MAX + 1]);
    for number in 1..=DRAIN_JOBS_MAX as u64 {
        assert_eq!(cluster.start(job(number, &[&format!("node{number}")])), Ok(()));
    }
    let last = format!("node{}", DRAIN_JOBS_MAX + 1);
    let beyond = job(1000, &[&last]);
    assert_eq!(cluster.start(beyond.clone()), Err(DrainRefusal::TooMany));
    assert_eq!(cluster.capacity(DRAIN_JOBS_MAX), 4 * UNIT);
    // A node with the job of an earlier master receives a stop, too.
    let drain = crate::message::Drain { job: beyond.clone(), stop: false };
    cluster
        .node_event(DRAIN_JOBS_MAX, node::Event::MasterRequest(RequestId(7), MasterToMember::Drain(drain)));
    cluster.report(DRAIN_JOBS_MAX, &beyond, DrainState::Moving, 0);
    assert_eq!((cluster.status(1000), cluster.capacity(DRAIN_JOBS_MAX)), (None, 4 * UNIT));
    assert_eq!(cluster.cancel(1), Ok(()));
    assert_eq!(cluster.start(beyond), Ok(()));
    assert_eq!(cluster.cancel(1000), Ok(()));
    for number in 2000..2000 + DRAIN_JOBS_ENDED_MAX as u64 - 2 {
        assert_eq!((cluster.start(job(number, &[&last])), cluster.cancel(number)), (Ok(()), Ok(())));
    }
    assert_eq!(cluster.status(1), Some(DrainStatus::Cancelled), "as many as are remembered");
    assert_eq!((cluster.start(job(9999, &[&last])), cluster.cancel(9999)), (Ok(()), Ok(())));
    assert_eq!((cluster.status(1), cluster.status(1000)), (None, Some(DrainStatus::Cancelled)));
}

#[test]
fn unmounting_segment_stays_closed_after_a_cancelled_job() {
    let mut cluster = Cluster::new(&[4 * UNIT; 2]);
    assert_eq!(cluster.start(job(1, &["node1"])), Ok(()));
    cluster.node_event(0, node::Event::Drain);
    assert_eq!(cluster.cancel(1), Ok(()));
    assert_eq!(cluster.capacity(0), 0);
}
