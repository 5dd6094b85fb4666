//! Views: bytes that are read in place for any length of time.

use tiffin_node::SlotState;
use tiffin_session::Views;
use tiffin_types::{
    ConnId, SegmentId, SlotRef,
    message::{ClientToNode, Found, Reply},
};

use super::{Client, ClientEvent, Purpose, Target};
use crate::{
    coverage::Point,
    memory::{Tag, all_units},
    network::Way,
    world::World,
};

/// The viewed copy, and which view of it this is.
pub(crate) type ViewKey = (SegmentId, SlotRef, u64);

/// Maximum number of views of one copy that a client has.
const VIEWS_OF_ONE_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requested.
    Beginning,
    /// Requested, but the client does not wait any more.
    GivenUp,
    /// Confirmed by the node.
    Held,
}

/// One view.
#[derive(Debug)]
pub(crate) struct View {
    state: State,
    units: Vec<usize>,
    len: u64,
}

impl Client {
    /// The node is gone, so nothing of it is in view.
    pub(crate) fn forget_views(&mut self, target: Target) {
        let Target::Node(segment) = target else { return };
        self.views_at.remove(&segment);
        self.views.retain(|key, _| key.0 != segment);
    }
}

impl World {
    /// Requests a view of the first mapped copy.
    pub(crate) fn begin_view(&mut self, client: usize, found: &Found) {
        let mutant = self.mutant;
        let Some(it) = self.clients.get_mut(client) else { return };
        let mapped = found.replicas.iter().find(|replica| it.attached.contains(&replica.segment));
        let Some(location) = mapped else { return };
        let (segment, slot_ref) = (location.segment, location.slot_ref());
        // The record is loaded first: if the view begins, the stamp was current, and so are the extents.
        let record = self.memories.get(&segment).and_then(|memory| memory.load(slot_ref));
        let Some(record) = record else { return };
        if record.state != SlotState::Committed {
            self.coverage.hit(Point::ViewUnheard);
        }
        let same = it.views.range((segment, slot_ref, 0)..=(segment, slot_ref, u64::MAX)).count();
        if same >= VIEWS_OF_ONE_MAX {
            return;
        }
        if same > 0 {
            self.coverage.hit(Point::ViewedTwice);
        }
        it.next_view += 1;
        let key = (segment, slot_ref, it.next_view);
        let view = View { state: State::Beginning, units: all_units(&record.extents), len: record.len };
        it.views.insert(key, view);
        it.views_at.entry(segment).or_insert_with(|| Views::new(mutant));
        let target = Target::Node(segment);
        self.call(client, target, ClientToNode::BeginViews(vec![slot_ref]), Purpose::BeginView(key));
    }

    pub(crate) fn view_answered(&mut self, client: usize, key: ViewKey, reply: &Reply) {
        let begun = matches!(reply, Reply::ViewsBegun(begun) if begun.first() == Some(&true));
        let Some(it) = self.clients.get_mut(client) else { return };
        if !begun {
            it.views.remove(&key);
            return self.coverage.hit(Point::ViewRefused);
        }
        // The thread that waits for the answer runs a while later, and the connection may break meanwhile.
        let connection = it.views_at.get(&key.0).map_or(0, Views::connection);
        let delay = self.rng.delay(30, 300);
        self.client_at(delay, client, ClientEvent::ViewBegun(key, connection));
    }

