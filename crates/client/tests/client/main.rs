//! The client against real servers in the same process. What needs processes of its own is in `processes.rs`.

mod faults;
mod store;
mod support;
