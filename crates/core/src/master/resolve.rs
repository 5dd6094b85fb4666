//! Finding and naming objects.

use std::collections::BTreeSet;

use super::{
    Effect, Master, Notice, Visitor,
    catalog::{NamespaceIndex, NodeIndex, Object, ObjectIndex, TOGETHER},
    refuse,
};
use crate::{
    BATCH_ITEMS_MAX, Hold, Key, Location,
    message::{
        Ahead, Exists, Found, List, ListItem, Listed, NamespaceStat, NodeInfo, Pattern, PrefetchOutcome,
        Presence, Reason, Reply, Resolve, ResolveOutcome, Resolved,
    },
    sabotage::sabotaged,
};

/// Objects that one page may look at, so that a listing never stalls the others for long.
const LIST_SCAN_MAX: usize = 1 << 16;
/// Bytes of keys after which a page ends: keys may be long, messages may not.
const LIST_BYTES_MAX: usize = 8 << 20;
/// Bytes that a compiled regular expression may take.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A [`Pattern`] that is ready for use.
pub(super) enum Matcher {
    All,
    Prefix(Vec<u8>),
    Regex(Box<regex::bytes::Regex>),
}

impl Matcher {
    /// Compiles the pattern, or says why it cannot be.
    pub(super) fn new(pattern: &Pattern) -> Result<Self, String> {
        Ok(match pattern {
            Pattern::All => Self::All,
            Pattern::Prefix(prefix) => Self::Prefix(prefix.clone()),
            Pattern::Regex(text) => {
                let regex = regex::bytes::RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
                let problem = |err| format!("`{text}` is not a regular expression: {err}");
                Self::Regex(Box::new(regex.map_err(problem)?))
            }
        })
    }

    pub(super) fn matches(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => key.as_bytes().starts_with(prefix),
            Self::Regex(regex) => regex.is_match(key.as_bytes()),
        }
    }
}

impl Master {
    pub(super) fn resolve(&mut self, visitor: &Visitor, resolve: &Resolve) -> Reply {
        if resolve.keys.len() > BATCH_ITEMS_MAX {
            return refuse(Reason::Invalid, "the batch is too large");
        }
        let mut nodes = BTreeSet::new();
        let mut items = Vec::with_capacity(resolve.keys.len());
        let lease = resolve.lease.then(|| self.now.after(self.config.lease_ms));
        for keys in resolve.keys.chunks(TOGETHER) {
            let mut found = self.catalog.find_all(visitor.namespace, keys);
            for (found, _) in found.iter_mut().zip(keys) {
                let outcome = self.outcome(*found, resolve.locate, &mut nodes);
                if !matches!(outcome, ResolveOutcome::Found(_)) {
                    *found = None;
                }
                items.push(outcome);
            }
            if resolve.touch && resolve.locate {
                self.count_gets(&visitor.host, found.iter().flatten());
            }
            if resolve.touch || resolve.lease {
                self.catalog.touch_all(
                    found.get(..keys.len()).unwrap_or(&[]),
                    self.now,
                    lease,
                    visitor.index,
                );
            }
        }
        nodes.iter().for_each(|node| self.have_look(*node));
        Reply::Resolved(Resolved { items, nodes: self.infos(nodes) })
    }

