//! One round: clients call, a fault begins and ends, everything recovers, and every key is verified.

use std::time::Duration;

use rustix::process::Signal;
use tiffin_client::{ConnectOptions, Deadline, Demotion, PolicyChange, ResolveOptions};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::caller::Caller;
use super::clients::{ClientProcess, Records};
use super::cluster::Cluster;
use super::fault::{Fault, OnClient};
use super::record::{Answer, Call, Class, KeyId, NODES, Recorded, now};
use super::worker::{CALL_TIME, Worker};
use crate::console::Failure;
use crate::torture::{Program, Rng};

/// The round of keys that are kept over the whole run.
pub(super) const KEPT: u64 = 0xffff;
/// Number of keys of each class that clients use in a round.
const KEYS: u64 = 4;
/// Keys of a round that are stored before the fault and deleted during it.
const VICTIMS: std::ops::Range<u64> = 201..207;
/// Keys that are put and deleted until that succeeds everywhere.
const PROBES: std::ops::Range<u64> = 240..243;
/// Number of kept keys of each class.
const KEPT_KEYS: u64 = 6;
/// Calls of each client before the fault.
const CALLS_BEFORE: u64 = 15;
/// Time limit for progress of the clients and for the recovery.
const PHASE_TIME_MAX: Duration = Duration::from_secs(120);
/// Interval of attempts while the store recovers.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// Length of the values that the run itself stores.
const VALUE_BYTES: usize = 20 << 10;

/// When the memory of a node, and perhaps its disk, was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossEvent {
    pub(super) at: u64,
    node: usize,
    with_disk: bool,
}

impl LossEvent {
    /// Whether an object of this key may have been lost by it.
    pub(super) fn concerns(&self, key: KeyId) -> bool {
        match key.class() {
            // Only values with fewer than two copies; these may be on any node.
            Class::Pair => true,
            Class::Disk => self.with_disk && key.node() == self.node,
            Class::Single | Class::Plain | Class::Sample => key.node() == self.node,
        }
    }
}

/// What clients do in each round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of client processes.
    pub(super) clients: u64,
    /// Number of calls that end during the fault, and after it.
    pub(super) calls: u64,
    /// Minimum duration of the fault.
    pub(super) hold: Duration,
    /// See [`Worker::conditional`].
    pub(super) conditional: bool,
    /// See [`Worker::mutant`].
    pub(super) mutant: bool,
}

/// Everything that a run needs.
pub(super) struct Run {
    pub(super) cluster: Cluster,
    pub(super) program: Program,
    pub(super) records: Records,
    pub(super) namespace: String,
    pub(super) seed: u64,
    load: Load,
    pub(super) rng: Rng,
    pub(super) losses: Vec<LossEvent>,
    /// Times in which a master without its state folder did not know its nodes.
    pub(super) guesses: Vec<(u64, u64)>,
    /// Clients of the run itself, near and far.
    callers: Vec<Caller>,
    /// Number of values that the run itself has stored.
    values: u64,
}

/// The end of a round.
pub(super) struct Ended {
    /// `None` if it did not recover in time.
    pub(super) recovery: Option<Duration>,
}

impl Run {
    /// A run on a cluster.
    pub(super) async fn new(
        cluster: Cluster,
        program: Program,
        (namespace, token): (String, String),
        seed: u64,
        load: Load,
    ) -> Result<Self, Failure> {
        let mut callers = Vec::new();
        for shared_memory in [true, false] {
            let options = ConnectOptions {
                token: token.clone(),
                namespace: namespace.clone(),
                label: "the chaos run".to_owned(),
                shared_memory,
                ..ConnectOptions::new(cluster.address.to_string())
            };
            let connected = Caller::connect(options, CALL_TIME).await;
            callers.push(connected.map_err(|error| crate::store_client::explain(&error))?);
        }
        Ok(Self {
            cluster,
            program,
            records: Records::default(),
            namespace,
            seed,
            load,
            rng: Rng::new(seed),
            losses: Vec::new(),
            guesses: Vec::new(),
            callers,
            values: 0,
        })
    }

