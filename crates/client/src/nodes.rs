//! The nodes that a client knows, and the routes to them.
//!
//! **Invariant:** a node on which this client has a view stays in the table until the view has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_rpc::{CallError, Connection};
use tiffin_session::{BackoffLimits, Views};
use tiffin_types::message::{ClientToNode, NodeInfo, Reserved};
use tiffin_types::{SegmentId, SlotRef};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::link::{InPauses, Link};
use crate::route::{self, OpenRoute, RouteContext};
use crate::running::Running;
use crate::{Deadline, Error, Route};

/// The distance of disks: greater than that of any memory.
const DISTANCE_OF_DISKS: u8 = 4;
/// How long the client does not retry a node that could not be reached.
const NODE_BACKOFF: BackoffLimits = BackoffLimits { free: 0, first_ms: 500, longest_ms: 4_000 };
/// How long a node may take to reply to a list of views.
const LIST_TIME_MAX: Duration = Duration::from_secs(2);

struct Node {
    info: NodeInfo,
    /// Objects there can be published at the master, according to its last reply.
    is_on_same_host: bool,
    link: Arc<Link<OpenRoute>>,
}

/// The views on each node on which any was requested.
type AllViews = Mutex<BTreeMap<SegmentId, Views>>;

/// The nodes that a client knows.
pub(crate) struct Nodes {
    context: RouteContext,
    runtime: Handle,
    nodes: Mutex<BTreeMap<SegmentId, Node>>,
    views: Arc<AllViews>,
}

impl Nodes {
    pub(crate) fn new(context: RouteContext, runtime: Handle) -> Self {
        Self { context, runtime, nodes: Mutex::default(), views: Arc::default() }
    }

    /// A route to a node, for requests only. It does not check whether the node's memory is still mapped: a
    /// node that has ended does not reply, and a client that wrote there has checked after its write.
    pub(crate) async fn control_route(
        &self,
        segment: SegmentId,
        deadline: Deadline,
        in_pauses: InPauses,
    ) -> Result<Arc<OpenRoute>, Error> {
        let link = self.lock().get(&segment).map(|node| Arc::clone(&node.link));
        match link.and_then(|link| link.current_if(|route| !route.connection.is_closed())) {
            Some(route) => Ok(route),
            None => self.route_if(segment, deadline, in_pauses).await,
        }
    }

    /// The route to a node, opened if necessary. Fails at once while the node is left alone.
    pub(crate) async fn route(
        &self,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Arc<OpenRoute>, Error> {
        self.route_if(segment, deadline, InPauses::Fail).await
    }

    /// The same. `in_pauses` says what to do while the node is left alone.
    pub(crate) async fn route_if(
        &self,
        segment: SegmentId,
        deadline: Deadline,
        in_pauses: InPauses,
    ) -> Result<Arc<OpenRoute>, Error> {
        let link = self.lock().get(&segment).map(|node| Arc::clone(&node.link));
        if let Some(route) = link.as_ref().and_then(|link| link.current()) {
            return Ok(route);
        }
        let Some(link) = link else {
            return Err(Error::Unreachable { what: format!("the node of segment {segment} is not known") });
        };
        let (context, views) = (self.context.clone(), Arc::clone(&self.views));
        // The addresses are those that are known when the attempt begins, after a pause.
        let info = || self.lock().get(&segment).map(|node| node.info.clone()).unwrap_or_default();
        let open = |last| {
            let info = info();
            async move {
                let route = route::open(context, info, last).await?;
                list_views(&views, segment, &route).await?;
                Ok(route)
            }
        };
        link.get(&self.runtime, deadline, in_pauses, open).await
    }

    /// The route to a node, if it is open.
    pub(crate) fn current_route(&self, segment: SegmentId) -> Option<Arc<OpenRoute>> {
        self.lock().get(&segment)?.link.current()
    }

    /// The current or last route to a node.
    pub(crate) fn last_route(&self, segment: SegmentId) -> Option<Arc<OpenRoute>> {
        self.lock().get(&segment)?.link.last()
    }

    /// Whether the node is known, and the client has not disconnected from it.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.lock().contains_key(&segment)
    }

    /// The nodes to which there is or was a route.
    pub(crate) fn visited(&self) -> Vec<SegmentId> {
        let nodes = self.lock();
        nodes.iter().filter(|(_, node)| node.link.last().is_some()).map(|(segment, _)| *segment).collect()
    }

    /// All nodes, with the routes that are open.
    pub(crate) fn open_routes(&self) -> Vec<(SegmentId, Arc<OpenRoute>)> {
        let nodes = self.lock();
        nodes.iter().filter_map(|(segment, node)| Some((*segment, node.link.current()?))).collect()
    }

    /// The name of a node, for people.
    pub(crate) fn name(&self, segment: SegmentId) -> String {
        let known = self.lock().get(&segment).map(|node| node.info.name.clone());
        known.unwrap_or_else(|| segment.to_string())
    }

    /// Adds nodes. One whose addresses have changed is reached at the new ones next time; one that has
    /// registered again is no longer left alone.
    pub(crate) fn learn(&self, infos: &[NodeInfo]) {
        let mut nodes = self.lock();
        for info in infos {
            match nodes.get_mut(&info.segment) {
                Some(node) if node.info == *info => {}
                // A late reply.
                Some(node) if (1..node.info.registration).contains(&info.registration) => {}
                Some(node) => {
                    node.info = info.clone();
                    node.link.registered(info.registration);
                }
                None => {
                    let link = Arc::new(Link::new(format!("node `{}`", info.name), NODE_BACKOFF));
                    link.registered(info.registration);
                    nodes.insert(info.segment, Node { info: info.clone(), is_on_same_host: false, link });
                }
            }
        }
    }

