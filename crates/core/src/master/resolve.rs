//! Lookups: the locations of objects, their existence, and listings.

use std::collections::BTreeSet;

use super::{
    Caller, Objects,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex, TOGETHER},
    departures::is_departed,
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, Key,
    message::{
        Ahead, Exists, List, ListItem, Listed, Pattern, PrefetchOutcome, Presence, Reason, Reply, Resolve,
        ResolveOutcome, Resolved,
    },
    mutant::{Mutant, is_mutant},
};

/// Maximum number of objects that one page scans, so that a listing delays other requests only briefly.
pub(super) const LIST_SCAN_MAX: usize = 1 << 13;
/// Bytes of keys after which a page ends, because a message is bounded and keys may be long.
const LIST_BYTES_MAX: usize = 8 << 20;
/// Bytes of keys that one page, or one piece of a delete, compares with a regular expression. It ends after
/// the key that reaches this, because a key may be long.
const MATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a compiled regular expression: the master compiles it while others wait.
const REGEX_BYTES_MAX: usize = 256 << 10;
/// Maximum length of its text, which is parsed before its size is known.
pub(super) const REGEX_TEXT_BYTES_MAX: usize = 4 << 10;

/// A [`Pattern`] that is ready for use.
pub(super) enum Matcher {
    All,
    Prefix(Vec<u8>),
    Regex(Box<regex::bytes::Regex>),
}

impl Matcher {
    /// Compiles the pattern, or describes the problem.
    pub(super) fn new(pattern: &Pattern, mutant: Mutant) -> Result<Self, String> {
        Ok(match pattern {
            Pattern::All => Self::All,
            Pattern::Prefix(prefix) => Self::Prefix(prefix.clone()),
            Pattern::Regex(text) => {
                let len = text.len();
                if len > REGEX_TEXT_BYTES_MAX && !is_mutant!(mutant, CompileAnyText) {
                    return Err(format!(
                        "a regular expression of {len} bytes is too long: {REGEX_TEXT_BYTES_MAX} are allowed"
                    ));
                }
                let regex = regex::bytes::RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
                let problem = |err| {
                    format!(
                        "`{text}` is not a regular expression: {err}\n\nhint: write `\\` before a character \
                         that is meant as it is, or give a prefix instead"
                    )
                };
                Self::Regex(Box::new(regex.map_err(problem)?))
            }
        })
    }

    /// Counts the cost of a key in `bytes`. `false` if it must be left to the next page or piece.
    pub(super) fn affords(&self, key: &Key, bytes: &mut usize, mutant: Mutant) -> bool {
        if !matches!(self, Self::Regex(_)) || is_mutant!(mutant, MatchAnyBytes) {
            return true;
        }
        if *bytes >= MATCH_BYTES_MAX {
            return false;
        }
        *bytes += key.as_bytes().len();
        true
    }

    pub(super) fn matches(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => key.as_bytes().starts_with(prefix),
            Self::Regex(regex) => regex.is_match(key.as_bytes()),
        }
    }
}

impl Objects {
    /// Finds objects. `waited` is how long the request has waited for promotions, and whether its deadline
    /// passed.
    pub(super) fn resolve(
        &mut self,
        caller: &Caller,
        resolve: &Resolve,
        mut waited: Option<(u64, bool)>,
    ) -> Reply {
        if resolve.keys.len() > BATCH_ITEMS_MAX {
            return refuse(Reason::Invalid, "the batch is too large");
        }
        let mut nodes = BTreeSet::new();
        let mut items = Vec::with_capacity(resolve.keys.len());
        let lease = resolve.lease.then(|| self.cx.now.after(self.cx.config.lease_ms));
        for keys in resolve.keys.chunks(TOGETHER) {
            let mut found = self.cx.catalog.find_all(caller.namespace, keys);
            for (found, key) in found.iter_mut().zip(keys) {
                let outcome = self.outcome(*found, resolve.locate, &mut nodes);
                self.has_met_removal |=
                    outcome == ResolveOutcome::Absent && self.cx.may_return(caller.namespace, key);
                if !matches!(outcome, ResolveOutcome::Found(_)) {
                    *found = None;
                }
                items.push(outcome);
            }
            if resolve.touch && resolve.locate {
                self.tier.promoted.end_shields(&mut self.cx, found.iter().flatten());
            } else if resolve.lease {
                found.iter().flatten().for_each(|index| self.tier.promoted.unshield(*index));
            }
            if resolve.touch || resolve.lease {
                let found = found.get(..keys.len()).unwrap_or(&[]);
                let is_read = resolve.touch || is_mutant!(self.cx.config.mutant, LeaseReads);
                self.cx.catalog.touch_all(found, self.cx.now, lease, is_read.then_some(caller.index));
            }
            // This follows the touch, so that a promotion for one of them does not evict another.
            let counts = resolve.touch || is_mutant!(self.cx.config.mutant, LookCounts);
            if counts && resolve.locate {
                let (host, found) = (&caller.host, found.iter().flatten());
                self.tier.count_gets(&mut self.cx, host, found, waited.take());
            }
        }
        nodes.iter().for_each(|node| self.cx.poll_node(*node));
        Reply::Resolved(Resolved { items, nodes: self.cx.infos(nodes) })
    }

