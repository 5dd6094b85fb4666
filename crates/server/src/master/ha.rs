//! One of several masters: its part in the election, and the durable state in etcd.
//!
//! `core::election` decides; here is the I/O. The revision of the leader's record is this master's *token*.
//! Every write to etcd is a transaction that requires the token, so a master that has been replaced cannot
//! change anything there, whatever it believes (`docs/notes/ha.md`).
//!
//! **Invariant:** a state of one epoch is only written with the token of that epoch, and an older state never
//! replaces a newer one: a transaction whose answer was lost may be applied late, so each requires the head
//! that the master knows, and each attempt has a generation of its own.

use std::convert::Infallible;
use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tiffin_core::election::{Election, ElectionConfig, Observed, StepDown, WriteOutcome, Wrote, after_write};
use tiffin_core::master::{Event, Saved};
use tiffin_etcd::leader::{Keys, Leader};
use tiffin_etcd::{Etcd, EtcdError, LeaseId, Op, Outcome, Txn};
use tiffin_proto::{STATE_BYTES_MAX, decode_state, encode_state};
use tiffin_types::mutant::Mutant;
use tokio::time::{Instant, sleep, timeout};

use super::{Shared, state};
use crate::config::HaConfig;
use crate::host;

/// How often a leader renews its lease, and a standby checks the leader.
pub(super) const BEAT: Duration = Duration::from_millis(250);
/// How long etcd keeps the record of a leader that is gone. Standbys do not wait for its end.
const LEASE_S: u64 = 5;
/// How long one exchange with etcd may take.
const CALL_TIME_MAX: Duration = Duration::from_secs(2);
/// How long reading or writing one chunk of the state may take.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a state that cannot be read is left alone.
const LOAD_PAUSE: Duration = Duration::from_secs(1);
/// The longest value that is written at once. etcd's limit for a request is 1.5 MiB.
const CHUNK_BYTES_MAX: usize = 512 << 10;

/// A time in which this master leads.
#[derive(Clone, Copy, Debug)]
struct Term {
    token: i64,
    epoch: u64,
    lease: LeaseId,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ha {
    etcd: Etcd,
    keys: Keys,
    addresses: Vec<String>,
    election: Mutex<Election>,
    term: Mutex<Option<Term>>,
    /// Held while the state is written.
    written: tokio::sync::Mutex<Written>,
    /// The leader that was seen last.
    leader: Mutex<Option<Leader>>,
    /// The id of this master's last record.
    id: Mutex<String>,
    won: AtomicU64,
    lost: AtomicU64,
    /// The kind of the failure, if etcd could not be used the last time.
    failing: Mutex<Option<Discriminant<EtcdError>>>,
}

/// Which chunks are the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    generation: u64,
    chunks: usize,
    bytes: usize,
}

/// What is known of the state in etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    /// The last generation that was used, also by an attempt that failed.
    generation: u64,
    /// The revision of the head; 0 if there is none.
    head: i64,
}

/// What a standby sees.
struct Seen {
    observed: Observed,
    epoch: u64,
    epoch_revision: i64,
}

/// For pages and metrics.
#[derive(Clone, Debug)]
pub(crate) struct HaStat {
    /// The leader that is known, this master included.
    pub(crate) leader: Option<Leader>,
    /// How often this master became the leader.
    pub(crate) won: u64,
    /// How often it stepped down.
    pub(crate) lost: u64,
}

impl Ha {
    pub(super) fn new(config: &HaConfig, addresses: Vec<String>) -> Result<Self, EtcdError> {
        Ok(Self {
            etcd: Etcd::open(&config.etcd, &config.access)?,
            keys: Keys::new(&config.cluster)?,
            addresses,
            election: Mutex::new(Election::new(ElectionConfig::default())),
            term: Mutex::new(None),
            written: tokio::sync::Mutex::default(),
            leader: Mutex::new(None),
            id: Mutex::default(),
            won: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            failing: Mutex::default(),
        })
    }