    /// Adds the nodes of new reservations, and notes which of them are on the master's host.
    pub(crate) fn learn_reserved(&self, reserved: &Reserved) {
        self.learn(&reserved.nodes);
        let mut nodes = self.lock();
        for info in &reserved.nodes {
            if let Some(node) = nodes.get_mut(&info.segment) {
                node.is_on_same_host = reserved.same_host.contains(&info.segment);
            }
        }
    }

    /// The nodes on which an object can be published at the master.
    pub(crate) fn same_host(&self) -> BTreeSet<SegmentId> {
        let nodes = self.lock();
        nodes.iter().filter(|(_, node)| node.is_on_same_host).map(|(segment, _)| *segment).collect()
    }

    /// Counts bytes that were sent to a node inside a request.
    pub(crate) fn count_carried(&self, bytes: u64) {
        self.context.counters.tcp.add_written(bytes);
    }

    /// Number of objects read from disks.
    pub(crate) fn disk_reads(&self) -> u64 {
        self.context.disk_reads.load(Ordering::Relaxed)
    }

    /// The distance of a node: zero is closest.
    pub(crate) fn distance(&self, segment: SegmentId) -> u8 {
        let nodes = self.lock();
        let Some(node) = nodes.get(&segment) else { return u8::MAX };
        if node.info.beside.is_some() {
            // Memory is read before disks, on whichever host it is.
            return DISTANCE_OF_DISKS;
        }
        match node.link.current().map(|route| route.attachment().is_some()) {
            Some(true) => 0,
            // A node that was not tried yet may be on this host.
            None if node.link.failure().is_none() && self.context.may_share(&node.info) => 1,
            Some(false) => 2,
            None => 3,
        }
    }

    /// Opens the routes to these nodes concurrently. The result says why a route could not be opened.
    pub(crate) async fn meet(&self, infos: &[NodeInfo], deadline: Deadline) -> Vec<Route> {
        self.learn(infos);
        let mut running = Running::new();
        for info in infos {
            // The outcome is kept in the link, where `routes` finds it.
            running.push(async move { self.route(info.segment, deadline).await.is_ok() });
        }
        running.all().await;
        self.routes()
    }

    /// Unmaps the memory of nodes that have ended.
    pub(crate) fn prune(&self) {
        self.lock().values().for_each(|node| node.link.prune());
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let nodes = self.lock();
        let routes = nodes.values().map(|node| {
            let current = node.link.current();
            let why_not = current.as_ref().and_then(|route| route.why_not_shared.clone());
            Route {
                node: node.info.name.clone(),
                segment: node.info.segment,
                way: current.as_ref().map(|route| route.way()),
                why: if current.is_some() { why_not } else { node.link.failure().map(|it| it.to_string()) },
            }
        });
        routes.collect()
    }

    /// Number of nodes that are being left alone.
    pub(crate) fn avoided(&self) -> u64 {
        self.lock().values().filter(|node| node.link.is_avoided()).count() as u64
    }

    /// The views on a node.
    pub(crate) fn with_views<T>(&self, segment: SegmentId, use_views: impl FnOnce(&mut Views) -> T) -> T {
        use_views(lock(&self.views).entry(segment).or_default())
    }

    /// The ends of views to send on a connection to a node.
    pub(crate) fn take_view_ends(&self, segment: SegmentId, route: &OpenRoute) -> Vec<SlotRef> {
        let connection = route.views_connection.load(Ordering::Acquire);
        lock(&self.views).get_mut(&segment).map_or_else(Vec::new, |views| views.take_ends(connection))
    }

    /// The nodes that may count views that this client does not have, because the connection to them broke.
    pub(crate) fn unsettled_views(&self) -> Vec<SegmentId> {
        let nodes = self.lock();
        let mut views = lock(&self.views);
        let link = |segment: &SegmentId| nodes.get(segment).map(|node| Arc::clone(&node.link));
        let is_gone = |segment: &SegmentId| match link(segment) {
            Some(link) => link.last().is_some_and(|route| route.is_node_gone()),
            None => true,
        };
        views.retain(|segment, views| !(views.is_empty() && is_gone(segment)));
        let is_open = |segment: &SegmentId| link(segment).is_none_or(|link| link.current().is_some());
        views.keys().filter(|segment| !is_open(segment)).copied().collect()
    }

    /// Forgets the nodes on which there is no view, and returns the connections to them.
    pub(crate) fn leave(&self) -> Vec<Connection> {
        let mut connections = Vec::new();
        let mut nodes = self.lock();
        let views = lock(&self.views);
        nodes.retain(|segment, node| {
            let is_viewed = views.get(segment).is_some_and(|it| !it.is_empty());
            if !is_viewed {
                connections.extend(node.link.current().map(|route| route.connection.clone()));
            }
            is_viewed
        });
        connections
    }

    /// Locked before the views, or without them.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Node>> {
        lock(&self.nodes)
    }
}

/// Sends the list of views on a node as the first request of a new connection. Ends that were sent on the
/// previous connection no longer count.
async fn list_views(views: &AllViews, segment: SegmentId, route: &OpenRoute) -> Result<(), Error> {
    // A client that maps the memory says so too if it has none: a node that was started again waits for that.
    let listed = match route.attachment() {
        Some(_) => Some(lock(views).entry(segment).or_default().connected()),
        None => lock(views).get_mut(&segment).map(Views::connected),
    };
    let Some((connection, held)) = listed else { return Ok(()) };
    route.views_connection.store(connection, Ordering::Release);
    let deadline = Instant::now() + LIST_TIME_MAX;
    match route.connection.call(&ClientToNode::KeepViews(held), deadline).await {
        // A node of an earlier release does not know the request; its views end with this client.
        Ok(_) | Err(CallError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use is a single change of a map, so a panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
