//! Walls between namespaces: no answer to a client contains an object of another namespace. The names are
//! the same in both, so an object is recognized by its generation.

use tiffin_core::master::Effect;
use tiffin_types::{
    Generation,
    message::{LeaseOutcome, Reply, ResolveOutcome, Why},
};

use crate::world::World;

impl World {
    /// Checks an answer of the master to a client.
    pub(crate) fn check_walls(&mut self, effect: &Effect) {
        let Effect::Reply(conn, _, reply) = effect else { return };
        let asker = self.conns.get(conn).filter(|it| it.greeted && it.segment.is_none());
        let Some(namespace) = asker.map(|it| it.namespace) else { return };
        let named = generations(reply);
        let name_of = |it: &Generation| self.oracle.objects.get(it).map(|it| it.name);
        let foreign = named.iter().filter_map(|it| Some((*it, name_of(it)?)));
        if let Some((generation, name)) = foreign.into_iter().find(|(_, it)| it.namespace != namespace) {
            self.oracle.fail("walls", || {
                format!("a client of namespace {namespace} was told of {generation} of {name:?}: {reply:?}")
            });
        }
    }
}

fn generations(reply: &Reply) -> Vec<Generation> {
    let of_leases = |items: &[LeaseOutcome]| {
        let found = items.iter().filter_map(|it| match it {
            LeaseOutcome::Leased(granted) => Some(granted.found.generation),
            LeaseOutcome::Superseded(generation) => Some(*generation),
            _ => None,
        });
        found.collect()
    };
    match reply {
        Reply::Resolved(resolved) => {
            let found = resolved.items.iter().filter_map(|it| match it {
                ResolveOutcome::Found(found) => Some(found.generation),
                _ => None,
            });
            found.collect()
        }
        Reply::Listed(listed) => listed.items.iter().map(|it| it.generation).collect(),
        Reply::Leased(leased) => of_leases(&leased.items),
        Reply::Pulled(pulled) => of_leases(&pulled.leased.items),
        Reply::Why(answers) => {
            let named = answers.iter().filter_map(|it| match it {
                Why::Here(here) => Some(here.found.generation),
                Why::Gone(gone) => Some(gone.generation),
                Why::Unknown => None,
            });
            named.collect()
        }
        _ => Vec::new(),
    }
}