    /// Runs one round.
    pub(super) async fn round(&mut self, round: u64, fault: Fault) -> Result<Ended, Failure> {
        self.prepare(round).await?;
        let mut clients = self.start_clients(round).await?;
        self.records.wait_for_calls(self.ended() + self.load.clients * CALLS_BEFORE, PHASE_TIME_MAX).await?;
        let node = fault.node(1 + self.rng.below(NODES.len() as u64 - 1) as usize);
        let keeps_memory = self.cluster.keeps_memory(node);
        let began = now();
        self.note_loss(fault, node, keeps_memory);
        let chosen = self.rng.below(self.load.clients) as usize;
        match fault.on_client() {
            Some(OnClient::Kill) => {
                let client = clients.remove(chosen);
                let client = client.kill_and_restart(&self.program, &self.records).await?;
                clients.insert(chosen, client);
            }
            Some(OnClient::Stop) => {
                let client = clients.get(chosen);
                self.records.set_stopped(client.map(ClientProcess::name));
                client.into_iter().for_each(|it| it.signal(Signal::STOP));
            }
            None => fault.begin(&mut self.cluster, node).await?,
        }
        let (target, held) = (self.ended() + self.load.calls, Instant::now() + self.load.hold);
        let victims = VICTIMS.flat_map(|index| KeyId::CLASSES.map(|class| KeyId::new(round, class, index)));
        self.call_all(victims.map(|key| (key, Call::Delete)).collect()).await?;
        self.call_all(self.kept().into_iter().map(|key| (key, Call::Get)).collect()).await?;
        self.records.wait_for_calls(target, PHASE_TIME_MAX).await?;
        sleep_until(held).await;
        self.note_loss(fault, node, keeps_memory);
        match fault.on_client() {
            Some(_) => clients.iter().for_each(|it| it.signal(Signal::CONT)),
            None => fault.end(&mut self.cluster, node).await?,
        }
        let healed = Instant::now();
        if fault == Fault::NodeDiskDeleted {
            self.forget_disk(node, healed + PHASE_TIME_MAX).await;
        }
        let recovered = self.recover(round, healed).await?;
        if fault.forgets_roster() {
            self.guesses.push((began, now()));
        }
        self.records.wait_for_calls(self.ended() + self.load.calls, PHASE_TIME_MAX).await?;
        for client in clients {
            client.stop().await?;
        }
        self.records.set_stopped(None);
        if recovered.is_some() {
            self.verify(round).await?;
        }
        Ok(Ended { recovery: recovered })
    }

    fn ended(&self) -> u64 {
        self.records.ended().0
    }

    /// A node that keeps its memory loses nothing when it is killed.
    fn note_loss(&mut self, fault: Fault, node: usize, keeps_memory: bool) {
        if fault.kills_node() && !keeps_memory {
            self.losses.push(LossEvent { at: now(), node, with_disk: fault == Fault::NodeDiskDeleted });
        }
    }

    /// The keys that are kept over the whole run.
    fn kept(&self) -> Vec<KeyId> {
        let keys = [Class::Pair, Class::Disk].into_iter();
        keys.flat_map(|class| (0..KEPT_KEYS).map(move |index| KeyId::new(KEPT, class, index))).collect()
    }

    /// A new value.
    fn value(&mut self) -> u64 {
        self.values += 1;
        0xff << 56 | self.values
    }

    /// Performs calls at the same time, every second one as from another host, and records them.
    async fn call_all(&mut self, calls: Vec<(KeyId, Call)>) -> Result<Vec<Answer>, Failure> {
        let mut tasks = JoinSet::new();
        for (at, (key, what)) in calls.iter().copied().enumerate() {
            let Some(caller) = self.callers.get(at % self.callers.len().max(1)) else { continue };
            let mut caller = caller.another();
            tasks.spawn(async move {
                let begin = now();
                let answer = caller.call(key, what, VALUE_BYTES).await;
                (at, begin, now(), answer)
            });
        }
        let mut answers = vec![Answer::Nothing("not called".to_owned()); calls.len()];
        while let Some(ended) = tasks.join_next().await {
            let (at, begin, end, answer) = ended.map_err(|error| Failure::new("internal", error))?;
            let answer = answer?;
            if let (Some((key, what)), Some(place)) = (calls.get(at), answers.get_mut(at)) {
                let client = format!("run {}", at % self.callers.len().max(1));
                let end = Some((end, answer.clone()));
                self.records.add_call(*key, Recorded { client, begin, what: *what, end });
                *place = answer;
            }
        }
        Ok(answers)
    }

