//! Which holder uses which client id: an id belongs to the first holder that names it.
//!
//! Clients choose their ids at random, with 63 bits. What a client holds (reservations, views, leases) is
//! kept by its id, so that it can reconnect. Another holder must not use it, even if it learns the id.
//!
//! **Invariant:** at most [`CLIENT_IDS_MAX`] ids are remembered. One more drops the one that was named least
//! recently.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tiffin_types::ClientId;

use super::Holder;

/// The maximum number of ids that are remembered: several times the connections of a server.
pub(crate) const CLIENT_IDS_MAX: usize = 1 << 16;

/// The ids and their holders.
#[derive(Debug)]
pub(crate) struct ClientIds {
    most: usize,
    // Held for one operation.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    /// By id: the holder, and when it was named last.
    holders: BTreeMap<ClientId, (u64, u64)>,
    /// By the time of the last naming.
    order: BTreeMap<u64, ClientId>,
}

impl Default for ClientIds {
    fn default() -> Self {
        Self { most: CLIENT_IDS_MAX, known: Mutex::default() }
    }
}

impl ClientIds {
    /// Whether the holder may use this id. From now on no other holder may.
    pub(crate) fn bind(&self, client: ClientId, holder: &Holder) -> bool {
        let mut guard = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *guard;
        let principal = holder.principal();
        known.next += 1;
        let now = known.next;
        match known.holders.get(&client) {
            Some((other, _)) if *other != principal => return false,
            Some((_, last)) => drop(known.order.remove(last)),
            None => {}
        }
        known.holders.insert(client, (principal, now));
        known.order.insert(now, client);
        if known.holders.len() > self.most
            && let Some((_, oldest)) = known.order.pop_first()
        {
            known.holders.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tiffin_types::access::Credential;

    use super::*;

    #[test]
    fn id_belongs_to_the_first_holder_that_names_it() {
        let holders = [1, 2].map(|it| Holder::new(Credential::unlimited("x"), it));
        let ids = ClientIds { most: 2, known: Mutex::default() };
        assert!(ids.bind(ClientId(7), &holders[0]) && ids.bind(ClientId(7), &holders[0]));
        assert!(!ids.bind(ClientId(7), &holders[1]), "another holder");
        assert!(ids.bind(ClientId(8), &holders[1]), "at the limit");
        assert!(ids.bind(ClientId(7), &holders[0]), "named again, so the other is older");
        assert!(ids.bind(ClientId(9), &holders[0]), "beyond the limit the oldest is dropped");
        assert!(ids.bind(ClientId(8), &holders[0]));
        assert_eq!(ids.known.lock().unwrap().order.len(), 2);
    }
}