    pub(super) fn stat(&self) -> HaStat {
        let (won, lost) = (self.won.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed));
        HaStat { leader: lock(&self.leader).clone(), won, lost }
    }

    /// Whether etcd could not be used the last time.
    pub(super) fn is_failing(&self) -> bool {
        lock(&self.failing).is_some()
    }

    /// Whether this master still leads in that epoch, asked now. An error if etcd does not answer.
    pub(super) async fn confirm(&self, epoch: u64) -> Result<bool, EtcdError> {
        let Some(term) = self.term_of(epoch) else { return Ok(false) };
        let txn = Txn { compare: vec![(self.keys.leader(), term.token)], ..Txn::default() };
        Ok(self.noted(self.etcd.txn(&txn, soon()).await)?.succeeded)
    }

    /// Writes a state; `false` if this master does not lead in its epoch.
    pub(super) async fn write(&self, saved: &Saved) -> Result<bool, String> {
        let bytes = encode_state(saved).map_err(|it| it.to_string())?;
        let mut written = self.written.lock().await;
        loop {
            let Some(term) = self.term_of(saved.epoch) else { return Ok(false) };
            written.generation += 1;
            let plan = write_plan(&self.keys, term.token, *written, &bytes, CHUNK_BYTES_MAX);
            let mut last = None;
            for txn in plan {
                let outcome = self.etcd.txn(&txn, Instant::now() + CHUNK_TIME_MAX).await;
                let outcome = self.noted(outcome).map_err(|it| it.to_string())?;
                let is_done = outcome.succeeded;
                last = Some(outcome);
                if !is_done {
                    break;
                }
            }
            match last.map(|it| after_write(&write_outcome(&it), term.token, Mutant::None)) {
                Some(Wrote::Done(head)) => {
                    written.head = head;
                    return Ok(true);
                }
                Some(Wrote::Again(head)) => written.head = head,
                Some(Wrote::Replaced) | None => return Ok(false),
            }
        }
    }

    /// Takes a greater epoch than `floor` and its own without a new campaign; `None` if this master does not
    /// lead in its own epoch any more. It may lead in a later one, with what another leader has saved.
    pub(super) async fn advance(&self, own: u64, floor: u64) -> Result<Option<u64>, EtcdError> {
        let Some(term) = self.term_of(own) else { return Ok(None) };
        let epoch = state::next_epoch(floor.max(own));
        let leader = self.record(epoch);
        let txn = self.take(&leader, term.lease, vec![(self.keys.leader(), term.token)]);
        let outcome = self.noted(self.etcd.txn(&txn, soon()).await)?;
        let mut current = lock(&self.term);
        // If it has stepped down meanwhile, it finds its own record when it looks, and campaigns again.
        if !outcome.succeeded || current.is_none_or(|it| it.token != term.token) {
            return Ok(None);
        }
        *current = Some(Term { token: outcome.revision, epoch, lease: term.lease });
        *lock(&self.leader) = Some(leader);
        Ok(Some(epoch))
    }

    /// Lets a standby take over at once.
    pub(super) async fn resign(&self) {
        let Some(term) = lock(&self.term).take() else { return };
        if let Err(error) = self.etcd.revoke(term.lease, soon()).await {
            tracing::warn!(%error, "the standbys notice only later that this master is gone");
        }
    }

    /// Whether this master leads in that epoch, as far as it knows.
    pub(super) fn leads_in(&self, epoch: u64) -> bool {
        self.term_of(epoch).is_some()
    }

    fn term_of(&self, epoch: u64) -> Option<Term> {
        lock(&self.term).filter(|it| it.epoch == epoch)
    }

    /// The record of this master. Each has another id, so that a lost answer to a campaign is recognized.
    fn record(&self, epoch: u64) -> Leader {
        let id = format!("{:016x}-{}", host::draw().unwrap_or(epoch), std::process::id());
        lock(&self.id).clone_from(&id);
        Leader { epoch, id, addresses: self.addresses.clone() }
    }

    fn take(&self, leader: &Leader, lease: LeaseId, compare: Vec<(String, i64)>) -> Txn {
        let epoch = leader.epoch.to_string().into_bytes();
        Txn {
            compare,
            success: vec![
                Op::Put(self.keys.leader(), leader.encode(), lease),
                Op::Put(self.keys.epoch(), epoch, LeaseId(0)),
            ],
            failure: Vec::new(),
        }
    }

    fn enter(&self, term: Term, leader: Leader) {
        *lock(&self.term) = Some(term);
        *lock(&self.leader) = Some(leader);
    }

    /// Reads what a standby decides by.
    async fn observe(&self) -> Result<Seen, EtcdError> {
        let success = vec![Op::Get(self.keys.leader()), Op::Get(self.keys.epoch())];
        let read = self.etcd.txn(&Txn { success, ..Txn::default() }, soon()).await;
        let mut gets = self.noted(read)?.gets.into_iter();
        let mut first = || gets.next().unwrap_or_default().into_iter().next();
        let (record, epoch) = (first(), first());
        let leader = record.as_ref().and_then(|it| Leader::decode(&it.value));
        let lease_s = match &record {
            Some(it) => self.noted(self.etcd.time_to_live(it.lease, soon()).await)?,
            None => None,
        };
        // A standby has no record: its own one is of a campaign whose answer was lost.
        let is_own = leader.as_ref().is_some_and(|it| it.id == *lock(&self.id));
        let last = leader.as_ref().map_or(0, |it| it.epoch);
        *lock(&self.leader) = leader;
        let text = |it: &tiffin_etcd::KeyValue| String::from_utf8_lossy(&it.value).parse().ok();
        Ok(Seen {
            observed: Observed {
                token: record.map_or(0, |it| it.revision),
                lease_s: lease_s.map(|it| (it.left_s, it.granted_s)),
                is_own,
            },
            epoch: epoch.as_ref().and_then(text).unwrap_or(0).max(last),
            epoch_revision: epoch.map_or(0, |it| it.revision),
        })
    }

    /// Tries to become the leader, if the record is still as it was seen.
    async fn campaign(&self, token: i64, seen: &Seen) -> Result<Option<Term>, EtcdError> {
        let lease = self.noted(self.etcd.grant(LEASE_S, soon()).await)?;
        let epoch = state::next_epoch(seen.epoch);
        let leader = self.record(epoch);
        let compare = vec![(self.keys.leader(), token), (self.keys.epoch(), seen.epoch_revision)];
        let outcome = self.noted(self.etcd.txn(&self.take(&leader, lease, compare), soon()).await)?;
        if !outcome.succeeded {
            // Another master was faster, or the answer to the first try was lost: the next look tells.
            let _ends_by_itself = self.etcd.revoke(lease, soon()).await;
            return Ok(None);
        }
        let term = Term { token: outcome.revision, epoch, lease };
        self.enter(term, leader);
        Ok(Some(term))
    }

    /// Reads the durable state. No other master can change it while this one leads.
    async fn load(&self) -> Result<Saved, String> {
        let mut written = self.written.lock().await;
        let Some((head, revision)) = self.read(self.keys.head()).await? else {
            *written = Written { head: 0, ..*written };
            return Ok(Saved::default());
        };
        let head: Head = serde_json::from_slice(&head).map_err(|it| format!("the key `head`: {it}"))?;
        if head.bytes > STATE_BYTES_MAX || head.chunks > STATE_BYTES_MAX.div_ceil(CHUNK_BYTES_MAX) {
            return Err(format!("the key `head` names {} bytes in {} chunks", head.bytes, head.chunks));
        }
        let mut bytes = Vec::with_capacity(head.bytes);
        for index in 0..head.chunks {
            let chunk = self.read(self.keys.chunk(head.generation, index)).await?;
            bytes.extend(chunk.ok_or_else(|| format!("chunk {index} is missing"))?.0);
        }
        if bytes.len() != head.bytes {
            return Err(format!("it has {} bytes, and should have {}", bytes.len(), head.bytes));
        }
        *written = Written { generation: written.generation.max(head.generation), head: revision };
        decode_state(&bytes).map_err(|it| it.to_string())
    }

    /// A value and its revision.
    async fn read(&self, key: String) -> Result<Option<(Vec<u8>, i64)>, String> {
        let txn = Txn { success: vec![Op::Get(key)], ..Txn::default() };
        let read = self.etcd.txn(&txn, Instant::now() + CHUNK_TIME_MAX).await;
        let outcome = self.noted(read).map_err(|it| it.to_string())?;
        Ok(outcome.gets.into_iter().flatten().next().map(|it| (it.value, it.revision)))
    }

    fn noted<T>(&self, result: Result<T, EtcdError>) -> Result<T, EtcdError> {
        let kind = result.as_ref().err().map(discriminant);
        let was = std::mem::replace(&mut *lock(&self.failing), kind);
        match &result {
            Err(error) if was != kind => tracing::warn!(%error, "etcd cannot be used"),
            Ok(_) if was.is_some() => tracing::info!("etcd answers again"),
            _ => {}
        }
        result
    }
}