    /// Repeats calls until each has the wanted answer. Returns whether all had in time.
    async fn until(
        &mut self,
        mut calls: Vec<(KeyId, Call)>,
        is_enough: impl Fn(KeyId, &Answer) -> bool,
        end: Instant,
    ) -> Result<bool, Failure> {
        loop {
            for (_, call) in &mut calls {
                if let Call::Put { value } = call {
                    *value = self.value();
                }
            }
            let answers = self.call_all(calls.clone()).await?;
            let mut answers = answers.iter();
            calls.retain(|(key, _)| !answers.next().is_some_and(|it| is_enough(*key, it)));
            if calls.is_empty() || Instant::now() > end {
                return Ok(calls.is_empty());
            }
            sleep(RETRY_EVERY).await;
        }
    }

    /// Makes sure that every kept object has two copies or a durable one, and stores the victims.
    async fn prepare(&mut self, round: u64) -> Result<(), Failure> {
        let end = Instant::now() + PHASE_TIME_MAX;
        // Policies are in the state folder, which a fault may have deleted.
        let through = PolicyChange::NONE.demotion(Some(Demotion::WriteThrough));
        if let Some(caller) = self.callers.first() {
            let set = caller.client.set_policy(through, Deadline::after(PHASE_TIME_MAX)).await;
            set.map_err(|error| crate::store_client::explain(&error))?;
        }
        let put = |key| (key, Call::Put { value: 0 });
        let weak = self.weak(self.kept()).await?;
        let mut is_done = self.until(weak.into_iter().map(put).collect(), is_safe, end).await?;
        let victims = VICTIMS.flat_map(|index| KeyId::CLASSES.map(|class| KeyId::new(round, class, index)));
        is_done &= self.until(victims.map(put).collect(), is_safe, end).await?;
        while !self.weak(self.kept()).await?.is_empty() {
            is_done &= Instant::now() < end;
            if !is_done {
                break;
            }
            sleep(RETRY_EVERY).await;
        }
        match is_done {
            true => Ok(()),
            false => Err(Failure::new("chaos", "the store did not accept objects before the fault")
                .hint("see the logs in the folder; give the nodes more `--memory`")),
        }
    }

    /// Those of the keys that one node could lose.
    async fn weak(&mut self, keys: Vec<KeyId>) -> Result<Vec<KeyId>, Failure> {
        let Some(caller) = self.callers.first() else { return Ok(keys) };
        let names = keys.iter().map(|it| it.key()).collect::<Result<Vec<_>, _>>()?;
        let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
        let found = caller.client.resolve(&names, options, Deadline::after(CALL_TIME)).await;
        let is_weak = |(key, found): &(KeyId, Result<Option<tiffin_client::Info>, _>)| {
            let Ok(Some(info)) = found else { return true };
            match key.class() {
                // A disk is on the host of its node, so it does not count as another copy.
                Class::Pair => info.replicas.iter().filter(|it| it.node.beside.is_none()).count() < 2,
                _ => !info.replicas.iter().any(|it| it.node.beside.is_some()),
            }
        };
        Ok(keys.into_iter().zip(found).filter(is_weak).map(|it| it.0).collect())
    }

    async fn start_clients(&mut self, round: u64) -> Result<Vec<ClientProcess>, Failure> {
        let ready = self.records.ended().1;
        let mut clients = Vec::new();
        for index in 0..self.load.clients {
            // Every second client is as on another host, behind a network of its own.
            let network = self.cluster.client_networks.get(index as usize / 2);
            let network = network.filter(|_| index % 2 == 1);
            let worker = Worker {
                index,
                restarts: 0,
                round,
                keys: KEYS,
                seed: self.seed,
                address: network.map_or(self.cluster.address, |it| it.address).to_string(),
                namespace: self.namespace.clone(),
                far: network.is_some(),
                conditional: self.load.conditional,
                mutant: self.load.mutant,
            };
            clients.push(ClientProcess::start(&self.program, worker, &self.records)?);
        }
        self.records.wait_for_clients(ready + self.load.clients, PHASE_TIME_MAX).await?;
        Ok(clients)
    }