    pub(super) fn exists(&mut self, caller: &Caller, exists: &Exists) -> Reply {
        if exists.keys.len() > BATCH_ITEMS_MAX {
            return refuse(Reason::Invalid, "the batch is too large");
        }
        let mut items = Vec::with_capacity(exists.keys.len());
        let mut ahead = Vec::new();
        let lease = exists.lease.then(|| self.cx.now.after(self.cx.config.lease_ms));
        let mut names = exists.keys.iter();
        let mut last = None;
        for together in (0..exists.keys.len()).step_by(TOGETHER) {
            let mut keys = [&[][..]; TOGETHER];
            keys.iter_mut().zip(&mut names).for_each(|(place, name)| *place = name);
            let keys = keys.get(..exists.keys.len() - together).unwrap_or(&keys);
            let mut found = self.cx.catalog.find_all(caller.namespace, keys);
            for (found, key) in found.iter_mut().zip(keys) {
                let (presence, node) = self.presence(*found);
                self.has_met_removal |= presence == Presence::Absent
                    && Key::new(key).is_ok_and(|key| self.cx.may_return(caller.namespace, &key));
                if presence != Presence::Here {
                    *found = None;
                }
                items.push(presence);
                // It is usually the node of the previous key, which was already asked.
                if let Some(node) = node.filter(|_| node != last) {
                    last = Some(node);
                    self.cx.poll_node(node);
                }
            }
            if exists.ahead != Ahead::Nothing {
                ahead.extend(found.iter().take(keys.len()));
            }
            let probes = is_mutant!(self.cx.config.mutant, ProbeTouches) && exists.ahead != Ahead::Nothing;
            if exists.touch || exists.lease || probes {
                if lease.is_some() {
                    found.iter().flatten().for_each(|index| self.tier.promoted.unshield(*index));
                }
                let found = found.get(..keys.len()).unwrap_or(&[]);
                let is_read = exists.touch || is_mutant!(self.cx.config.mutant, LeaseReads);
                self.cx.catalog.touch_all(found, self.cx.now, lease, is_read.then_some(caller.index));
            }
        }
        if !ahead.is_empty() {
            let outcomes = self.tier.promote_all(&mut self.cx, &ahead, exists.ahead, None);
            for (item, outcome) in items.iter_mut().zip(outcomes) {
                let failed = matches!(outcome, PrefetchOutcome::Failed | PrefetchOutcome::Skipped);
                if failed && is_mutant!(self.cx.config.mutant, ProbeForgets) {
                    *item = Presence::Absent;
                }
            }
        }
        Reply::Present(items)
    }

    /// Whether an object can be read, and the first node to read it from.
    fn presence(&self, index: Option<ObjectIndex>) -> (Presence, Option<NodeIndex>) {
        let object = index.and_then(|index| self.cx.catalog.get(index));
        let Some(object) = object else { return (Presence::Absent, None) };
        let readable = |node: &NodeIndex| self.cx.members.get(*node).is_some_and(|it| it.readable());
        match object.copies().map(|(node, _)| node).find(readable) {
            Some(node) => (Presence::Here, Some(node)),
            None => (Presence::Unavailable, None),
        }
    }

    fn outcome(
        &self,
        index: Option<ObjectIndex>,
        locate: bool,
        nodes: &mut BTreeSet<NodeIndex>,
    ) -> ResolveOutcome {
        let object = index.and_then(|index| self.cx.catalog.get(index));
        let Some(object) = object else { return ResolveOutcome::Absent };
        let readable = |node: NodeIndex| self.cx.members.get(node).is_some_and(|it| it.readable());
        if !object.copies().any(|(node, _)| readable(node)) {
            let names = object.homes().map(|node| self.cx.members.name(node));
            return ResolveOutcome::Unavailable(names.collect());
        }
        ResolveOutcome::Found(self.cx.found(object, locate, nodes))
    }

    pub(super) fn list(&self, namespace: NamespaceIndex, list: &List) -> Reply {
        let matcher = match Matcher::new(&list.pattern, self.cx.config.mutant) {
            Ok(matcher) => matcher,
            Err(problem) => return refuse(Reason::Invalid, &problem),
        };
        let limit = (list.limit as usize).clamp(1, BATCH_ITEMS_MAX);
        let mut items = Vec::new();
        let (mut bytes, mut matched) = (0, 0);
        let mutant = self.cx.config.mutant;
        let has_overdue = self.has_overdue();
        let cursor = self.cx.catalog.page(list.cursor, LIST_SCAN_MAX, |_, object| {
            let pins = |owner: &String| object.attributes().is_some_and(|it| it.pins.contains(owner));
            let is_over = has_overdue && self.cx.catalog.expiries().is_due(object, self.cx.now);
            let wanted = list.pinned_by.as_ref().is_none_or(pins) && !is_over && !is_departed(self, object);
            if object.namespace() != namespace || !wanted {
                return true;
            }
            if !matcher.affords(object.key(), &mut matched, mutant) {
                return false;
            }
            if !matcher.matches(object.key()) {
                return true;
            }
            if items.len() == limit || bytes >= LIST_BYTES_MAX {
                return false;
            }
            bytes += object.key().as_bytes().len();
            items.push(self.list_item(object));
            true
        });
        Reply::Listed(Listed { items, cursor })
    }

    fn list_item(&self, object: &Object) -> ListItem {
        ListItem {
            key: object.key().clone(),
            generation: object.generation(),
            len: object.len(),
            replicas: object.copies().count() as u32,
            pins: object.attributes().map(|it| it.pins.clone()).unwrap_or_default(),
            expires_in_ms: self.cx.catalog.expires_in_ms(object, self.cx.now),
        }
    }
}
