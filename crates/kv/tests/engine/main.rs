//! The engine from outside: stories with an end, and properties against a naive model.

mod model;
mod stories;
mod support;
