//! The last events that an operator may want to know of.
//!
//! **Invariant:** at most [`ENTRIES_MAX`] entries of at most [`TEXT_BYTES_MAX`] bytes of text are kept, and
//! the oldest leave first. An event that repeats within [`REPEAT_TIME`] is counted in its first entry.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum number of entries.
pub(crate) const ENTRIES_MAX: usize = 1024;
/// The maximum length of a subject and of a text, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 512;
/// The time within which an event counts as a repetition.
const REPEAT_TIME: Duration = Duration::from_secs(10);
/// The number of newest entries in which a repetition is looked for.
const REPEAT_ENTRIES: usize = 16;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MasterStarted,
    MasterLeads,
    MasterStandsBy,
    EpochRaised,
    MemberReady,
    MemberSilent,
    MemberAway,
    MemberAbsent,
    MemberLost,
    MemberLeft,
    MemberDiscarded,
    ReportsAwaited,
    AllReported,
    PutGivenUp,
    QuotaReached,
    StoreFull,
    StreamFull,
    EvictedUnread,
    Expired,
    DemotionRefused,
    SlowRequest,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 21] = [
        Self::MasterStarted,
        Self::MasterLeads,
        Self::MasterStandsBy,
        Self::EpochRaised,
        Self::MemberReady,
        Self::MemberSilent,
        Self::MemberAway,
        Self::MemberAbsent,
        Self::MemberLost,
        Self::MemberLeft,
        Self::MemberDiscarded,
        Self::ReportsAwaited,
        Self::AllReported,
        Self::PutGivenUp,
        Self::QuotaReached,
        Self::StoreFull,
        Self::StreamFull,
        Self::EvictedUnread,
        Self::Expired,
        Self::DemotionRefused,
        Self::SlowRequest,
    ];

    /// Its name in metrics and pages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MasterStarted => "master_started",
            Self::MasterLeads => "master_leads",
            Self::MasterStandsBy => "master_stands_by",
            Self::EpochRaised => "epoch_raised",
            Self::MemberReady => "member_ready",
            Self::MemberSilent => "member_silent",
            Self::MemberAway => "member_away",
            Self::MemberAbsent => "member_absent",
            Self::MemberLost => "member_lost",
            Self::MemberLeft => "member_left",
            Self::MemberDiscarded => "member_discarded",
            Self::ReportsAwaited => "reports_awaited",
            Self::AllReported => "all_reported",
            Self::PutGivenUp => "put_given_up",
            Self::QuotaReached => "quota_reached",
            Self::StoreFull => "store_full",
            Self::StreamFull => "stream_full",
            Self::EvictedUnread => "evicted_unread",
            Self::Expired => "expired",
            Self::DemotionRefused => "demotion_refused",
            Self::SlowRequest => "slow_request",
        }
    }

    /// `info`, `warning` or `error`.
    pub(crate) fn level(self) -> &'static str {
        match self {
            Self::MasterStarted
            | Self::MasterLeads
            | Self::MasterStandsBy
            | Self::MemberReady
            | Self::MemberLeft
            | Self::Expired
            | Self::ReportsAwaited
            | Self::AllReported => "info",
            Self::MemberSilent
            | Self::MemberAway
            | Self::MemberDiscarded
            | Self::EpochRaised
            | Self::QuotaReached
            | Self::StoreFull
            | Self::StreamFull
            | Self::EvictedUnread
            | Self::DemotionRefused
            | Self::SlowRequest => "warning",
            Self::MemberAbsent | Self::MemberLost | Self::PutGivenUp => "error",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its number. Numbers only grow.
    pub(crate) number: u64,
    /// When it happened first, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) kind: Kind,
    /// The member, namespace or operation that it is about.
    pub(crate) subject: String,
    pub(crate) text: String,
    /// How often it happened.
    pub(crate) count: u64,
}

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    // Held for one entry or one copy, never across an await.
    entries: Mutex<Entries>,
    counts: [AtomicU64; Kind::ALL.len()],
}

#[derive(Debug, Default)]
struct Entries {
    last: u64,
    ring: VecDeque<Entry>,
}

impl Journal {
    /// Adds an event that happens now.
    pub(crate) fn add(&self, kind: Kind, subject: &str, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.add_at(now, kind, subject, text);
    }

