//! Connections as in TCP: in order, with some delay, until they break.
//!
//! A break loses a suffix of the frames in flight in each direction. The rest may still arrive late, even
//! after the caller has a new connection; the two sides notice the break at different times. That is how
//! loss, duplication and reordering really happen.
//!
//! Between the master and a near node, everything that the master has sent is in the node's socket buffer,
//! and the node receives all of it before it notices a break. Ledger entries are in a socket of their own;
//! the node reads them before any other message, or after a while.

use std::collections::VecDeque;

use tiffin_proto::{Incoming, frame};
use tiffin_types::{
    ClientId, ConnId, RequestId, SegmentId,
    message::{Hello, MasterToMember, Reply, RequestRef},
};

use crate::{
    coverage::Point,
    keyspace,
    world::{Event, Party, Time, World},
};

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the caller to the server.
    Up,
    /// From the server to the caller.
    Down,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    frames: VecDeque<Vec<u8>>,
    last_at: Time,
    not_before: Time,
    /// After a break: number of frames that still arrive.
    left: Option<usize>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) caller: Party,
    pub(crate) caller_incarnation: u32,
    pub(crate) server: Party,
    pub(crate) server_incarnation: u32,
    /// The calling client, and its namespace.
    pub(crate) client: ClientId,
    pub(crate) namespace: u8,
    /// The calling node's segment.
    pub(crate) segment: Option<SegmentId>,
    /// The caller is a node near the master.
    pub(crate) same_host: bool,
    pub(crate) caller_open: bool,
    pub(crate) server_open: bool,
    /// The server has accepted it.
    pub(crate) greeted: bool,
    up: Pipe,
    down: Pipe,
    /// Ledger entries that the node has not read.
    ledger: VecDeque<Vec<u8>>,
}

impl Conn {
    /// Whether no message of the master to a node is in flight.
    pub(crate) fn is_delivered(&self) -> bool {
        let is_read = self.down.frames.is_empty() && self.ledger.is_empty();
        self.segment.is_none() || !self.caller_open || is_read
    }

    /// Whether both sides have received everything. False for a broken connection: messages on it are lost,
    /// not in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let is_whole = self.up.left.is_none() && self.down.left.is_none();
        let is_delivered = self.up.frames.is_empty() && self.down.frames.is_empty() && self.ledger.is_empty();
        is_whole && self.caller_open && self.server_open && is_delivered
    }

    /// Whether the socket of a near node contains unread messages.
    pub(crate) fn has_unread(&self) -> bool {
        self.same_host && self.caller_open && !(self.down.frames.is_empty() && self.ledger.is_empty())
    }

    fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

impl World {
    /// Connects. If the server is not running, the caller notices a little later.
    pub(crate) fn open(&mut self, caller: Party, server: Party, hello: Hello) -> ConnId {
        self.next_conn += 1;
        let id = ConnId(self.next_conn);
        let listens = self.is_up(server);
        let conn = Conn {
            caller,
            caller_incarnation: self.incarnation(caller),
            server,
            server_incarnation: self.incarnation(server),
            client: hello.client,
            namespace: keyspace::namespace(hello.namespace.as_bytes()).unwrap_or(0),
            segment: match caller {
                Party::Node(node) => self.nodes.get(node).map(|it| it.segment),
                Party::Disk(node) => self.disk(node).map(|it| it.segment),
                Party::Foreigner => self.foreigner.as_ref().map(|it| it.segment),
                Party::Client(_) | Party::Master | Party::Standby(_) => None,
            },
            same_host: matches!(caller, Party::Node(node) if node < self.plan.same_host_nodes)
                && server != Party::Standby(1),
            caller_open: true,
            server_open: listens,
            greeted: false,
            up: Pipe::default(),
            down: Pipe::default(),
            ledger: VecDeque::new(),
        };
        self.conns.insert(id, conn);
        if listens {
            self.send_request(id, Way::Up, RequestId(0), RequestRef::Hello(&hello));
        } else {
            let at = self.now + 1 + self.rng.below(20);
            self.at(at, Event::CallerCloses(id));
        }
        id
    }

