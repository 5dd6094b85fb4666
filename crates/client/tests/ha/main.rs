//! Several masters under load, with real etcd: every process is killed, stopped and continued in turn.
//!
//! `make test-ha` runs it. It is not a part of `make test`, because it needs etcd and a minute or two. It
//! prints a table of faults, and fails if an acknowledged object is lost or wrong, if a deleted one comes
//! back, if a replaced leader answers about a name, or if a failover takes longer than [`FAILOVER_MAX`].

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "all of it is a test"
)]

mod load;
mod processes;
mod users;

use std::time::Duration;

use load::Load;
use processes::{Cluster, Protection, Signal};
use tiffin_client::{Client, Deadline, Put, ResolveOptions};
use tiffin_types::Key;
use tokio::time::{Instant, sleep};

/// How long no put may be acknowledged after the leader was killed or stopped.
const FAILOVER_MAX: Duration = Duration::from_secs(3);
/// Puts that must be acknowledged after a fault before the next one.
const ACKS_AFTER: usize = 50;
/// How often the state of the cluster is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long anything may take before the test gives up.
const TIME_MAX: Duration = Duration::from_secs(60);

struct Row {
    fault: String,
    gap: Duration,
    errors: usize,
    is_failover: bool,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|it| !it.starts_with('-'));
    let Some(program) = arguments.next() else {
        println!("skipped: give the path of `tiffin`, as `make test-ha` does");
        return;
    };
    let rounds = arguments.next().map_or(1, |it| it.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        run(&program, rounds).await;
        run_protected(&program).await;
    });
}

async fn run(program: &str, rounds: usize) {
    let mut cluster = Cluster::start(program, Protection::None).await;
    let load = Load::start(&cluster).await;
    load.acks_after(Instant::now(), ACKS_AFTER).await;
    let mut rows = Vec::new();
    for _ in 0..rounds {
        rows.push(leader_fault(&mut cluster, &load, "leader killed (SIGKILL)", Signal::KILL).await);
        rows.push(stopped_leader(&mut cluster, &load).await);
        rows.push(leader_fault(&mut cluster, &load, "leader asked to end (SIGTERM)", Signal::TERM).await);
        for member in 0..cluster.etcd.len() {
            rows.push(etcd_killed(&mut cluster, &load, member).await);
            rows.push(etcd_stopped(&mut cluster, &load, member).await);
        }
        rows.push(standby_killed(&mut cluster, &load).await);
    }
    let verdict = load.stop_and_verify(&cluster).await;
    println!("\n| fault | longest time without an acknowledged put | failed calls |\n|---|---|---|");
    for row in &rows {
        println!("| {} | {:.2} s | {} |", row.fault, row.gap.as_secs_f64(), row.errors);
    }
    println!("\n{}", verdict.summary());
    verdict.check();
    let slow: Vec<_> = rows.iter().filter(|it| it.is_failover && it.gap > FAILOVER_MAX).collect();
    assert!(slow.is_empty(), "a failover took longer than {FAILOVER_MAX:?}: {}", slow[0].fault);
    println!("test several_masters_lose_nothing ... ok");
}

/// The same with an etcd that requires TLS, certificates and users: a failover, and a member of etcd that has
/// forgotten the tokens of users.
async fn run_protected(program: &str) {
    let mut cluster = Cluster::start(program, Protection::Full).await;
    cluster.distrust(program).await;
    let load = Load::start(&cluster).await;
    load.acks_after(Instant::now(), ACKS_AFTER).await;
    let mut rows =
        vec![leader_fault(&mut cluster, &load, "protected etcd: leader killed", Signal::KILL).await];
    for member in 0..cluster.etcd.len() {
        rows.push(etcd_killed(&mut cluster, &load, member).await);
    }
    let verdict = load.stop_and_verify(&cluster).await;
    for row in &rows {
        println!("| {} | {:.2} s | {} |", row.fault, row.gap.as_secs_f64(), row.errors);
    }
    println!("\n{}", verdict.summary());
    verdict.check();
    println!("test masters_reach_etcd_with_tls_and_a_password ... ok");
}

