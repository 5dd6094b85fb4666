//! The kinds of requests whose latency the master measures.

use tiffin_core::message::{ClientToMaster, MemberToMaster, Request};

/// The names of all kinds, in the order of [`RequestKind`].
pub(crate) const REQUESTS: [&str; 29] = [
    "reserve",
    "publish",
    "resolve",
    "exists",
    "delete",
    "delete_matching",
    "list",
    "stat",
    "ping",
    "pin",
    "drop_pins",
    "set_policy",
    "forget_node",
    "await",
    "why",
    "lease",
    "release",
    "keep_leases",
    "ack",
    "cancel",
    "open_stream",
    "end_stream",
    "pull",
    "prefetch",
    "decide",
    "register",
    "announce",
    "heartbeat",
    "other",
];

/// A kind of request: its position in [`REQUESTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKind(u8);

impl RequestKind {
    /// The kind of a request.
    pub(crate) fn of(request: &Request) -> Self {
        Self(match request {
            Request::ClientToMaster(request) => match request {
                ClientToMaster::Reserve(_) => 0,
                ClientToMaster::Publish(_) => 1,
                ClientToMaster::Resolve(_) => 2,
                ClientToMaster::Exists(_) => 3,
                ClientToMaster::Delete(_) => 4,
                ClientToMaster::DeleteMatching(_) => 5,
                ClientToMaster::List(_) => 6,
                ClientToMaster::Stat => 7,
                ClientToMaster::Ping(_) => 8,
                ClientToMaster::Pin(_) => 9,
                ClientToMaster::DropPins(_) => 10,
                ClientToMaster::SetPolicy(_) => 11,
                ClientToMaster::ForgetNode(_) => 12,
                ClientToMaster::Await(_) => 13,
                ClientToMaster::Why(_) => 14,
                ClientToMaster::Lease(_) => 15,
                ClientToMaster::Release(_) => 16,
                ClientToMaster::KeepLeases(_) => 17,
                ClientToMaster::Ack(_) => 18,
                ClientToMaster::Cancel(_) => 19,
                ClientToMaster::OpenStream(_) => 20,
                ClientToMaster::EndStream(_) => 21,
                ClientToMaster::Pull(_) => 22,
                ClientToMaster::Prefetch(_) => 23,
            },
            Request::MemberToMaster(request) => match request {
                MemberToMaster::Decide(_) => 24,
                MemberToMaster::Register(_) => 25,
                MemberToMaster::Announce(_) => 26,
                MemberToMaster::Heartbeat(_) => 27,
                MemberToMaster::Released(_)
                | MemberToMaster::ClientDied(_)
                | MemberToMaster::Dropped(_)
                | MemberToMaster::Drained(_) => 28,
            },
            Request::Hello(_) | Request::Goodbye | Request::MasterToMember(_) | Request::ClientToNode(_) => {
                28
            }
        })
    }

    /// Whether the client asked the master to wait, so that a long time is no problem.
    pub(crate) fn may_wait(request: &Request) -> bool {
        match request {
            Request::ClientToMaster(ClientToMaster::Reserve(it)) => it.wait_ms > 0,
            Request::ClientToMaster(
                ClientToMaster::Await(_) | ClientToMaster::Pull(_) | ClientToMaster::Prefetch(_),
            ) => true,
            _ => false,
        }
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Its name in metrics and pages.
    pub(crate) fn name(self) -> &'static str {
        REQUESTS.get(self.index()).copied().unwrap_or_default()
    }
}