    /// Declares the deleted disk of a node lost, as an operator would: nothing else proves that it is.
    async fn forget_disk(&self, node: usize, end: Instant) {
        let name = NODES.get(node).map_or_else(String::new, |name| format!("{name} disk 1"));
        let Some(caller) = self.callers.first() else { return };
        // Without this the store does not recover, which is reported.
        while caller.client.forget_node(&name, Deadline::after(CALL_TIME)).await.is_err() {
            if Instant::now() > end {
                return;
            }
            sleep(RETRY_EVERY).await;
        }
    }

    /// Waits until every server and every key answers. Returns how long that took, or `None` if it did not.
    async fn recover(&mut self, round: u64, healed: Instant) -> Result<Option<Duration>, Failure> {
        let end = healed + PHASE_TIME_MAX;
        while !self.all_members_answer().await {
            if Instant::now() > end {
                return Ok(None);
            }
            sleep(RETRY_EVERY).await;
        }
        let is_known = |_, answer: &Answer| matches!(answer, Answer::Value(_) | Answer::Absent);
        let kept = self.kept().into_iter().map(|key| (key, Call::Get)).collect();
        let mut is_done = self.until(kept, is_known, end).await?;
        let probes = || {
            let singles = PROBES.map(|index| KeyId::new(round, Class::Single, index));
            singles.chain([KeyId::new(round, Class::Pair, PROBES.start)])
        };
        let puts = probes().map(|key| (key, Call::Put { value: 0 })).collect();
        is_done &= self.until(puts, is_safe, end).await?;
        let deletes = probes().map(|key| (key, Call::Delete)).collect();
        is_done &= self.until(deletes, |_, it| matches!(it, Answer::Deleted(_)), end).await?;
        Ok(is_done.then(|| healed.elapsed()))
    }

    /// Whether the master has all nodes and disks, and waits for none.
    async fn all_members_answer(&self) -> bool {
        let Some(caller) = self.callers.first() else { return false };
        let Ok(stat) = caller.client.stat(Deadline::after(CALL_TIME)).await else { return false };
        let alive = || stat.nodes.iter().filter(|it| it.alive);
        let is_there = |name: &&str| {
            let memory = alive().find(|it| it.info.beside.is_none() && it.info.name == **name);
            let segment = memory.map(|it| it.info.segment);
            segment.is_some() && alive().any(|it| it.info.beside == segment)
        };
        stat.unreported.is_empty() && NODES.iter().all(is_there)
    }

    /// Reads every key, near and far, then deletes those of the round: no error is left.
    async fn verify(&mut self, round: u64) -> Result<(), Failure> {
        let end = Instant::now() + PHASE_TIME_MAX;
        let keys = self.records.keys();
        let is_known = |_, answer: &Answer| matches!(answer, Answer::Value(_) | Answer::Absent);
        let mut is_done = true;
        for _ in 0..2 {
            let gets = keys.iter().map(|key| (*key, Call::Get)).collect();
            is_done &= self.until(gets, is_known, end).await?;
            // Each key is read by the other client, too.
            self.callers.rotate_left(1);
        }
        let deletes = keys.iter().filter(|it| it.round() == round).map(|key| (*key, Call::Delete)).collect();
        is_done &= self.until(deletes, |_, it| matches!(it, Answer::Deleted(_)), end).await?;
        let gets = keys.iter().map(|key| (*key, Call::Get)).collect();
        is_done &= self.until(gets, is_known, end).await?;
        match is_done {
            true => Ok(()),
            false => Err(Failure::new("chaos", "a key does not answer after the recovery")
                .hint("see the logs in the folder")),
        }
    }
}

/// Whether the object is as safe as asked.
fn is_safe(key: KeyId, answer: &Answer) -> bool {
    match answer {
        Answer::Stored { copies, is_confirmed, .. } => {
            *is_confirmed && (key.class() != Class::Pair || *copies >= 2)
        }
        _ => false,
    }
}