    pub(crate) fn view_begun(&mut self, client: usize, key: ViewKey, connection: u64) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let counts = it.views_at.get_mut(&key.0).is_some_and(|views| views.begun(connection, key.1));
        let Some(view) = it.views.get_mut(&key) else { return };
        if !counts {
            it.views.remove(&key);
            return self.coverage.hit(Point::ViewLost);
        }
        // The bytes of a withdrawn use are not viewed: the client resolves again.
        let is_withdrawn = self.memories.get(&key.0).is_some_and(|it| it.is_withdrawn(key.1));
        if view.state == State::GivenUp || is_withdrawn {
            return self.drop_view(client, key);
        }
        view.state = State::Held;
        self.coverage.hit(Point::ViewBegun);
        let (check_view, end) = (self.rng.delay(10, 200), self.rng.delay(100, 600));
        self.client_at(check_view, client, ClientEvent::CheckView(key));
        self.client_at(end, client, ClientEvent::EndView(key));
    }

    /// Reads every byte of a view.
    pub(crate) fn check_view(&mut self, client: usize, key: ViewKey) {
        let pause = self.rng.delay(20, 200);
        let Some(view) = self.clients.get(client).and_then(|it| it.views.get(&key)) else { return };
        if view.state != State::Held {
            return;
        }
        let Some(memory) = self.memories.get(&key.0) else { return };
        let tags: Vec<Tag> = view.units.iter().filter_map(|&unit| memory.read_unit(unit)).collect();
        if !memory.is_current(key.1) {
            self.coverage.hit(Point::ViewOutlives);
        }
        self.oracle.looks(key.0, key.1, view.len, &tags, &mut self.coverage);
        self.client_at(pause, client, ClientEvent::CheckView(key));
    }

    pub(crate) fn end_view(&mut self, client: usize, key: ViewKey) {
        let view = self.clients.get(client).and_then(|it| it.views.get(&key));
        if view.is_some_and(|it| it.state == State::Held) {
            self.drop_view(client, key);
        }
    }

    fn drop_view(&mut self, client: usize, key: ViewKey) {
        let Some(it) = self.clients.get_mut(client) else { return };
        it.views.remove(&key);
        if let Some(views) = it.views_at.get_mut(&key.0) {
            views.end(key.1);
        }
        let delay = self.rng.delay(30, 300);
        self.client_at(delay, client, ClientEvent::SendEnds(key.0));
    }

    /// Sends the ends of views, if there is a connection that knows these views.
    pub(crate) fn send_ends(&mut self, client: usize, segment: SegmentId) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if !it.links.get(&Target::Node(segment)).is_some_and(|it| it.up) {
            return self.connect(client, Target::Node(segment));
        }
        let Some(views) = it.views_at.get_mut(&segment) else { return };
        let ends = views.take_ends(views.connection());
        if !ends.is_empty() {
            self.call(client, Target::Node(segment), ClientToNode::EndViews(ends), Purpose::EndViews);
        }
    }

    /// The client does not wait for a view any more.
    pub(crate) fn view_given_up(&mut self, client: usize, key: ViewKey) {
        let view = self.clients.get_mut(client).and_then(|it| it.views.get_mut(&key));
        if let Some(view) = view.filter(|it| it.state == State::Beginning) {
            view.state = State::GivenUp;
        }
    }

    /// The connection broke: whether the view began is unknown, and the next connection ends it.
    pub(crate) fn view_lost(&mut self, client: usize, key: ViewKey) {
        if let Some(it) = self.clients.get_mut(client) {
            it.views.remove(&key);
        }
    }

    /// The first message on a new connection to a node.
    pub(crate) fn list_views(&mut self, client: usize, target: Target, conn: ConnId) {
        let Target::Node(segment) = target else { return };
        let mutant = self.mutant;
        let Some(it) = self.clients.get_mut(client) else { return };
        // A client that has no views says so: a node that was started again waits for that.
        if self.plan.pools > 0 {
            it.views_at.entry(segment).or_insert_with(|| Views::new(mutant));
        }
        let Some(views) = it.views_at.get_mut(&segment) else { return };
        let (_, held) = views.connected();
        if !held.is_empty() && self.nodes.iter().any(|it| it.segment == segment && it.incarnation > 1) {
            self.coverage.hit(Point::PoolViewsListed);
        }
        it.last_request = it.next_request();
        let id = it.last_request;
        self.send_request(conn, Way::Up, id, &ClientToNode::KeepViews(held));
    }
}