    pub(crate) fn send_request<'a>(
        &mut self,
        conn: ConnId,
        way: Way,
        id: RequestId,
        request: impl Into<RequestRef<'a>>,
    ) {
        let request = request.into();
        self.log.note(|| format!("{conn:?} {way:?} {id:?} {request:?}"));
        self.coverage.sent(tiffin_proto::request_kind(request).number);
        let frame = tiffin_proto::encode_request(id, request).expect("every message can be encoded");
        self.send(conn, way, frame);
    }

    /// Whether a message to a node is in its socket buffer at once. The node may be slow to read.
    pub(crate) fn accepts_now(&mut self, id: ConnId) -> bool {
        let is_slow = self.rng.once_in(8);
        let conn = self.conns.get(&id);
        conn.is_some_and(|it| it.same_host && it.server_open && it.down.left.is_none() && !is_slow)
    }

    /// Appends an entry to the ledger of a near node.
    pub(crate) fn append_to_ledger(&mut self, conn: ConnId, id: RequestId, request: &MasterToMember) {
        if !self.conns.get(&conn).is_some_and(|it| it.same_host && it.server_open && it.down.left.is_none()) {
            return self.send_request(conn, Way::Down, id, request);
        }
        self.log.note(|| format!("{conn:?} entrusted {id:?} {request:?}"));
        self.coverage.sent(tiffin_proto::request_kind(request).number);
        let frame = tiffin_proto::encode_request(id, request).expect("every message can be encoded");
        self.log.line(self.now, "append_to_ledger", &[conn.0], &frame);
        let delay = self.rng.delay(self.plan.delay_usual * 4, self.plan.delay_seldom * 2);
        if let Some(it) = self.conns.get_mut(&conn) {
            it.ledger.push_back(frame);
            let memory = it.segment.and_then(|it| self.memories.get_mut(&it));
            if let (MasterToMember::Settle(settle), Some(memory)) = (request, memory)
                && memory.journal.0 == conn
            {
                memory.journal.1.push(settle.clone());
            }
        }
        self.at(self.now + delay, Event::ReadLedger(conn));
    }

    /// A node reads its ledger.
    pub(crate) fn read_ledger(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let Party::Node(node) = conn.caller else { return };
        let (caller, incarnation) = (conn.caller, conn.caller_incarnation);
        let wake = self.stopped_until(caller);
        if wake > self.now {
            return self.at(wake, Event::ReadLedger(id));
        }
        let same_life = self.is_up(caller) && self.incarnation(caller) == incarnation;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let words = std::mem::take(&mut conn.ledger);
        if same_life {
            self.apply_ledger(node, id, words.iter().map(|frame| decode(frame)).collect());
        }
    }

    pub(crate) fn send_reply(&mut self, conn: ConnId, way: Way, id: RequestId, reply: &Reply) {
        self.log.note(|| format!("{conn:?} {way:?} {id:?} {reply:?}"));
        self.coverage.sent(tiffin_proto::reply_kind(reply).number);
        let frame = tiffin_proto::encode_reply(id, reply).expect("every message can be encoded");
        self.send(conn, way, frame);
    }

    fn send(&mut self, id: ConnId, way: Way, frame: Vec<u8>) {
        self.log.line(self.now, "send", &[id.0, way as u64], &frame);
        let delay = self.rng.delay(self.plan.delay_usual, self.plan.delay_seldom);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let open = match way {
            Way::Up => conn.caller_open,
            Way::Down => conn.server_open,
        };
        let pipe = conn.pipe(way);
        if !open || pipe.left.is_some() {
            return self.coverage.hit(Point::FrameLost);
        }
        pipe.frames.push_back(frame);
        pipe.last_at = pipe.last_at.max(now + delay);
        let at = pipe.last_at;
        self.at(at, Event::Deliver(id, way));
    }

    /// The connection breaks. Each side notices at its own time.
    pub(crate) fn break_conn(&mut self, id: ConnId) {
        let (noticed, half_open) = (self.rng.below(25), self.rng.delay(40, 500));
        let late = if self.rng.percent(self.plan.late_percent) { self.rng.below(120) } else { 0 };
        let (up_left, down_left) = (self.rng.any() as usize, self.rng.any() as usize);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let same_host = conn.same_host;
        for (pipe, left, same_host) in
            [(&mut conn.up, up_left, false), (&mut conn.down, down_left, same_host)]
        {
            if pipe.left.is_none() {
                pipe.left = Some(if same_host { pipe.frames.len() } else { left % (pipe.frames.len() + 1) });
            }
        }
        let heard = if same_host { conn.down.last_at } else { 0 };
        conn.up.not_before = conn.up.not_before.max(now + late);
        let server_at = now + late + half_open;
        self.at(heard.max(now) + noticed, Event::CallerCloses(id));
        self.at(server_at, Event::ServerCloses(id));
    }

    /// The caller is gone, or closes the connection.
    pub(crate) fn close_caller(&mut self, id: ConnId) {
        self.break_conn(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.caller_open = false;
        }
    }

    /// The server closes a connection. Messages that arrive before that are still received.
    pub(crate) fn disconnect(&mut self, id: ConnId) {
        let delay = self.rng.below(60);
        self.at(self.now + delay, Event::ServerCloses(id));
        self.at(self.now + delay, Event::CallerCloses(id));
    }

    /// The server is gone: what it sent before still arrives.
    pub(crate) fn close_server(&mut self, id: ConnId) {
        let delay = self.rng.below(20);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.server_open = false;
        let at = conn.down.last_at.max(now) + delay;
        self.at(at, Event::CallerCloses(id));
    }

    /// Delivers the next frame, unless its receiver is stopped: then it waits.
    pub(crate) fn deliver_next(&mut self, id: ConnId, way: Way) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (receiver, incarnation) = match way {
            Way::Up => (conn.server, conn.server_incarnation),
            Way::Down => (conn.caller, conn.caller_incarnation),
        };
        let wake = self.stopped_until(receiver).max(match way {
            Way::Up => conn.up.not_before,
            Way::Down => conn.down.not_before,
        });
        if wake > self.now {
            return self.at(wake, Event::Deliver(id, way));
        }
        if way == Way::Down {
            self.read_ledger(id);
        }
        let same_life = self.is_up(receiver) && self.incarnation(receiver) == incarnation;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let open = match way {
            Way::Up => conn.server_open,
            Way::Down => conn.caller_open,
        };
        let late = way == Way::Up && !conn.caller_open;
        let pipe = conn.pipe(way);
        let Some(frame) = pipe.frames.pop_front() else { return };
        let passes = match &mut pipe.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        };
        if !(open && passes && same_life) {
            return self.coverage.hit(Point::FrameLost);
        }
        if late {
            self.coverage.hit(Point::FrameLate);
        }
        self.log.line(self.now, "deliver", &[id.0, way as u64, frame.len() as u64], &[]);
        let incoming = decode(&frame);
        match receiver {
            Party::Master => self.master_receives(id, incoming),
            Party::Standby(master) => self.standby_receives(master, id, incoming),
            Party::Node(node) => self.node_receives(node, id, way, incoming),
            Party::Disk(node) => self.disk_receives(node, id, incoming),
            Party::Client(client) => self.client_receives(client, id, incoming),
            Party::Foreigner => self.foreigner_receives(id, incoming),
        }
    }
}

/// Decodes a frame, as the shells do.
fn decode(frame: &[u8]) -> Incoming {
    let (head, payload) = frame.split_first_chunk::<{ frame::HEADER_BYTES }>().expect("a frame has a header");
    let header = frame::decode_header(head).expect("a valid header");
    frame::verify(&header, payload).expect("the frame is intact");
    tiffin_proto::decode(&header, payload).expect("every encoded message can be decoded")
}