/// Waits until another epoch leads and puts are acknowledged again.
async fn row_after(cluster: &Cluster, load: &Load, fault: &str, at: Instant, epoch: u64) -> Row {
    let errors = load.errors();
    let deadline = Instant::now() + TIME_MAX;
    while cluster.leader().await.is_none_or(|(_, now)| now <= epoch) {
        assert!(Instant::now() < deadline, "no other master leads");
        sleep(LOOK).await;
    }
    let gap = load.acks_after(at, ACKS_AFTER).await;
    // Acknowledgements from before the failover do not end the wait for it.
    let gap = gap.max(load.acks_after(Instant::now(), ACKS_AFTER).await);
    let errors = load.errors() - errors;
    Row { fault: fault.to_owned(), gap, errors, is_failover: true }
}

async fn leader_fault(cluster: &mut Cluster, load: &Load, fault: &str, signal: Signal) -> Row {
    let (leader, epoch) = cluster.await_leader().await;
    let at = Instant::now();
    cluster.masters[leader].signal(signal);
    let row = row_after(cluster, load, fault, at, epoch).await;
    cluster.restart_master(leader);
    row
}

/// The leader is stopped. While it is, another one leads and names an object; a question that waits in the
/// socket of the old leader must not be answered from what that one knows.
async fn stopped_leader(cluster: &mut Cluster, load: &Load) -> Row {
    let (leader, epoch) = cluster.await_leader().await;
    let key = Key::new(b"fence").unwrap();
    let soon = || Deadline::after(Duration::from_secs(20));
    let direct = Client::connect(cluster.options(cluster.masters[leader].address())).await.unwrap();
    let other = Client::connect(cluster.options(cluster.list())).await.unwrap();
    drop(other.delete(std::slice::from_ref(&key), Default::default(), soon()).await);
    let before = direct.exists(std::slice::from_ref(&key), ResolveOptions::default(), soon()).await;
    assert!(matches!(before.as_slice(), [Ok(false)]), "{before:?}");
    let at = Instant::now();
    cluster.masters[leader].signal(Signal::STOP);
    let mut row = row_after(cluster, load, "leader stopped (SIGSTOP), then continued", at, epoch).await;
    let stored = other.put(&[Put::new(key.clone(), b"new")], soon()).await;
    assert!(stored[0].is_ok(), "{stored:?}");
    let keys = [key];
    let asked = direct.exists(&keys, ResolveOptions::default(), soon());
    let continued = async {
        // The question is in the old leader's socket by then; if it is not, it comes later, which is as well.
        sleep(LOOK * 5).await;
        cluster.masters[leader].signal(Signal::CONT);
    };
    let (answer, ()) = tokio::join!(asked, continued);
    assert!(!matches!(answer.as_slice(), [Ok(false)]), "the old leader answered: {answer:?}");
    row.gap = row.gap.max(load.acks_after(Instant::now(), ACKS_AFTER).await);
    row
}

async fn etcd_killed(cluster: &mut Cluster, load: &Load, member: usize) -> Row {
    let (at, errors) = (Instant::now(), load.errors());
    cluster.etcd[member].signal(Signal::KILL);
    sleep(Duration::from_secs(2)).await;
    let gap = load.acks_after(at, ACKS_AFTER).await;
    cluster.restart_etcd(member);
    let gap = gap.max(load.acks_after(Instant::now(), ACKS_AFTER).await);
    let fault = format!("etcd member {member} killed and restarted");
    Row { fault, gap, errors: load.errors() - errors, is_failover: false }
}

async fn etcd_stopped(cluster: &mut Cluster, load: &Load, member: usize) -> Row {
    let (at, errors) = (Instant::now(), load.errors());
    cluster.etcd[member].signal(Signal::STOP);
    sleep(Duration::from_secs(2)).await;
    let gap = load.acks_after(at, ACKS_AFTER).await;
    cluster.etcd[member].signal(Signal::CONT);
    let gap = gap.max(load.acks_after(Instant::now(), ACKS_AFTER).await);
    let fault = format!("etcd member {member} stopped and continued");
    Row { fault, gap, errors: load.errors() - errors, is_failover: false }
}

async fn standby_killed(cluster: &mut Cluster, load: &Load) -> Row {
    let (leader, _) = cluster.await_leader().await;
    let standby = (leader + 1) % cluster.masters.len();
    let (at, errors) = (Instant::now(), load.errors());
    cluster.masters[standby].signal(Signal::KILL);
    let gap = load.acks_after(at, ACKS_AFTER).await;
    cluster.restart_master(standby);
    Row { fault: "standby killed".to_owned(), gap, errors: load.errors() - errors, is_failover: true }
}
