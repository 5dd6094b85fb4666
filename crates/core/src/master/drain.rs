//! Drain jobs: the segments to empty, and the progress of each.
//!
//! The members do the work and report it; this part sends the jobs out and adds the reports up. The calls of
//! [`Master`] here come from the shell's own pages.
//!
//! **Invariant:** a member whose job has ended without success accepts new objects again. The master sends
//! it a stop at once, and again whenever it reports. A member that returns without its job, because it did
//! not receive it or because its process was started again, receives the job again while that runs. After a
//! job that succeeded, it is in use again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Effect, Master, catalog::NodeIndex, context::Context, members::Standing};
use crate::{
    SegmentId, Tick,
    message::{Drain, DrainJob, DrainReport, DrainState, JobId, MasterToMember, Reply},
    mutant::is_mutant,
};

/// The number of drain jobs that run at the same time.
pub const DRAIN_JOBS_MAX: usize = 64;
/// The number of ended drain jobs that are remembered.
pub const DRAIN_JOBS_ENDED_MAX: usize = 1 << 10;

/// The state of a drain job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStatus {
    /// No member has reported yet.
    Created,
    /// The members move objects.
    Running,
    /// The segments are empty.
    Succeeded,
    /// Objects remain that cannot be moved.
    Failed,
    /// A segment has left the cluster before it was empty.
    Left,
    /// An operator has cancelled it.
    Cancelled,
}

impl DrainStatus {
    /// Whether the members still work at it.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, Self::Created | Self::Running)
    }

    /// Whether the segments take objects again.
    fn has_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Left | Self::Cancelled)
    }
}

/// Why a drain job is not created or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainRefusal {
    /// No sources, a source named twice, a target that is a source, or no concurrency.
    Invalid,
    /// There is no such segment.
    NoSegment,
    /// A segment is drained already, or the job has ended.
    WrongState,
    /// There are [`DRAIN_JOBS_MAX`] jobs.
    TooMany,
    /// There is no such job.
    NoJob,
}

/// A drain job, as its operator sees it. The counts are the sums over its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStat {
    /// The job.
    pub job: DrainJob,
    /// Its state.
    pub status: DrainStatus,
    /// When it last changed.
    pub updated: Tick,
    /// See [`DrainReport::succeeded`].
    pub succeeded: u64,
    /// See [`DrainReport::failed`].
    pub failed: u64,
    /// See [`DrainReport::blocked`].
    pub blocked: u64,
    /// See [`DrainReport::active`].
    pub active: u64,
    /// See [`DrainReport::bytes`].
    pub bytes: u64,
}

#[derive(Debug)]
struct Job {
    job: DrainJob,
    status: DrainStatus,
    updated: Tick,
    /// The last report of each segment.
    segments: BTreeMap<SegmentId, Option<DrainReport>>,
    /// Segments that are in use again since the job succeeded.
    reused: BTreeSet<SegmentId>,
}

/// All drain jobs.
#[derive(Debug, Default)]
pub(super) struct Drains {
    jobs: BTreeMap<JobId, Job>,
    /// Those that have ended, the oldest first.
    ended: VecDeque<JobId>,
}

impl Drains {
    fn active_count(&self) -> usize {
        self.jobs.len() - self.ended.len()
    }

    fn set_status(&mut self, id: JobId, status: DrainStatus, now: Tick) {
        let Some(job) = self.jobs.get_mut(&id).filter(|it| it.status != status) else { return };
        let was_active = job.status.is_active();
        (job.status, job.updated) = (status, now);
        match (was_active, status.is_active()) {
            (true, false) => self.ended.push_back(id),
            (false, true) => self.ended.retain(|it| *it != id),
            _ => (),
        }
        while self.ended.len() > DRAIN_JOBS_ENDED_MAX {
            self.ended.pop_front().and_then(|oldest| self.jobs.remove(&oldest));
        }
    }

    /// Whether a segment is being drained (`false`) or is drained (`true`).
    fn phase(&self, segment: SegmentId) -> Option<bool> {
        let is_current = |it: &&Job| !it.status.has_failed() && !it.reused.contains(&segment);
        let current = self.jobs.values().filter(is_current);
        let mut reports = current.filter_map(|it| it.segments.get(&segment));
        let report = reports.next()?;
        Some(report.as_ref().is_some_and(|it| it.state == DrainState::Empty))
    }