/// What the last transaction of a write says.
fn write_outcome(outcome: &Outcome) -> WriteOutcome {
    let revision = |at: usize| outcome.gets.get(at).and_then(|it| it.first()).map_or(0, |it| it.revision);
    let (leader, head) = (revision(0), revision(1));
    WriteOutcome { succeeded: outcome.succeeded, revision: outcome.revision, leader, head }
}

/// The transactions that write a state: all chunks, then the head, which makes them count and deletes those
/// of earlier generations. A state of one chunk is one transaction.
fn write_plan(keys: &Keys, token: i64, to: Written, bytes: &[u8], chunk_max: usize) -> Vec<Txn> {
    let generation = to.generation;
    let chunks: Vec<_> = bytes.chunks(chunk_max).collect();
    let head = Head { generation, chunks: chunks.len(), bytes: bytes.len() };
    let puts = chunks.iter().enumerate();
    let puts = puts.map(|(index, it)| Op::Put(keys.chunk(generation, index), it.to_vec(), LeaseId(0)));
    let mut puts: Vec<_> = puts.collect();
    let mut end = vec![
        Op::Put(keys.head(), serde_json::to_vec(&head).unwrap_or_default(), LeaseId(0)),
        Op::DeleteRange(keys.states(), keys.chunks(generation)),
    ];
    if puts.len() == 1 {
        end.append(&mut puts);
    }
    let conditional = |success| Txn {
        compare: vec![(keys.leader(), token), (keys.head(), to.head)],
        success,
        failure: vec![Op::Get(keys.leader()), Op::Get(keys.head())],
    };
    puts.into_iter().map(|it| vec![it]).chain([end]).map(conditional).collect()
}

