//! Determines what is lost when a node leaves for good: the objects whose only copy it holds.
//!
//! A node that stops without a drain job moves nothing. A copy that is put elsewhere has another generation:
//! refs of the old one fail. So moving is the operator's decision, and the client reports the losses before
//! the node leaves.

use std::collections::BTreeMap;
use std::fmt;

use tiffin_types::message::Record;
use tiffin_types::units::{Count, Size};
use tiffin_types::{Key, NAMESPACE_DEFAULT, SegmentId};

use crate::{Client, ConnectOptions, Deadline, Error, Info, ResolveOptions};

/// Maximum number of objects that are named.
const NAMES_MAX: usize = 8;

/// Objects that are lost when a node leaves, at the time of the count. [`Display`](fmt::Display) describes
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of objects whose only copy is there.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them are pinned.
    pub pinned: u64,
    /// How many of them are samples that are not consumed.
    pub unconsumed: u64,
    /// Namespace and key of some that are pinned or unconsumed.
    pub names: Vec<(String, Key)>,
    /// Number of its objects that have another copy, and are not lost.
    pub elsewhere: u64,
}

impl Losses {
    /// What is lost if a node with these records leaves now. The options say how to reach its master. A
    /// record of an object that was removed or replaced meanwhile is no loss. Objects about which the master
    /// does not reply in time count as lost.
    pub async fn of(
        records: Vec<Record>,
        leaving: SegmentId,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Self {
        let mut by_namespace: BTreeMap<String, Vec<Record>> = BTreeMap::new();
        for record in records {
            by_namespace.entry(record.namespace.clone()).or_default().push(record);
        }
        let mut losses = Self::default();
        for (namespace, records) in by_namespace {
            let known = match ask(&namespace, &records, leaving, options, deadline).await {
                Ok(known) => known,
                Err(error) => {
                    tracing::debug!(%error, namespace, "cannot determine which objects have another copy");
                    Vec::new()
                }
            };
            let known = known.into_iter().chain(std::iter::repeat(Known::Unknown));
            for (record, known) in records.into_iter().zip(known) {
                match known {
                    Known::Elsewhere => losses.elsewhere += 1,
                    Known::Gone => {}
                    Known::OnlyHere | Known::Unknown => losses.count(record),
                }
            }
        }
        losses
    }

    /// Whether nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects == 0
    }

    /// Whether a pinned or unconsumed object is lost.
    #[must_use]
    pub fn is_precious(&self) -> bool {
        self.pinned + self.unconsumed > 0
    }

    fn count(&mut self, record: Record) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(record.len);
        self.pinned += u64::from(!record.attributes.pins.is_empty());
        self.unconsumed += u64::from(record.attributes.sample.is_some());
        if record.attributes.protect() && self.names.len() < NAMES_MAX {
            self.names.push((record.namespace, record.key));
        }
    }
}

/// What the master knows about the object of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It has a copy on another node that responds.
    Elsewhere,
    OnlyHere,
    /// It was removed or replaced: the node has not applied that yet.
    Gone,
    Unknown,
}

/// What the master knows about the objects of these records.
async fn ask(
    namespace: &str,
    records: &[Record],
    leaving: SegmentId,
    options: &ConnectOptions,
    deadline: Deadline,
) -> Result<Vec<Known>, Error> {
    let options = ConnectOptions {
        namespace: namespace.to_owned(),
        connect_time: options.connect_time.min(deadline.remaining()),
        home: None,
        own_memory: None,
        own_disks: Vec::new(),
        ..options.clone()
    };
    let client = Client::connect(options).await?;
    let keys: Vec<_> = records.iter().map(|it| it.key.clone()).collect();
    let locate = ResolveOptions { locate: true, ..ResolveOptions::default() };
    let infos = client.resolve(&keys, locate, deadline).await;
    let known = infos.iter().zip(records).map(|(info, record)| known(info, record, leaving)).collect();
    // The result is complete; a failed disconnect changes nothing.
    let _closed = client.close(deadline).await;
    Ok(known)
}

