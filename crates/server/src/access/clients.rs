//! Which holder uses which client id: an id belongs to the first holder that names it.
//!
//! Clients choose their ids at random, with 63 bits. What a client holds (reservations, views, leases) is
//! kept by its id, so that it can reconnect. Another holder must not use it, even if it learns the id.
//!
//! **Invariant:** at most [`CLIENT_IDS_MAX`] ids are remembered. One more drops an id of the holder with most
//! of them, the one that it named least recently. So a holder that names many ids forgets its own.

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
    /// Those of each holder by the time of the last naming. None is empty.
    orders: BTreeMap<u64, BTreeMap<u64, ClientId>>,
}

impl Known {
    fn forget(&mut self, principal: u64, time: u64) {
        if let Some(order) = self.orders.get_mut(&principal) {
            order.remove(&time);
            if order.is_empty() {
                self.orders.remove(&principal);
            }
        }
    }

    /// Drops one id.
    fn drop_one(&mut self) {
        let largest = self.orders.iter().max_by_key(|(_, order)| order.len());
        let oldest = largest.and_then(|(principal, order)| Some((*principal, order.first_key_value()?)));
        if let Some((principal, (&time, &client))) = oldest {
            self.holders.remove(&client);
            self.forget(principal, time);
        }
    }
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
            Some(&(_, last)) => known.forget(principal, last),
            None => {}
        }
        known.holders.insert(client, (principal, now));
        known.orders.entry(principal).or_default().insert(now, client);
        if known.holders.len() > self.most {
            known.drop_one();
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
        assert!(ids.bind(ClientId(9), &holders[0]), "beyond the limit the oldest of its own is dropped");
        assert!(!ids.bind(ClientId(8), &holders[0]) && ids.bind(ClientId(7), &holders[1]));
        let known = ids.known.lock().unwrap();
        let counts: Vec<_> = known.orders.values().map(BTreeMap::len).collect();
        assert_eq!((known.holders.len(), counts), (2, vec![1, 1]));
    }

    #[test]
    fn holder_that_names_many_ids_forgets_its_own() {
        let holders = [1, 2].map(|it| Holder::new(Credential::unlimited("x"), it));
        let ids = ClientIds { most: 8, known: Mutex::default() };
        let of_other = [1, 2, 3].map(ClientId);
        assert!(of_other.iter().all(|it| ids.bind(*it, &holders[0])));
        assert!((100..200).all(|it| ids.bind(ClientId(it), &holders[1])));
        assert!(of_other.iter().all(|it| !ids.bind(*it, &holders[1])), "they are not forgotten");
        assert!(!ids.bind(ClientId(199), &holders[0]) && ids.bind(ClientId(100), &holders[0]));
    }
}