    /// A member reports. The reply is a stop if its job has ended without success, or if the job is unknown
    /// and the limit is reached.
    pub(super) fn report(&mut self, cx: &mut Context, node: NodeIndex, report: DrainReport) -> Reply {
        let Some(segment) = cx.members.get(node).map(|it| it.info.segment) else { return Reply::Done };
        let id = report.job.id;
        if !self.jobs.contains_key(&id) && self.active_count() < DRAIN_JOBS_MAX {
            // The job of a master before this one.
            let job = report.job.clone();
            let status = DrainStatus::Running;
            let (segments, reused) = (BTreeMap::new(), BTreeSet::new());
            self.jobs.insert(id, Job { job, status, updated: cx.now, segments, reused });
        }
        match self.jobs.get_mut(&id) {
            Some(job) if !job.status.has_failed() => {
                let old = job.segments.insert(segment, Some(report));
                if old.as_ref() != job.segments.get(&segment) {
                    job.updated = cx.now;
                }
                self.settle(cx, id);
            }
            Some(_) if is_mutant!(cx.config.mutant, DrainForEver) => (),
            Some(_) | None => send(cx, node, &Drain { job: report.job, stop: true }),
        }
        Reply::Done
    }

    /// A member is ready again. If it has capacity, it does not know of a drain job.
    pub(super) fn joined(&mut self, cx: &mut Context, node: NodeIndex) {
        let ready = cx.members.get(node).filter(|it| it.standing == Standing::Ready && !it.is_draining());
        let Some(segment) = ready.map(|it| it.info.segment) else { return };
        if is_mutant!(cx.config.mutant, ForgetDrains) {
            return;
        }
        for job in self.jobs.values_mut().filter(|it| it.segments.contains_key(&segment)) {
            match job.status {
                DrainStatus::Created | DrainStatus::Running => {
                    // Its process looks at everything again.
                    job.segments.insert(segment, None);
                    begin(cx, node, &job.job);
                }
                DrainStatus::Succeeded => _ = job.reused.insert(segment),
                DrainStatus::Failed | DrainStatus::Left | DrainStatus::Cancelled => (),
            }
        }
    }

    /// Finds out how far a job is.
    fn settle(&mut self, cx: &mut Context, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|it| !it.status.has_failed()) else { return };
        let state = |(segment, report): (&SegmentId, &Option<DrainReport>)| {
            let state = report.as_ref().map(|it| it.state);
            let is_gone = cx.members.find(*segment).is_none() && state != Some(DrainState::Empty);
            (state, is_gone)
        };
        let states: Vec<_> = job.segments.iter().map(state).collect();
        let is = |wanted| states.iter().all(|(state, _)| *state == Some(wanted));
        let is_open = |(state, is_gone): &(Option<DrainState>, bool)| {
            !is_gone && !matches!(state, Some(DrainState::Empty | DrainState::Failed))
        };
        let status = if is(DrainState::Empty) {
            DrainStatus::Succeeded
        } else if states.iter().any(is_open) {
            match states.iter().all(|(state, _)| state.is_none()) {
                true => DrainStatus::Created,
                false => DrainStatus::Running,
            }
        } else if states.iter().any(|(_, is_gone)| *is_gone) {
            DrainStatus::Left
        } else {
            DrainStatus::Failed
        };
        self.set_status(id, status, cx.now);
        if status.has_failed() {
            self.stop(cx, id);
        }
    }

    /// Tells the members of a job that it has ended.
    fn stop(&self, cx: &mut Context, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        for segment in job.segments.keys() {
            if let Some(node) = cx.members.find(*segment) {
                send(cx, node, &Drain { job: job.job.clone(), stop: true });
            }
        }
    }

    /// Looks again at the segments of jobs that run: some may have left.
    fn settle_all(&mut self, cx: &mut Context) {
        let active: Vec<_> =
            self.jobs.iter().filter(|(_, it)| it.status.is_active()).map(|(id, _)| *id).collect();
        for id in active {
            self.settle(cx, id);
        }
    }
}