fn known(info: &Result<Option<Info>, Error>, record: &Record, leaving: SegmentId) -> Known {
    match info {
        Ok(Some(info)) if info.generation != record.generation => Known::Gone,
        Ok(Some(info)) if info.replicas.iter().any(|it| it.location.segment != leaving) => Known::Elsewhere,
        Ok(Some(_)) => Known::OnlyHere,
        Ok(None) => Known::Gone,
        Err(_) => Known::Unknown,
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, bytes, pinned, unconsumed, names, .. } = self;
        let have = if *objects == 1 { "has its" } else { "have their" };
        write!(out, "{} ({}) {have} only copy here", Count(*objects, "object"), Size(*bytes))?;
        if !self.is_precious() {
            return Ok(());
        }
        write!(out, ", among them {pinned} pinned and {unconsumed} unconsumed:")?;
        for (at, (namespace, key)) in names.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(out, "{comma} `{key}`")?;
            if namespace != NAMESPACE_DEFAULT {
                write!(out, " of namespace `{namespace}`")?;
            }
        }
        if (names.len() as u64) < *pinned.max(unconsumed) { write!(out, ", …") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tiffin_types::attributes::Attributes;
    use tiffin_types::message::NodeInfo;
    use tiffin_types::{Generation, Location, SlotId, Stamp};

    use super::*;
    use crate::Replica;

    fn record(namespace: &str, key: &str, attributes: Attributes) -> Record {
        let (namespace, key) = (namespace.to_owned(), Key::new(key.as_bytes()).unwrap());
        Record {
            slot_ref: Default::default(),
            namespace,
            key,
            generation: Generation::default(),
            len: 7,
            attributes,
        }
    }

    #[test]
    fn only_the_current_object_of_a_name_can_be_lost() {
        let (here, there) = (SegmentId(1), SegmentId(2));
        let record = record("default", "a", Attributes::default());
        let known_with = |counter, segments: &[SegmentId]| {
            let location = |segment| Location { segment, slot: SlotId(0), stamp: Stamp(1) };
            let node = NodeInfo::default;
            let replicas = segments.iter().map(|&it| Replica { location: location(it), node: node() });
            let info = Info {
                generation: Generation { epoch: 0, counter },
                len: 7,
                hard_pin: false,
                expires_in: None,
                soft_pin: false,
                leased: false,
                replicas: replicas.collect(),
            };
            known(&Ok(Some(info)), &record, here)
        };
        assert_eq!(known_with(0, &[here]), Known::OnlyHere);
        assert_eq!(known_with(0, &[here, there]), Known::Elsewhere);
        // A drain has moved it, or another put has replaced it, and the node has not removed its copy yet.
        assert_eq!(known_with(1, &[there]), Known::Gone);
        assert_eq!(known_with(1, &[here]), Known::Gone, "the new one has a record of its own");
        assert_eq!(known(&Ok(None), &record, here), Known::Gone);
        assert_eq!(known(&Err(Error::Closed), &record, here), Known::Unknown);
    }

    #[test]
    fn pinned_and_unconsumed_losses_are_named() {
        let mut losses = Losses::default();
        assert!(losses.is_empty());
        losses.count(record("default", "plain", Attributes::default()));
        assert_eq!(losses.to_string(), "1 object (7 B) has its only copy here");
        losses.count(record(
            "default",
            "a",
            Attributes { pins: vec!["run".to_owned()], ..Attributes::default() },
        ));
        losses.count(record("b", "b", Attributes { sample: Some(Box::default()), ..Attributes::default() }));
        let named = ", among them 1 pinned and 1 unconsumed: `a`, `b` of namespace `b`";
        assert_eq!(losses.to_string(), format!("3 objects (21 B) have their only copy here{named}"));
        for number in 0..NAMES_MAX {
            let key = number.to_string();
            losses.count(record(
                "default",
                &key,
                Attributes { pins: vec![String::new()], ..Attributes::default() },
            ));
        }
        assert_eq!(losses.names.len(), NAMES_MAX);
        assert!(losses.to_string().ends_with(", …"));
    }
}