    fn add_at(&self, now: Duration, kind: Kind, subject: &str, text: &str) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let (subject, text) = (cut(subject), cut(text));
        let mut entries = self.lock();
        let since = at_ms.saturating_sub(REPEAT_TIME.as_millis() as u64);
        let is_same = |it: &&mut Entry| it.kind == kind && it.subject == subject && it.at_ms > since;
        if let Some(first) = entries.ring.iter_mut().rev().take(REPEAT_ENTRIES).find(is_same)
            && first.text == text
        {
            first.count += 1;
            return;
        }
        entries.last += 1;
        let number = entries.last;
        if entries.ring.len() >= ENTRIES_MAX {
            entries.ring.pop_front();
        }
        let (subject, text) = (subject.to_owned(), text.to_owned());
        entries.ring.push_back(Entry { number, at_ms, kind, subject, text, count: 1 });
    }

    /// The events with a greater number, oldest first, at most `limit`.
    pub(crate) fn after(&self, number: u64, limit: usize) -> Vec<Entry> {
        let entries = self.lock();
        let first = entries.ring.partition_point(|it| it.number <= number);
        entries.ring.range(first..).take(limit).cloned().collect()
    }

    /// The newest events, oldest first, at most `limit`.
    pub(crate) fn newest(&self, limit: usize) -> Vec<Entry> {
        let entries = self.lock();
        entries.ring.range(entries.ring.len().saturating_sub(limit)..).cloned().collect()
    }

    /// How often each kind has happened, if it has.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = Kind::ALL.into_iter().zip(&self.counts);
        let counts = counts.map(|(kind, count)| (kind.name(), count.load(Ordering::Relaxed)));
        counts.filter(|it| it.1 > 0).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // A panic leaves no partial state.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The beginning of a text, within the limit.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn oldest_entries_leave_beyond_the_limit() {
        let journal = Journal::default();
        for number in 0..ENTRIES_MAX {
            journal.add_at(seconds(1), Kind::MemberReady, &number.to_string(), "ready");
        }
        assert_eq!(journal.after(0, usize::MAX).len(), ENTRIES_MAX);
        assert_eq!(journal.after(0, usize::MAX)[0].subject, "0");
        journal.add_at(seconds(1), Kind::MemberLost, "one more", "lost");
        let all = journal.after(0, usize::MAX);
        assert_eq!((all.len(), all[0].subject.as_str()), (ENTRIES_MAX, "1"));
        let last = journal.after(ENTRIES_MAX as u64, usize::MAX);
        assert_eq!((last.len(), last[0].subject.as_str()), (1, "one more"));
        assert_eq!(journal.newest(2)[0].subject, (ENTRIES_MAX - 1).to_string());
        assert_eq!(journal.newest(usize::MAX).len(), ENTRIES_MAX);
        let page = journal.after(1, 2);
        assert_eq!((page.len(), page[1].number), (2, 3), "the oldest come first");
        assert_eq!(journal.counts(), [("member_ready", ENTRIES_MAX as u64), ("member_lost", 1)]);
    }

    #[test]
    fn repetition_is_counted_in_its_first_entry() {
        let journal = Journal::default();
        for (at, subject) in [(100, "a"), (101, "b"), (109, "a"), (110, "a"), (111, "a")] {
            journal.add_at(seconds(at), Kind::QuotaReached, subject, "full");
        }
        let seen: Vec<_> = journal.after(0, 9).into_iter().map(|it| (it.subject, it.count)).collect();
        assert_eq!(seen, [("a".to_owned(), 2), ("b".to_owned(), 1), ("a".to_owned(), 2)]);
        assert_eq!(journal.counts(), [("quota_reached", 5)]);
    }

    #[test]
    fn texts_are_cut_at_their_limit() {
        let journal = Journal::default();
        let (fits, long) = ("x".repeat(TEXT_BYTES_MAX), "é".repeat(TEXT_BYTES_MAX));
        journal.add(Kind::StoreFull, &fits, &long);
        let entry = &journal.after(0, 1)[0];
        assert_eq!((entry.subject.len(), entry.text.len()), (TEXT_BYTES_MAX, TEXT_BYTES_MAX));
    }

    #[test]
    fn kinds_are_in_the_order_of_their_counters() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "{kind:?}");
        }
    }
}