impl Master {
    /// Starts a drain job: its segments take no new objects from now on.
    pub fn start_drain(&mut self, now: Tick, job: DrainJob) -> Result<(), DrainRefusal> {
        let cx = &mut self.objects.cx;
        cx.now = cx.now.max(now);
        self.drains.settle_all(cx);
        let sources: BTreeSet<_> = job.sources.iter().collect();
        let is_unique = sources.len() == job.sources.len();
        let is_apart = !job.targets.iter().any(|it| sources.contains(it));
        if sources.is_empty() || !is_unique || !is_apart || job.concurrency == 0 {
            return Err(DrainRefusal::Invalid);
        }
        let mut nodes = Vec::new();
        for (names, is_source) in [(&job.sources, true), (&job.targets, false)] {
            for name in names {
                let found = memories(cx, name);
                if found.is_empty() {
                    return Err(DrainRefusal::NoSegment);
                }
                let is_open = |(node, segment): &(NodeIndex, SegmentId)| {
                    let capacity = cx.members.get(*node).map_or(0, |it| it.usage.capacity);
                    capacity > 0 && self.drains.phase(*segment).is_none()
                };
                if !found.iter().all(is_open) {
                    return Err(DrainRefusal::WrongState);
                }
                nodes.extend(found.into_iter().filter(|_| is_source));
            }
        }
        if self.drains.active_count() >= DRAIN_JOBS_MAX {
            return Err(DrainRefusal::TooMany);
        }
        let segments = nodes.iter().map(|(_, segment)| (*segment, None)).collect();
        for (node, _) in nodes {
            begin(cx, node, &job);
        }
        let status = DrainStatus::Created;
        let reused = BTreeSet::new();
        self.drains.jobs.insert(job.id, Job { job, status, updated: cx.now, segments, reused });
        Ok(())
    }

    /// Cancels a drain job: its segments take new objects again. Objects that were moved stay where they are.
    pub fn cancel_drain(&mut self, now: Tick, id: JobId) -> Result<(), DrainRefusal> {
        let cx = &mut self.objects.cx;
        cx.now = cx.now.max(now);
        self.drains.settle_all(cx);
        let status = self.drains.jobs.get(&id).ok_or(DrainRefusal::NoJob)?.status;
        if !status.is_active() {
            return Err(DrainRefusal::WrongState);
        }
        self.drains.set_status(id, DrainStatus::Cancelled, cx.now);
        self.drains.stop(cx, id);
        Ok(())
    }

    /// How far a drain job is, if it is known.
    pub fn drain_stat(&mut self, now: Tick, id: JobId) -> Option<DrainStat> {
        let cx = &mut self.objects.cx;
        cx.now = cx.now.max(now);
        self.drains.settle(cx, id);
        let job = self.drains.jobs.get(&id)?;
        let sum = |count: fn(&DrainReport) -> u64| job.segments.values().flatten().map(count).sum();
        Some(DrainStat {
            job: job.job.clone(),
            status: job.status,
            updated: job.updated,
            succeeded: sum(|it| it.succeeded),
            failed: sum(|it| it.failed),
            blocked: sum(|it| it.blocked),
            active: sum(|it| it.active),
            bytes: sum(|it| it.bytes),
        })
    }

    /// Whether a segment is being drained (`false`) or is drained (`true`).
    #[must_use]
    pub fn drain_phase(&self, segment: SegmentId) -> Option<bool> {
        self.drains.phase(segment)
    }
}

/// The members with memory that have a name and can be used.
fn memories(cx: &Context, name: &str) -> Vec<(NodeIndex, SegmentId)> {
    let found = cx.members.iter().filter(|(_, it)| it.info.name == name && !it.is_disk());
    let usable = found.filter(|(_, it)| it.standing == Standing::Ready);
    usable.map(|(node, it)| (node, it.info.segment)).collect()
}

/// Sends a member a job that it must begin.
fn begin(cx: &mut Context, node: NodeIndex, job: &DrainJob) {
    send(cx, node, &Drain { job: job.clone(), stop: false });
    if let Some(member) = cx.members.get_mut(node) {
        // The member says so itself a moment later.
        (member.usage.capacity, member.usage.free, member.free) = (0, 0, 0);
    }
}

/// Sends a member its job. A member without a connection receives it when it reports.
fn send(cx: &mut Context, node: NodeIndex, drain: &Drain) {
    let Some(conn) = cx.members.get(node).and_then(|it| it.conn) else { return };
    let id = cx.next_id();
    cx.effects.push_back(Effect::Ask(conn, id, MasterToMember::Drain(drain.clone())));
}
