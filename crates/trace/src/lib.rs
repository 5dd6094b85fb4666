//! Traces calls: spans, the position in the trace that a thread works for, and the export of spans by OTLP.
//!
//! A process never begins a trace. It continues the trace of its caller, if the caller gives a
//! [`TraceContext`] ([`scoped`]); a request to a server carries it on. Client, master and node each have
//! a [`Tracer`], if a collector is set. Spans tell names of operations, counts and times; never a key or a
//! byte of an object.
//!
//! **Invariant:** without a trace context in this process, a call costs one relaxed load ([`is_active`]).
//!
//! **Invariant:** no call waits for the export. The queue of spans is bounded; spans beyond it are dropped
//! and counted.

mod endpoint;
mod export;
mod otlp;
mod record;
mod scope;
mod span;

pub use endpoint::{Endpoint, EndpointError};
pub use export::{Tell, Tracer, TracerSettings};
pub use record::{Kind, Name};
pub use scope::{Current, Scoped, activate, current, is_active, scoped, start};
pub use span::Span;
pub use tiffin_types::trace::TraceContext;
