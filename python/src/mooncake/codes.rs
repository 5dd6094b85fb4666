//! Mooncake's return codes, and the table that converts our errors into them.

use tiffin_client::Error;
use tiffin_types::message::Reason;

/// Success.
pub(crate) const OK: i64 = 0;
/// The setup failed; the log has the reason.
pub(crate) const INTERNAL_ERROR: i64 = -1;
/// No segment has space, or objects to evict.
pub(crate) const NO_AVAILABLE_HANDLE: i64 = -200;
/// An argument is invalid; also: not set up, or closed.
pub(crate) const INVALID_PARAMS: i64 = -600;
/// No replica to write to.
pub(crate) const INVALID_REPLICA: i64 = -702;
/// The object exists, but cannot be read now.
pub(crate) const REPLICA_IS_NOT_READY: i64 = -703;
/// There is no such object.
pub(crate) const OBJECT_NOT_FOUND: i64 = -704;
/// An object of that name exists.
pub(crate) const OBJECT_ALREADY_EXISTS: i64 = -705;
/// A reader's lease refuses the removal.
pub(crate) const OBJECT_HAS_LEASE: i64 = -706;
/// The object of a get session is gone.
pub(crate) const LEASE_EXPIRED: i64 = -707;
/// The bytes could not be transferred.
pub(crate) const TRANSFER_FAIL: i64 = -800;
/// The master is unreachable, or could not finish.
pub(crate) const RPC_FAIL: i64 = -900;
/// The deadline has passed.
pub(crate) const RPC_TIMEOUT: i64 = -901;
/// The segment accepts no new objects.
pub(crate) const UNAVAILABLE_IN_CURRENT_STATUS: i64 = -1010;
/// The feature is not supported.
pub(crate) const NOT_SUPPORTED: i64 = -1012;
/// No such task is known.
pub(crate) const TASK_NOT_FOUND: i64 = -1400;
/// Too many tasks wait.
pub(crate) const TASK_PENDING_LIMIT_EXCEEDED: i64 = -1401;
/// There is no distributed file system.
pub(crate) const DFS_SERVICE_UNAVAILABLE: i64 = -1601;
/// The object exceeds the quota of its tenant, which is a namespace.
pub(crate) const TENANT_QUOTA_EXCEEDED: i64 = -1700;
/// The tenant has no quota, and the master requires one.
pub(crate) const TENANT_NOT_REGISTERED: i64 = -1701;

/// The answer of `health_check` before `setup` and after `close`.
pub(crate) const HEALTH_NOT_SET_UP: i64 = 1;
/// The answer of `health_check` if the master does not answer.
pub(crate) const HEALTH_NO_MASTER: i64 = 2;

/// The code for an error of the client.
pub(crate) fn of(error: &Error) -> i64 {
    match error {
        Error::NotFound { .. } | Error::Superseded { .. } | Error::Consumed { .. } => OBJECT_NOT_FOUND,
        // A range outside the object. The other errors are those of samples, which this module does not
        // use.
        Error::OutOfRange { .. }
        | Error::Exists { .. }
        | Error::NotASample { .. }
        | Error::WrongGroup { .. } => INVALID_PARAMS,
        Error::Full { .. } | Error::NoNode { .. } | Error::Behind { .. } => NO_AVAILABLE_HANDLE,
        // Only a tenant without a quota has a limit of zero.
        Error::OverQuota { quota, .. } if quota.limit == 0 => TENANT_NOT_REGISTERED,
        Error::OverQuota { .. } => TENANT_QUOTA_EXCEEDED,
        Error::TooSmall { .. } | Error::Invalid { .. } | Error::Closed | Error::Forked => INVALID_PARAMS,
        Error::Contended { .. } | Error::Unavailable { .. } => REPLICA_IS_NOT_READY,
        Error::Leased { .. } => OBJECT_HAS_LEASE,
        Error::NodeDown { .. } | Error::Device { .. } => TRANSFER_FAIL,
        Error::Timeout { .. } | Error::NoHandshake { is_silent: true, .. } => RPC_TIMEOUT,
        // The master is unreachable, rejects the client, or a node did not confirm the request.
        Error::Unreachable { .. }
        | Error::NoLeader { .. }
        | Error::NoHandshake { is_silent: false, .. }
        | Error::UnknownHost { .. }
        | Error::WrongPort { .. }
        | Error::Tls { .. }
        | Error::Unauthenticated { .. }
        | Error::Unconfirmed { .. } => RPC_FAIL,
        Error::Refused { reason: Reason::Invalid, .. } => INVALID_PARAMS,
        Error::Refused { .. } => RPC_FAIL,
    }
}
