//! The last removals, so that the master can say why an object is gone.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{
    Generation, Key, Tick,
    master::{
        catalog::{LabelIndex, NamespaceIndex},
        context::Context,
        pending_retires::Name,
    },
    message::{Cause, Gone, Why},
};

/// Maximum number of removals that are remembered.
const HISTORY_MAX: usize = 1 << 16;

/// The last removals, newest last.
#[derive(Debug, Default)]
pub(in crate::master) struct History {
    past: VecDeque<Past>,
}

#[derive(Debug)]
struct Past {
    name: Arc<Name>,
    generation: Generation,
    cause: Cause,
    by: String,
    at: Tick,
    node: String,
    for_key: Option<Key>,
    reader: LabelIndex,
    disk_bytes_max: u64,
}

impl History {
    pub(in crate::master) fn note(
        &mut self,
        at: Tick,
        name: Arc<Name>,
        generation: Generation,
        (cause, by): (Cause, &str),
        reader: LabelIndex,
    ) {
        if self.past.len() == HISTORY_MAX {
            self.past.pop_front();
        }
        self.past.push_back(Past {
            name,
            generation,
            cause,
            by: by.to_owned(),
            at,
            node: String::new(),
            for_key: None,
            reader,
            disk_bytes_max: 0,
        });
    }

    /// Records where the last removal freed space, and for which key.
    pub(in crate::master) fn made_room(&mut self, node: String, key: &Key) {
        if let Some(past) = self.past.back_mut() {
            (past.node, past.for_key) = (node, Some(key.clone()));
        }
    }

    /// Records the maximum object size of its disk, if that disk had refused the object of the last
    /// removal.
    pub(in crate::master) fn had_been_refused(&mut self, disk_bytes_max: u64) {
        if let Some(past) = self.past.back_mut() {
            past.disk_bytes_max = disk_bytes_max;
        }
    }

    /// Records the node that caused the last removal.
    pub(in crate::master) fn went_with(&mut self, node: String) {
        if let Some(past) = self.past.back_mut() {
            past.node = node;
        }
    }

    /// Why an object of that name is gone, as far as it is remembered.
    pub(in crate::master) fn why_gone(&self, cx: &Context, namespace: NamespaceIndex, key: &Key) -> Why {
        let is_it = |it: &&Past| it.name.namespace == namespace && it.name.key == *key;
        let Some(past) = self.past.iter().rev().find(is_it) else { return Why::Unknown };
        Why::Gone(Gone {
            generation: past.generation,
            cause: past.cause,
            by: past.by.clone(),
            ago_ms: cx.now.0.saturating_sub(past.at.0),
            node: past.node.clone(),
            for_key: past.for_key.clone(),
            reader: cx.connections.label(past.reader),
            disk_bytes_max: past.disk_bytes_max,
        })
    }
}
