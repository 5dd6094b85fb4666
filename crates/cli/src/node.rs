//! `tiffin node`: a process that provides memory to a store.

use std::time::Duration;

use serde_json::json;
use tiffin_client::ConnectOptions;
use tiffin_server::NodeServer;
use tiffin_server::config::{ClientArgs, NodeArgs, NodeConfig};
use tiffin_server::node::JoinError;
use tiffin_types::ClusterId;
use tiffin_types::units::Count;
use tokio::time::Instant;

use crate::console::{Console, Failure, STATUS_OK};
use crate::serve;
use crate::show;
use crate::signals::Signals;
use crate::store_client::StoreClient;
use crate::{Context, unless_interrupted};

/// Time limit for the first registration at the master. Later, a node waits for its master without limit.
const JOIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Starts a storage node: it provides memory to the store of a master.
///
/// When the master has registered it, it prints its address; with `--json`, in one line. Ctrl-C stops it. A
/// node with a name or a fixed port keeps its memory in a pool (`--pool`), and adopts it when it is started
/// again, even after a crash. Without a pool, objects whose only copy it has are lost then: it prints how
/// many, and names those that were pinned or not consumed yet.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Node {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    args: NodeArgs,
}

/// Commands about nodes.
#[derive(Debug, clap::Subcommand)]
enum Command {
    Forget(Forget),
    Admit(Admit),
}

/// Declares a node or disk lost that is not connected and will not come back.
///
/// The pinned objects and unconsumed samples that only it has are gone then, and nothing waits for it any
/// more. If it comes back nevertheless, it starts empty.
#[derive(Debug, clap::Args)]
struct Forget {
    /// Its name, as `tiffin stat` shows it. If several have it, the segment of the one to forget, in
    /// hexadecimal.
    name: String,

    #[command(flatten)]
    client: ClientArgs,
}

/// Lets the members of another cluster join this one, with their objects.
///
/// A master refuses nodes and disks of another cluster. They belong to this one if the master has lost its
/// state, and a new node had joined and stored objects before the others came back.
#[derive(Debug, clap::Args)]
struct Admit {
    /// The id of the other cluster, as the refusal shows it.
    #[arg(value_parser = cluster_id)]
    cluster: ClusterId,

    #[command(flatten)]
    client: ClientArgs,
}

fn cluster_id(text: &str) -> Result<ClusterId, String> {
    let id = u64::from_str_radix(text, 16).ok().and_then(|it| ClusterId(it).known());
    id.ok_or_else(|| "expected a hexadecimal number that is not zero".to_owned())
}

async fn admit(admit: Admit, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let store = StoreClient::connect(admit.client, context).await?;
    let admitted = store.client.admit_cluster(admit.cluster, store.deadline()).await;
    admitted.map_err(|error| store.explain(&error))?;
    if console.json {
        console.value(&json!({ "cluster": admit.cluster.to_string() }))?;
    } else {
        console.text(format!("members of cluster {} may join", admit.cluster))?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

async fn forget(forget: Forget, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let store = StoreClient::connect(forget.client, context).await?;
    let forgotten = store.client.forget_node(&forget.name, store.deadline()).await;
    let forgotten = forgotten.map_err(|error| {
        store
            .explain(&error)
            .hint("`tiffin stat` shows the names of nodes and disks, and which are connected")
    })?;
    if console.json {
        let (members, objects) = (forgotten.members, forgotten.objects);
        console.value(&json!({ "name": forget.name, "members": members, "objects": objects }))?;
    } else {
        let objects = Count(forgotten.objects, "object");
        console.text(format!("`{}` is forgotten, and {objects} with it", forget.name))?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// Runs until a signal arrives.
pub(crate) async fn run(
    node: Node,
    context: &Context,
    console: &mut Console,
    mut signals: Signals,
) -> Result<i32, Failure> {
    match node.command {
        Some(Command::Forget(it)) => {
            return unless_interrupted(forget(it, context, console), signals).await;
        }
        Some(Command::Admit(it)) => return unless_interrupted(admit(it, context, console), signals).await,
        None => {}
    }
    let config = node.args.resolve(&context.common, &context.file);
    let config: NodeConfig = config.map_err(|error| Failure::new("config", error))?;
    tiffin_server::host::raise_file_limit();
    let master = config.master.to_string();
    let (token, tls) = (config.token.clone(), config.tls.clone());
    let options = ConnectOptions { token, tls, ..ConnectOptions::new(&*master) };
    let Some(server) = serve::start(start(config), &mut signals, console).await? else {
        return Ok(STATUS_OK);
    };
    serve::serve_drains(&server, options.clone());
    // An adopted pool keeps its size, whatever was asked for.
    let memory = server.memory().geometry().data_bytes;
    let info = server.info();
    let pool = server.memory().pool().map(|it| it.folder().display().to_string());
    if console.json {
        let (name, tcp, data) = (&info.name, &info.tcp, &info.data);
        let ready = json!({
            "name": name, "tcp": tcp, "data": data, "memory": memory, "master": master, "pool": pool,
        });
        console.value(&ready)?;
    } else {
        let (name, size) = (&info.name, show::size(memory));
        console
            .text(format!("node `{name}` is up at {}, with {size} for the master at {master}", info.tcp))?;
    }
    let losses = async |server: &NodeServer| serve::losses(server, &options).await;
    if let Some(pool) = pool.filter(|_| server.keeps_memory()) {
        console.note(format!("the memory stays in `{pool}` when the node ends; the next start adopts it"));
    }
    let stop = |server: NodeServer, deadline| server.leave(deadline);
    Ok(serve::until_stopped(server, losses, stop, &mut signals, console).await)
}

async fn start(config: NodeConfig) -> Result<NodeServer, Failure> {
    let server = NodeServer::start(config).await.map_err(|error| serve::explain(&error))?;
    let joined = server.joined(Instant::now() + JOIN_TIME_MAX).await;
    // A node that is refused leaves its pool and its disks as they are.
    joined.map_err(|error| {
        let code = match error {
            JoinError::Refused { .. } => "refused",
            JoinError::Timeout { .. } => "unreachable",
        };
        Failure::new(code, error).hint("use the master's token, and a unique name")
    })?;
    Ok(server)
}