/// Stands by, leads, and steps down, for ever.
pub(super) async fn run(shared: Arc<Shared>, ha: Arc<Ha>) {
    loop {
        let epoch = stand_by(&shared, &ha).await;
        let why = tokio::select! {
            why = lead(&shared, &ha) => why,
            never = load_quotas(&shared) => match never {},
        };
        *lock(&ha.term) = None;
        // The last known leader was this master.
        *lock(&ha.leader) = None;
        shared.follow();
        ha.lost.fetch_add(1, Ordering::Relaxed);
        match why {
            StepDown::Superseded => tracing::warn!(epoch, "another master leads; this one stands by"),
            StepDown::Unreachable => {
                let hint = "the warning before this one says why";
                tracing::error!(epoch, hint, "etcd could not be used for too long; this master stands by");
            }
        }
    }
}

/// Sets the quotas of tenants that a file says, and then waits.
async fn load_quotas(shared: &Shared) -> Infallible {
    if let Err(error) = shared.load_quotas().await {
        tracing::error!(%error, "the quotas of tenants are those of the last leader");
    }
    std::future::pending().await
}

/// Keeps the lease while the state is read: a large one takes longer than standbys wait for a beat.
async fn keep_lease(ha: &Ha, lease: LeaseId) -> Infallible {
    loop {
        // If etcd does not answer, the state cannot be read either.
        let _failed = ha.etcd.keep_alive(lease, soon()).await;
        sleep(BEAT).await;
    }
}

