//! `tiffin stat`: describes the store, or one object.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};
use tiffin_client::{Error, Held, Holder, Info, NodeStat, ResolveOptions, Route, Stat as Cluster, Usage};
use tiffin_server::config::{self, ClientArgs};
use tiffin_types::Key;
use tiffin_types::message::NamedStream;
use tiffin_types::units::Count;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK, STATUS_USAGE};
use crate::show::{self, Table};
use crate::store_client::{StoreClient, key};

/// Clears a terminal and moves to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// The time of `--watch` without a value.
const WATCH_PAUSE: &str = "2s";
/// The minimum of `--watch`.
const WATCH_PAUSE_MIN: Duration = Duration::from_millis(100);

/// Describes the store: its nodes and their usage, how they are reached from here, and its namespaces. With a
/// key: that object, and the nodes with its copies.
#[derive(Debug, clap::Args)]
pub(crate) struct Stat {
    /// The object to describe.
    key: Option<OsString>,

    /// Describes it again after this time, until it is interrupted: for example `--watch 10s`. Without a
    /// time: every two seconds.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = WATCH_PAUSE)]
    watch: Option<OsString>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Asks the master, and connects to every live node.
pub(crate) async fn run(stat: Stat, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let (key, watch) = key_and_pause(stat.key, stat.watch)?;
    let key = key.map(|text| self::key(&text)).transpose()?;
    let store = StoreClient::connect(stat.client, context).await?;
    // A terminal is cleared when the next answer is there, not before.
    let clears = watch.is_some() && !console.json && std::io::stdout().is_terminal();
    let clear = if clears { CLEAR } else { "" };
    let mut is_first = true;
    loop {
        let described = match &key {
            Some(key) => object(key, &store, clear, console).await,
            None => cluster(&store, clear, console).await,
        };
        match described {
            // A master that restarts comes back.
            Err(failure) if watch.is_some() && !is_first && failure.may_pass() => {
                console.fail(&failure);
            }
            described => described?,
        }
        is_first = false;
        console.flush()?;
        let Some(pause) = watch else { break };
        tokio::time::sleep(pause.max(WATCH_PAUSE_MIN)).await;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// The key and the pause of `--watch`. What follows `--watch` is a time, or else the key.
fn key_and_pause(
    key: Option<OsString>,
    watch: Option<OsString>,
) -> Result<(Option<OsString>, Option<Duration>), Failure> {
    let Some(given) = watch else { return Ok((key, None)) };
    let text = given.to_string_lossy().into_owned();
    // Like `watch -n 1`: a number without a unit is one of seconds.
    let seconds = text.parse::<f64>().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    match seconds.map_or_else(|| config::duration(&text), Ok) {
        Ok(pause) => Ok((key, Some(pause))),
        Err(_) if key.is_none() && !looks_like_time(&text) => {
            Ok((Some(given), config::duration(WATCH_PAUSE).ok()))
        }
        Err(error) => {
            let failure = Failure::new("usage", format!("--watch: {error}"));
            Err(Failure { status: STATUS_USAGE, ..failure })
        }
    }
}

/// Whether a text that is not a valid time was probably meant as one.
fn looks_like_time(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit() || first == '-' || first == '.')
}

async fn object(key: &Key, store: &StoreClient, clear: &str, console: &mut Console) -> Result<(), Failure> {
    let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
    let found = store.client.resolve(std::slice::from_ref(key), options, store.deadline()).await.pop();
    let info = match found {
        Some(Ok(Some(info))) => info,
        Some(Err(error)) => return Err(store.explain(&error)),
        _ => return Err(store.explain(&Error::NotFound { key: key.clone() })),
    };
    let nodes: Vec<&str> = info.replicas.iter().map(|replica| replica.node.name.as_str()).collect();
    if console.json {
        let mut object = show::keyed(key.as_bytes());
        object.insert("bytes".into(), info.len.into());
        object.insert("generation".into(), info.generation.to_string().into());
        object.insert("nodes".into(), json!(nodes));
        object.insert("pinned".into(), info.hard_pin.into());
        object.insert("soft_pinned".into(), info.soft_pin.into());
        object.insert("leased".into(), info.leased.into());
        if let Some(left) = info.expires_in {
            object.insert("expires_in_ms".into(), json!(left.as_millis() as u64));
        }
        return console.value(&Value::from(object));
    }
    console.bytes(clear.as_bytes())?;
    console.text(format!("key         {}", show::key(key.as_bytes())))?;
    let exact = if info.len < 1024 { String::new() } else { format!(" ({} bytes)", info.len) };
    console.text(format!("size        {}{exact}", show::size(info.len)))?;
    console.text(format!("generation  {}", info.generation))?;
    console.text(format!("copies      {}", nodes.join(", ")))?;
    console.text(format!("kept        {}", kept(&info)))?;
    match info.expires_in {
        Some(Duration::ZERO) => console.text("expires     with its last pin: its TTL is over"),
        Some(left) => {
            console.text(format!("expires     in {}", tiffin_server::why::time(left.as_millis() as u64)))
        }
        None => Ok(()),
    }
}

fn kept(info: &Info) -> &'static str {
    match (info.hard_pin, info.soft_pin, info.leased) {
        (true, ..) => "pinned: never evicted",
        (_, true, _) => "soft-pinned: evicted after all others",
        (.., true) => "leased: a reader keeps it from eviction for a while",
        _ => "until space is needed",
    }
}

async fn cluster(store: &StoreClient, clear: &str, console: &mut Console) -> Result<(), Failure> {
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    let alive: Vec<_> = stat.nodes.iter().filter(|node| node.alive).map(|node| node.info.clone()).collect();
    let routes = store.client.meet(&alive, store.deadline()).await;
    if console.json {
        return console.value(&as_json(&stat, &routes));
    }
    console.bytes(clear.as_bytes())?;
    console.text(format!(
        "master      epoch {}, {}, {} evicted ({})\n",
        stat.epoch,
        Count(stat.clients, "client"),
        Count(stat.evicted_objects, "object"),
        show::size(stat.evicted_bytes)
    ))?;
    if !stat.unreported.is_empty() {
        let members = stat.unreported.join(", ");
        console.text(format!("waiting     for {members} to report; answers that depend on them wait\n"))?;
    }
    if let Some(line) = evictions(&stat) {
        console.text(line)?;
    }
    if stat.expired.objects > 0 || stat.expiring > 0 {
        let (expired, bytes) = (stat.expired.objects, show::size(stat.expired.bytes));
        console.text(format!("expired     {expired} ({bytes}); {} more have a TTL\n", stat.expiring))?;
    }
    if stat.undecided > 0 {
        console.text(format!(
            "undecided   {}: {} on members that have not reported. Their memory stays reserved until those \
             return, have been away for `--away`, or are forgotten (`tiffin node forget`)\n",
            Count(stat.undecided, "commit"),
            if stat.undecided == 1 { "it has a copy" } else { "they have copies" }
        ))?;
    }
    if let Some(line) = copies(&stat) {
        console.text(line)?;
    }
    let columns = ["node", "capacity", "free", "reserved", "in use", "in view", "metadata", "objects"];
    let mut nodes = Table::new(&columns);
    let mut ways = Table::new(&["node", "reached from here"]).left();
    for node in &stat.nodes {
        let usage = node.usage;
        let Usage { capacity, free, granted, committed, held, metadata, .. } = usage;
        let sizes = [capacity, free, granted, committed, held, metadata].map(show::size);
        let name = show::key(node.info.name.as_bytes());
        nodes.row([name.clone()].into_iter().chain(sizes).chain([usage.objects.to_string()]));
        ways.row([name, way(node, &routes)]);
    }
    console.text(format!("{nodes}\n\n{ways}\n"))?;
    console.text(namespaces(&stat))?;
    if stat.nodes.iter().any(|node| node.info.beside.is_some()) {
        console.text(format!("\n{}", disks(&stat)))?;
    }
    for table in [streams(&stat), owners(&stat), holders(&stat), viewers(&stat)] {
        if !table.is_empty() {
            console.text(format!("\n{table}"))?;
        }
    }
    Ok(())
}

/// Evicted objects by cause, if any.
fn evictions(stat: &Cluster) -> Option<String> {
    let causes = stat.evictions.by_cause().into_iter().filter(|(_, it)| it.objects > 0);
    let causes: Vec<_> =
        causes.map(|(cause, it)| format!("{cause} {} ({})", it.objects, show::size(it.bytes))).collect();
    (!causes.is_empty()).then(|| {
        let unread = stat.evictions.unread;
        format!("evicted     {}; unread, without a disk copy {unread}\n", causes.join(", "))
    })
}

/// Streams, with the group that is furthest behind.
fn streams(stat: &Cluster) -> Table {
    let head = ["stream", "namespace", "state", "samples", "in flight", "lag", "leased", "consumers"];
    let mut table = Table::new(&head);
    for it in &stat.streams {
        let (state, groups) = (&it.stat, &it.stat.groups);
        let word = match &state.end {
            Some(end) if end.failure.is_some() => "failed",
            Some(_) => "ended",
            None if state.is_shut => "puts wait",
            None => "open",
        };
        table.row([
            show::key(it.name.as_bytes()),
            show::key(it.namespace.as_bytes()),
            word.to_owned(),
            state.refs.to_string(),
            show::size(state.bytes + state.granted_bytes),
            groups.iter().map(|it| it.ready).max().unwrap_or_default().to_string(),
            groups.iter().map(|it| it.out).sum::<u64>().to_string(),
            groups.iter().map(|it| it.consumers).sum::<u64>().to_string(),
        ]);
    }
    table
}

/// Objects that have fewer copies than they should, and what was done about that.
fn copies(stat: &Cluster) -> Option<String> {
    let copies = stat.copies;
    (copies.short + copies.running + copies.made > 0).then(|| {
        format!(
            "copies      {} of fewer copies than wanted, {} being copied, {} made again ({})\n",
            Count(copies.short, "object"),
            copies.running,
            copies.made,
            show::size(copies.made_bytes)
        )
    })
}

/// Counts of disk operations, if any.
fn disks(stat: &Cluster) -> Table {
    let mut table = Table::new(&["disks", "total"]);
    for (name, what, count) in stat.tier.named().into_iter().filter(|it| it.2 > 0) {
        let total = if name.ends_with("_bytes") { show::size(count) } else { count.to_string() };
        table.row([what.to_owned(), total]);
    }
    table
}

/// Pinned objects by owner, so that memory that is never freed can be attributed.
fn owners(stat: &Cluster) -> Table {
    let mut table = Table::new(&["pinned by", "namespace", "objects", "size"]);
    for namespace in &stat.namespaces {
        for it in &namespace.owners {
            let owner =
                if it.owner.is_empty() { "no owner".to_owned() } else { show::key(it.owner.as_bytes()) };
            let name = show::key(namespace.name.as_bytes());
            table.row([owner, name, it.objects.to_string(), show::size(it.bytes)]);
        }
    }
    table
}

/// Clients that keep objects from being freed.
fn holders(stat: &Cluster) -> Table {
    let mut table = Table::new(&["namespace", "kept", "by", "objects", "size"]);
    for namespace in &stat.namespaces {
        for it in &namespace.holders {
            let who = if it.who.is_empty() { "-".to_owned() } else { show::key(it.who.as_bytes()) };
            table.row([
                show::key(namespace.name.as_bytes()),
                held(it.held).to_owned(),
                who,
                it.objects.to_string(),
                show::size(it.bytes),
            ]);
        }
    }
    table
}

/// Clients with views of removed objects, whose memory cannot be reused.
fn viewers(stat: &Cluster) -> Table {
    let mut table = Table::new(&["node", "in view of", "objects gone", "size"]);
    for node in &stat.nodes {
        for it in &node.holders {
            let who = if it.who.is_empty() { "-".to_owned() } else { show::key(it.who.as_bytes()) };
            table.row([
                show::key(node.info.name.as_bytes()),
                who,
                it.objects.to_string(),
                show::size(it.bytes),
            ]);
        }
    }
    table
}

fn held(held: Held) -> &'static str {
    match held {
        Held::Leased => "leased",
        Held::Reserved => "reserved",
        Held::Viewed => "in view",
    }
}

