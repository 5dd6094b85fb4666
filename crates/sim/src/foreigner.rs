//! A node of another cluster that is started with the master of this one by mistake.
//!
//! Its memory has objects with the names of this cluster, and with generations that would win. It tries to
//! join again and again, while all other faults occur.
//!
//! **Invariant:** the master refuses it, so that no object of one cluster is visible in the other; and the
//! node keeps everything that its memory says.

use tiffin_node::{
    Adopted, Effect, Event as CoreEvent, Found, Node, NodeConfig, SlotRecord, SlotState, StampKey,
};
use tiffin_proto::Incoming;
use tiffin_types::{
    ClusterId, ConnId, EXTENT_ALIGN, EXTENTS_MAX, Extent, Generation, SegmentId, SlotId,
    message::{AdmitCluster, ClientToMaster, Hello, NodeInfo, Reply, Role, VERSION_MAJOR, VERSION_MINOR},
};

use crate::{
    coverage::Point,
    keyspace,
    network::Way,
    world::{Event, Party, Phase, World},
};

/// Its name.
const NAME: &str = "foreigner";
/// The secret of its stamps.
const STAMP_KEY: [u8; StampKey::BYTES] = *b"another cluster!";
/// The name of the invariant.
const INVARIANT: &str = "identity";
/// Maximum pause between two attempts to join.
const PAUSE_MS_MAX: u64 = 300;

/// The node of the other cluster.
pub(crate) struct Foreigner {
    core: Node,
    pub(crate) segment: SegmentId,
    cluster: ClusterId,
    link: Option<ConnId>,
    linked: bool,
}

impl World {
    /// The other cluster's node is started for the first time.
    pub(crate) fn start_foreigner(&mut self) {
        let (segment, cluster) = (SegmentId(self.rng.any()), ClusterId(self.rng.any() | 1 << 63));
        let config = NodeConfig {
            segment,
            capacity: 64 * EXTENT_ALIGN,
            slot_count: keyspace::KEYS.len() as u32,
            heap_bytes: 64 * EXTENT_ALIGN,
            chunk_bytes: 80 * EXTENT_ALIGN,
            chunks_free: 2,
            restores: true,
            extents_max: EXTENTS_MAX,
            stamp_key: StampKey::from_bytes(STAMP_KEY),
            mutant: self.mutant,
        };
        // Some of its masters started more often than those of this cluster, some less often.
        let epoch = *self.rng.pick(&[1, 3, 1000]).unwrap_or(&1);
        let slots = (0..keyspace::KEYS.len() as u8).map(|key| found(key, epoch)).collect();
        let stamp_high_water = 100;
        let (clients, ledger) = (Vec::new(), Vec::new());
        let adopted = Adopted { epoch, instance: 7, cluster, stamp_high_water, slots, clients, ledger };
        let core = match Node::adopt(config, adopted) {
            Ok(core) => core,
            Err(damage) => return self.oracle.fail(INVARIANT, || format!("cannot be adopted: {damage}")),
        };
        self.foreigner = Some(Box::new(Foreigner { core, segment, cluster, link: None, linked: false }));
        self.drain_foreigner();
        self.foreigner_retries();
    }

    fn foreigner_retries(&mut self) {
        let pause = 1 + self.rng.below(PAUSE_MS_MAX);
        self.at(self.now + pause, Event::ForeignerLinks);
    }

    /// It connects. A master that has no id, and whose cluster is empty, would rightly take it in.
    pub(crate) fn foreigner_links(&mut self) {
        if self.phase != Phase::Faults {
            return;
        }
        if self.oracle.objects.is_empty() || self.foreigner.as_ref().is_some_and(|it| it.link.is_some()) {
            return self.foreigner_retries();
        }
        let hello =
            Hello { major: VERSION_MAJOR, minor: VERSION_MINOR, role: Role::Node, ..Hello::default() };
        let conn = self.open(Party::Foreigner, Party::Master, hello);
        if let Some(it) = &mut self.foreigner {
            it.link = Some(conn);
        }
    }