/// Waits until this master leads; its epoch.
async fn stand_by(shared: &Shared, ha: &Ha) -> u64 {
    tracing::info!(cluster = ha.keys.cluster(), etcd = ha.etcd.endpoints(), "the master stands by");
    loop {
        let began = shared.now();
        // A failure was logged, and says nothing about the leader.
        let seen = ha.observe().await;
        let campaign = seen.as_ref().ok().and_then(|it| lock(&ha.election).campaigns(&it.observed));
        if let (Ok(seen), Some(token)) = (seen, campaign)
            && let Ok(Some(term)) = ha.campaign(token, &seen).await
        {
            let loaded = tokio::select! {
                loaded = ha.load() => loaded,
                never = keep_lease(ha, term.lease) => match never {},
            };
            match loaded {
                Ok(saved) => {
                    lock(&ha.election).won(began, term.token);
                    ha.won.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(epoch = term.epoch, "the master leads");
                    shared.lead(Saved { epoch: term.epoch, ..saved });
                    return term.epoch;
                }
                Err(error) => {
                    let hint = "restore etcd from a snapshot, or delete the keys of this cluster: then the \
                                master starts without quotas and policies";
                    tracing::error!(error, hint, "the state in etcd cannot be read");
                    ha.resign().await;
                    sleep(LOAD_PAUSE).await;
                }
            }
        }
        sleep(BEAT).await;
    }
}

/// Keeps the lease until this master must step down; why.
async fn lead(shared: &Shared, ha: &Ha) -> StepDown {
    loop {
        let began = shared.now();
        let Some(term) = *lock(&ha.term) else { return StepDown::Superseded };
        let deadline = Instant::now() + CALL_TIME_MAX;
        let beat = async { tokio::join!(ha.etcd.keep_alive(term.lease, deadline), ha.confirm(term.epoch)) };
        // Waits not much longer than a beat for the answer to this one, so that the time is looked at.
        if let Ok((_, Ok(has_token))) = timeout(BEAT * 4, beat).await {
            // The epoch may have advanced meanwhile, with another token.
            let is_current = ha.term_of(term.epoch).is_some();
            if let Some(why) = lock(&ha.election).confirmed(began, has_token || !is_current) {
                return why;
            }
        }
        if let Some(why) = lock(&ha.election).handle_timeout(shared.now()) {
            return why;
        }
        sleep(BEAT).await;
    }
}