fn namespaces(stat: &Cluster) -> Table {
    let head = [
        "namespace",
        "objects",
        "size",
        "used",
        "reserved",
        "quota",
        "guaranteed",
        "samples",
        "leased",
        "oldest",
        "waiting",
    ];
    let mut table = Table::new(&head);
    for it in &stat.namespaces {
        let oldest = Duration::from_secs(it.sample_age_ms / 1000);
        table.row([
            show::key(it.name.as_bytes()),
            it.objects.to_string(),
            show::size(it.bytes),
            show::size(it.used),
            show::size(it.granted),
            it.quota.map_or_else(|| "-".to_owned(), show::size),
            it.guaranteed.map_or_else(|| "-".to_owned(), show::size),
            it.samples.to_string(),
            it.samples_leased.to_string(),
            if it.samples == 0 { "-".to_owned() } else { humantime::format_duration(oldest).to_string() },
            it.waiting.to_string(),
        ]);
    }
    table
}

/// How this process reaches a node, and why not better.
fn way(node: &NodeStat, routes: &[Route]) -> String {
    let route = routes.iter().find(|route| route.segment == node.info.segment);
    let owed =
        if node.owed == 0 { String::new() } else { format!("; {} pending", Count(node.owed, "removal")) };
    match route {
        _ if !node.alive => {
            let forget = "if it will not return, run `tiffin node forget`";
            format!("not reachable: the master has no contact{owed}; {forget}")
        }
        Some(Route { way: Some(way), why: Some(why), .. }) => format!("{way} (not shared memory: {why})"),
        Some(Route { way: Some(way), why: None, .. }) => way.to_string(),
        Some(Route { way: None, why: Some(why), .. }) => format!("not reachable: {why}"),
        _ => "not tried".to_owned(),
    }
}