    pub(crate) fn foreigner_lost_link(&mut self, conn: ConnId) {
        let Some(it) = self.foreigner.as_mut().filter(|it| it.link == Some(conn)) else { return };
        it.link = None;
        if std::mem::take(&mut it.linked) {
            it.core.handle(CoreEvent::Unlinked);
        }
        self.drain_foreigner();
        self.foreigner_retries();
    }

    pub(crate) fn foreigner_receives(&mut self, conn: ConnId, incoming: Incoming) {
        let Some(it) = self.foreigner.as_mut().filter(|it| it.link == Some(conn)) else { return };
        match incoming {
            Incoming::Reply(_, Reply::Welcome(_)) => {
                it.linked = true;
                let (segment, name, host) = (it.segment, NAME.to_owned(), NAME.to_owned());
                let info = NodeInfo { segment, name, host, outlives: true, ..NodeInfo::default() };
                it.core.handle(CoreEvent::Linked(info));
            }
            Incoming::Reply(id, reply) => it.core.handle(CoreEvent::MasterReply(id, reply)),
            Incoming::Request(_, request) => {
                self.oracle.fail(INVARIANT, || format!("the master asks a foreign node: {request:?}"));
            }
        }
        self.drain_foreigner();
    }

    fn drain_foreigner(&mut self) {
        while let Some(it) = &mut self.foreigner {
            let Some(effect) = it.core.poll_effect() else { return };
            let link = it.link.filter(|_| it.linked);
            match (effect, link) {
                (Effect::AskMaster(id, request), Some(link)) => {
                    self.send_request(link, Way::Up, id, &request)
                }
                (Effect::Refused(_), Some(link)) => {
                    self.coverage.hit(Point::ForeignerRefused);
                    self.break_conn(link);
                }
                (Effect::Membership(false), _) => (),
                (effect, _) => {
                    self.oracle.fail(INVARIANT, || format!("a foreign node changes its memory: {effect:?}"));
                }
            }
            if self.oracle.violation.is_some() {
                return;
            }
        }
    }

    /// The master has refused a member. If the member is one of this cluster, whose master has lost its
    /// state, the operator says so.
    pub(crate) fn member_is_refused(&mut self, cluster: ClusterId) {
        if self.foreigner.as_ref().is_none_or(|it| it.cluster != cluster) {
            let delay = self.rng.delay(5, 100);
            self.at(self.now + delay, Event::Admit(cluster));
        }
    }

    pub(crate) fn admit_cluster(&mut self, cluster: ClusterId) {
        let request = ClientToMaster::AdmitCluster(AdmitCluster { cluster });
        self.coverage.hit(Point::ClusterAdmitted);
        self.coverage.sent(tiffin_proto::request_kind(&request).number);
        self.audit(0, request);
    }

    /// No object of the other cluster is visible in this one.
    pub(crate) fn check_foreigner(&mut self) {
        let Some(segment) = self.foreigner.as_ref().map(|it| it.segment) else { return };
        let nodes = self.master.as_ref().map(|it| it.stat().nodes).unwrap_or_default();
        if nodes.iter().any(|it| it.info.segment == segment) {
            self.oracle.fail(INVARIANT, || "a node of another cluster is a member".to_owned());
        }
    }
}

/// An object of the other cluster: each has a unit of memory, and two units for its name.
fn found(key: u8, epoch: u64) -> Found {
    let (namespace, name) = (keyspace::namespace_name(0), keyspace::Name { namespace: 0, key });
    let (at, unit) = (u64::from(key), EXTENT_ALIGN);
    let key_len = keyspace::KEY_BYTES as u64;
    Found {
        slot: SlotId(u32::from(key)),
        is_retired: false,
        record: SlotRecord {
            stamp: StampKey::from_bytes(STAMP_KEY).stamp(1 + at),
            state: SlotState::Committed,
            generation: Generation { epoch: epoch + 1000, counter: 1 + at },
            len: unit,
            extents: vec![Extent { offset: at * unit, len: unit }],
            heap: Extent { offset: at * unit, len: namespace.len() as u64 + key_len },
            namespace_len: namespace.len() as u64,
            key_len,
            attributes: Extent { offset: 0, len: 0 },
            writer: None,
            hard_pin: false,
        },
        namespace: namespace.as_bytes().to_vec(),
        key: name.key().as_bytes().to_vec(),
        attributes: Vec::new(),
    }
}