/// Confirms leadership for the answers that wait for it.
pub(super) async fn run_confirms(shared: Arc<Shared>, ha: Arc<Ha>) {
    loop {
        shared.unconfirmed.notified().await;
        let Some((epoch, round)) = shared.take_unconfirmed() else { continue };
        loop {
            match ha.confirm(epoch).await {
                Ok(true) => shared.handle_in(epoch, Event::Confirmed(round)),
                // The answers are never sent: the core is about to be replaced.
                Ok(false) => {}
                Err(_) if ha.term_of(epoch).is_some() => {
                    sleep(BEAT).await;
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
    }
}

fn soon() -> Instant {
    Instant::now() + CALL_TIME_MAX
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change is one assignment, so nothing can be half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tiffin_etcd::KeyValue;
    use tiffin_types::Key;
    use tiffin_types::message::{List, Pattern, Reason, Reply, Resolve};

    use super::*;
    use crate::MasterConfig;
    use crate::master::state::Store;

    fn sizes(len: usize) -> Vec<usize> {
        let keys = Keys::new("c").unwrap();
        let plan = write_plan(&keys, 9, Written { generation: 5, head: 3 }, &vec![7; len], 100);
        for txn in &plan {
            let compare = [(keys.leader(), 9), (keys.head(), 3)];
            assert_eq!(txn.compare, compare, "every write needs leadership and the head that is known");
        }
        // The head is changed last, and the old chunks go with it.
        let (last, before) = plan.split_last().unwrap();
        assert!(last.success.contains(&Op::DeleteRange(keys.states(), keys.chunks(5))));
        assert!(matches!(&last.success[0], Op::Put(key, ..) if *key == keys.head()));
        let bytes = |txn: &Txn| match txn.success.as_slice() {
            [Op::Put(key, value, _)] => {
                assert!(key.starts_with(&keys.chunks(5)));
                value.len()
            }
            other => panic!("{other:?}"),
        };
        before.iter().map(bytes).collect()
    }

    /// A standby whose etcd never answers.
    fn standby() -> (Shared, Arc<Ha>) {
        let (etcd, access) = ("127.0.0.1:1".to_owned(), Default::default());
        let config = HaConfig { etcd, access, cluster: "c".to_owned(), advertise: None };
        let ha = Arc::new(Ha::new(&config, Vec::new()).unwrap());
        let config = MasterConfig { ha: Some(config), ..MasterConfig::default() };
        let store = Some(Store::Etcd(Arc::clone(&ha)));
        (Shared::new(&config, store, Saved::default()).unwrap(), ha)
    }

    #[test]
    fn late_restart_does_not_make_a_standby_lead() {
        let (shared, ha) = standby();
        let restart = || shared.replace_core(Saved { epoch: 9, ..Saved::default() });
        let leads = || (shared.epoch(), shared.lock().leads);
        *lock(&ha.term) = Some(Term { token: 1, epoch: 9, lease: LeaseId(1) });
        restart();
        assert_eq!(leads(), (9, true));
        // The state was written before this master stepped down.
        *lock(&ha.term) = None;
        shared.follow();
        restart();
        assert_eq!(leads(), (0, false));
    }

    #[tokio::test]
    async fn pages_answer_only_with_confirmed_leadership() {
        let (shared, ha) = standby();
        *lock(&ha.term) = Some(Term { token: 1, epoch: 9, lease: LeaseId(1) });
        shared.replace_core(Saved { epoch: 9, ..Saved::default() });
        let reason = |reply| match reply {
            Reply::Refused(refusal) => refusal.reason,
            other => panic!("{other:?}"),
        };
        let resolve = Resolve { keys: vec![Key::new(b"k").unwrap()], ..Resolve::default() };
        let (pattern, pinned_by) = (Pattern::All, None);
        let list = List { pattern, pinned_by, cursor: 0, limit: 1, report_wait_ms: 0 };
        let both = async || [shared.resolve("n", &resolve).await, shared.list("n", &list).await].map(reason);
        assert_eq!(both().await, [Reason::Unavailable; 2], "etcd does not say that it still leads");
        // Another master has taken over, and this one has not stepped down yet.
        *lock(&ha.term) = None;
        assert_eq!(both().await, [Reason::Standby; 2]);
    }

    #[tokio::test]
    async fn epoch_of_another_term_is_not_advanced() {
        let (_, ha) = standby();
        assert_eq!(ha.advance(5, 7).await.unwrap(), None, "it does not lead");
        *lock(&ha.term) = Some(Term { token: 1, epoch: 9, lease: LeaseId(1) });
        // It led in epoch 5, then another master did, and then this one again.
        assert_eq!(ha.advance(5, 7).await.unwrap(), None);
        assert!(ha.advance(9, 7).await.is_err(), "there is no etcd");
        assert!(ha.leads_in(9) && !ha.leads_in(5));
    }

    #[test]
    fn outcome_of_a_write_has_the_revisions_of_leader_and_head() {
        let get = |revision| vec![KeyValue { revision, ..KeyValue::default() }];
        let outcome = |gets| write_outcome(&Outcome { succeeded: false, revision: 20, gets });
        let failed = WriteOutcome { succeeded: false, revision: 20, leader: 10, head: 12 };
        assert_eq!(outcome(vec![get(10), get(12)]), failed);
        assert_eq!(outcome(vec![Vec::new(), get(12)]), WriteOutcome { leader: 0, ..failed });
        assert_eq!(outcome(Vec::new()), WriteOutcome { leader: 0, head: 0, ..failed });
    }

    #[test]
    fn state_is_cut_into_chunks_with_the_head_last() {
        assert_eq!(sizes(0), [0_usize; 0]);
        assert_eq!(sizes(100), [0_usize; 0], "one chunk goes with the head");
        assert_eq!(sizes(101), [100, 1]);
        assert_eq!(sizes(300), [100, 100, 100]);
    }

    #[test]
    fn chunks_fit_into_a_request_of_etcd() {
        // A put of one chunk, with the head and the names of keys, in base64 or not.
        const { assert!(CHUNK_BYTES_MAX * 4 / 3 + (64 << 10) < 3 << 19) };
    }
}