fn as_json(stat: &Cluster, routes: &[Route]) -> Value {
    let nodes = stat.nodes.iter().map(|node| {
        let route = routes.iter().find(|route| route.segment == node.info.segment);
        let usage = node.usage;
        json!({
            "name": node.info.name,
            "segment": node.info.segment.to_string(),
            "tcp": node.info.tcp,
            "host": node.info.host,
            "alive": node.alive,
            "keeps_memory": node.info.outlives,
            "owed": node.owed,
            "usage": {
                "capacity": usage.capacity,
                "free": usage.free,
                "reserved": usage.granted,
                "in_use": usage.committed,
                "in_view": usage.held,
                "metadata": usage.metadata,
                "objects": usage.objects,
            },
            "holders": holders_json(&node.holders),
            "way": route.and_then(|route| route.way).map(|way| way.to_string()),
            "why": route.and_then(|route| route.why.clone()),
        })
    });
    let namespaces = stat.namespaces.iter().map(|it| {
        let owners = it.owners.iter();
        let owners = owners.map(|it| json!({ "owner": it.owner, "objects": it.objects, "bytes": it.bytes }));
        json!({
            "name": it.name,
            "objects": it.objects,
            "bytes": it.bytes,
            "used": it.used,
            "reserved": it.granted,
            "quota": it.quota,
            "guaranteed": it.guaranteed,
            "samples": it.samples,
            "samples_leased": it.samples_leased,
            "sample_age_ms": it.sample_age_ms,
            "max_hold_ms": it.max_hold_ms,
            "waiting": it.waiting,
            "owners": owners.collect::<Vec<_>>(),
            "holders": holders_json(&it.holders),
        })
    });
    let tier = stat.tier.named().into_iter().map(|(name, _, count)| (name.to_owned(), count.into()));
    let copies = stat.copies.named().into_iter().map(|(name, _, count)| (name.to_owned(), count.into()));
    let evictions = stat.evictions.by_cause();
    let evictions = evictions
        .into_iter()
        .map(|(cause, it)| (cause.to_owned(), json!({ "objects": it.objects, "bytes": it.bytes })));
    json!({
        "epoch": stat.epoch,
        "clients": stat.clients,
        "evicted": { "objects": stat.evicted_objects, "bytes": stat.evicted_bytes },
        "evictions": evictions.collect::<serde_json::Map<_, _>>(),
        "evicted_unread": stat.evictions.unread,
        "expired": { "objects": stat.expired.objects, "bytes": stat.expired.bytes },
        "expiring": stat.expiring,
        "soft_pinned": stat.soft_pinned,
        "unreported": stat.unreported,
        "undecided": stat.undecided,
        "tier": tier.collect::<serde_json::Map<_, _>>(),
        "copies": copies.collect::<serde_json::Map<_, _>>(),
        "nodes": nodes.collect::<Vec<_>>(),
        "namespaces": namespaces.collect::<Vec<_>>(),
        "streams": stat.streams.iter().map(stream_json).collect::<Vec<_>>(),
    })
}

fn stream_json(it: &NamedStream) -> Value {
    let groups = it.stat.groups.iter().map(|it| {
        json!({ "group": it.group, "lag": it.ready, "leased": it.out, "consumers": it.consumers,
                "acked": it.acked, "window": it.window })
    });
    json!({
        "namespace": it.namespace,
        "name": it.name,
        "samples": it.stat.refs,
        "bytes": it.stat.bytes,
        "in_flight_bytes": it.stat.bytes + it.stat.granted_bytes,
        "blocked": it.stat.is_shut,
        "ended": it.stat.end.is_some(),
        "groups": groups.collect::<Vec<_>>(),
    })
}

fn holders_json(holders: &[Holder]) -> Vec<Value> {
    let holders = holders
        .iter()
        .map(|it| json!({ "kept": held(it.held), "by": it.who, "objects": it.objects, "bytes": it.bytes }));
    holders.collect()
}
