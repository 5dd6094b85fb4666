//! The kinds of requests whose latency the master measures.

use tiffin_types::message::{ClientToMaster, MemberToMaster, Request};

/// Declares the kinds, each with its name in metrics and pages.
macro_rules! request_kinds {
    ($($kind:ident => $name:literal,)+) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum RequestKind {
            $($kind,)+
        }

        /// The names of all kinds, in the order of [`RequestKind`].
        pub(crate) const REQUESTS: &[&str] = &[$($name),+];
    };
}

request_kinds! {
    Reserve => "reserve",
    Publish => "publish",
    Resolve => "resolve",
    Exists => "exists",
    Delete => "delete",
    DeleteMatching => "delete_matching",
    List => "list",
    Stat => "stat",
    Ping => "ping",
    Pin => "pin",
    DropPins => "drop_pins",
    SetPolicy => "set_policy",
    ForgetNode => "forget_node",
    Await => "await",
    Why => "why",
    Lease => "lease",
    Release => "release",
    KeepLeases => "keep_leases",
    Ack => "ack",
    Cancel => "cancel",
    OpenStream => "open_stream",
    EndStream => "end_stream",
    Pull => "pull",
    Prefetch => "prefetch",
    Decide => "decide",
    Register => "register",
    Announce => "announce",
    Heartbeat => "heartbeat",
    AdmitCluster => "admit_cluster",
    Other => "other",
}

impl RequestKind {
    /// The kind of a request.
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::ClientToMaster(request) => match request {
                ClientToMaster::Reserve(_) => Self::Reserve,
                ClientToMaster::Publish(_) => Self::Publish,
                ClientToMaster::Resolve(_) => Self::Resolve,
                ClientToMaster::Exists(_) => Self::Exists,
                ClientToMaster::Delete(_) => Self::Delete,
                ClientToMaster::DeleteMatching(_) => Self::DeleteMatching,
                ClientToMaster::List(_) => Self::List,
                ClientToMaster::Stat => Self::Stat,
                ClientToMaster::Ping(_) => Self::Ping,
                ClientToMaster::Pin(_) => Self::Pin,
                ClientToMaster::DropPins(_) => Self::DropPins,
                ClientToMaster::SetPolicy(_) => Self::SetPolicy,
                ClientToMaster::ForgetNode(_) => Self::ForgetNode,
                ClientToMaster::AdmitCluster(_) => Self::AdmitCluster,
                ClientToMaster::Await(_) => Self::Await,
                ClientToMaster::Why(_) => Self::Why,
                ClientToMaster::Lease(_) => Self::Lease,
                ClientToMaster::Release(_) => Self::Release,
                ClientToMaster::KeepLeases(_) => Self::KeepLeases,
                ClientToMaster::Ack(_) => Self::Ack,
                ClientToMaster::Cancel(_) => Self::Cancel,
                ClientToMaster::OpenStream(_) => Self::OpenStream,
                ClientToMaster::EndStream(_) => Self::EndStream,
                ClientToMaster::Pull(_) => Self::Pull,
                ClientToMaster::Prefetch(_) => Self::Prefetch,
            },
            Request::MemberToMaster(request) => match request {
                MemberToMaster::Decide(_) => Self::Decide,
                MemberToMaster::Register(_) => Self::Register,
                MemberToMaster::Announce(_) => Self::Announce,
                MemberToMaster::Heartbeat(_) => Self::Heartbeat,
                MemberToMaster::Released(_)
                | MemberToMaster::ClientDied(_)
                | MemberToMaster::Dropped(_)
                | MemberToMaster::Drained(_) => Self::Other,
            },
            Request::Hello(_) | Request::Goodbye | Request::MasterToMember(_) | Request::ClientToNode(_) => {
                Self::Other
            }
        }
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
        self as usize
    }

    /// Its name in metrics and pages.
    pub(crate) fn name(self) -> &'static str {
        REQUESTS.get(self.index()).copied().unwrap_or_default()
    }
}