    /// Counts where gets find their bytes.
    fn count_gets<'a>(&mut self, host: &str, found: impl Iterator<Item = &'a ObjectIndex>) {
        if !self.members.has_disks() {
            self.tier.stat.gets_from_memory += found.count() as u64;
            return;
        }
        let (mut memory, mut disk, mut far) = (0, 0, 0);
        for &index in found {
            let Some(object) = self.catalog.get(index) else { continue };
            if self.is_in_memory(object) {
                memory += 1;
                self.count_memory_hit(index);
            } else {
                let is_here = |it: NodeIndex| self.members.get(it).is_some_and(|it| it.info.host == host);
                far += u64::from(!object.shelved().any(|(disk, _)| is_here(disk)));
                disk += 1;
                self.count_disk_hit(index);
            }
        }
        self.tier.stat.gets_from_memory += memory;
        self.tier.stat.gets_from_disk += disk;
        self.tier.stat.gets_from_far_disk += far;
        let waited = self.tier.promotions.waited.take();
        if disk > 0 || waited.is_some() {
            let (waited_ms, late) = waited.map_or((None, false), |(ms, late)| (Some(ms), late));
            let got = Notice::Got { memory, disk, far, waited_ms, late };
            self.effects.push_back(Effect::Notice(got));
        }
    }

    pub(super) fn exists(&mut self, visitor: &Visitor, exists: &Exists) -> Reply {
        if exists.keys.len() > BATCH_ITEMS_MAX {
            return refuse(Reason::Invalid, "the batch is too large");
        }
        let mut items = Vec::with_capacity(exists.keys.len());
        let mut ahead = Vec::new();
        let lease = exists.lease.then(|| self.now.after(self.config.lease_ms));
        let mut names = exists.keys.iter();
        let mut last = None;
        for together in (0..exists.keys.len()).step_by(TOGETHER) {
            let mut keys = [&[][..]; TOGETHER];
            keys.iter_mut().zip(&mut names).for_each(|(place, name)| *place = name);
            let keys = keys.get(..exists.keys.len() - together).unwrap_or(&keys);
            let mut found = self.catalog.find_all(visitor.namespace, keys);
            for (found, _) in found.iter_mut().zip(keys) {
                let (presence, node) = self.presence(*found);
                if presence != Presence::Here {
                    *found = None;
                }
                items.push(presence);
                // Mostly it is that of the key before, and has been asked.
                if let Some(node) = node.filter(|_| node != last) {
                    last = Some(node);
                    self.have_look(node);
                }
            }
            if exists.ahead != Ahead::Nothing {
                ahead.extend(found.iter().take(keys.len()));
            }
            let probes = sabotaged!(self.config.sabotage, ProbeTouches) && exists.ahead != Ahead::Nothing;
            if exists.touch || exists.lease || probes {
                self.catalog.touch_all(
                    found.get(..keys.len()).unwrap_or(&[]),
                    self.now,
                    lease,
                    visitor.index,
                );
            }
        }
        if !ahead.is_empty() {
            let outcomes = self.bring(&ahead, exists.ahead, None);
            for (item, outcome) in items.iter_mut().zip(outcomes) {
                let failed = matches!(outcome, PrefetchOutcome::Failed | PrefetchOutcome::Skipped);
                if failed && sabotaged!(self.config.sabotage, ProbeForgets) {
                    *item = Presence::Absent;
                }
            }
        }
        Reply::Present(items)
    }

    /// Whether an object can be read, and on which node to begin with.
    fn presence(&self, index: Option<ObjectIndex>) -> (Presence, Option<NodeIndex>) {
        let object = index.and_then(|index| self.catalog.get(index));
        let Some(object) = object else { return (Presence::Absent, None) };
        let readable = |node: &NodeIndex| self.members.get(*node).is_some_and(|it| it.readable());
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
        let object = index.and_then(|index| self.catalog.get(index));
        let Some(object) = object else { return ResolveOutcome::Absent };
        let readable = |node: NodeIndex| self.members.get(node).is_some_and(|it| it.readable());
        if !object.copies().any(|(node, _)| readable(node)) {
            let names = object.homes().map(|node| self.members.name(node));
            return ResolveOutcome::Unavailable(names.collect());
        }
        ResolveOutcome::Found(self.found(object, locate, nodes))
    }

    /// An object as a client sees it, with its locations if it wants them.
    pub(super) fn found(&self, object: &Object, locate: bool, nodes: &mut BTreeSet<NodeIndex>) -> Found {
        let readable = |node: NodeIndex| self.members.get(node).is_some_and(|it| it.readable());
        let mut replicas = Vec::new();
        if locate {
            replicas.reserve_exact(object.copies().count());
            for (node, hold) in object.copies().filter(|(node, _)| readable(*node)) {
                replicas.extend(self.location(node, hold));
                nodes.insert(node);
            }
        }
        Found {
            generation: object.generation(),
            len: object.len(),
            replicas,
            hard_pin: object.hard_pin(),
            soft_pin: object.soft_pin(),
            leased: object.leased(self.now),
            sample: object.is_sample(),
        }
    }

    pub(super) fn list(&self, namespace: NamespaceIndex, list: &List) -> Reply {
        let matcher = match Matcher::new(&list.pattern) {
            Ok(matcher) => matcher,
            Err(problem) => return refuse(Reason::Invalid, &problem),
        };
        let limit = (list.limit as usize).clamp(1, BATCH_ITEMS_MAX);
        let mut items = Vec::new();
        let mut bytes = 0;
        let cursor = self.catalog.page(list.cursor, LIST_SCAN_MAX, |_, object| {
            let pins = |owner: &String| object.marks().is_some_and(|it| it.pins.contains(owner));
            let wanted = list.pinned_by.as_ref().is_none_or(pins);
            if object.namespace() != namespace || !wanted || !matcher.matches(object.key()) {
                return true;
            }
            if items.len() == limit || bytes >= LIST_BYTES_MAX {
                return false;
            }
            bytes += object.key().as_bytes().len();
            items.push(list_item(object));
            true
        });
        Reply::Listed(Listed { items, cursor })
    }

    pub(super) fn namespace_stats(&self) -> Vec<NamespaceStat> {
        self.catalog.namespace_indexes().map(|index| self.namespace_stat(index)).collect()
    }

    pub(super) fn location(&self, node: NodeIndex, hold: Hold) -> Option<Location> {
        let segment = self.members.get(node)?.info.segment;
        Some(Location { segment, slot: hold.slot, stamp: hold.stamp })
    }

    pub(super) fn infos(&self, nodes: BTreeSet<NodeIndex>) -> Vec<NodeInfo> {
        nodes.into_iter().filter_map(|node| Some(self.members.get(node)?.info.clone())).collect()
    }
}

fn list_item(object: &Object) -> ListItem {
    ListItem {
        key: object.key().clone(),
        generation: object.generation(),
        len: object.len(),
        replicas: object.copies().count() as u32,
        pins: object.marks().map(|it| it.pins.clone()).unwrap_or_default(),
    }
}
