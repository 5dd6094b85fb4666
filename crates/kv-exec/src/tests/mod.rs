//! Scenarios over real memory: a toy engine that checks every page it computes on.

mod cuda;
mod faults;
mod ranks;
mod support;
mod tiers;
