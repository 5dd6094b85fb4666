//! Events for routers: messages about stored and removed objects, published through ZeroMQ in Mooncake's
//! format.
//!
//! Events are lossy. A full queue drops its oldest event, and subscribers see a gap in the sequence
//! numbers. **Invariant:** the queue has at most [`EventsConfig::queue_max`] events, no event has a key of
//! more than [`EVENT_KEY_BYTES_MAX`], and there are at most [`SUBSCRIBERS_MAX`] subscribers.

#![expect(clippy::big_endian_bytes, reason = "ZMTP and MessagePack are big-endian")]

mod msgpack;
mod zmtp;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use msgpack::Value;
use tiffin_rpc::Address;
use tiffin_types::Key;
use tokio::net::TcpListener;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;

/// The maximum number of subscribers.
pub const SUBSCRIBERS_MAX: usize = 256;
/// The maximum number of events in a message.
pub const BATCH_EVENTS_MAX: usize = 64;
/// The maximum length of a key in an event, in bytes. Events of longer keys count as dropped.
pub const EVENT_KEY_BYTES_MAX: usize = 4 << 10;
/// The maximum number of messages that wait for a slow subscriber.
const MESSAGES_MAX: usize = 1 << 8;
/// The pause after a failed accept, which means that the process is out of descriptors.
const ACCEPT_REST: std::time::Duration = std::time::Duration::from_millis(50);

/// How events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// The address for subscribers.
    pub listen: Address,
    /// The name of this store in events.
    pub backend_id: String,
    /// Whether events also have the fields of the older format.
    pub legacy: bool,
    /// Whether events have the key. Without it, an object whose key is not a hash has no event.
    pub object_key: bool,
    /// The maximum number of events that wait for publication.
    pub queue_max: usize,
}

/// Counts of published and dropped events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) batches: u64,
    pub(crate) events: u64,
    pub(crate) dropped: u64,
    pub(crate) unparsed: u64,
}

#[derive(Debug)]
struct Event {
    id: u64,
    time_ms: u64,
    is_stored: bool,
    on_disk: bool,
    tenant: String,
    key: Key,
    hash: Option<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    next_id: u64,
    /// The sequence number of the last message.
    sequence: u64,
    /// The number of events that were dropped since then.
    gap: u64,
    counts: Counts,
}

/// The events that wait for publication.
#[derive(Debug)]
pub(crate) struct Events {
    config: EventsConfig,
    queue: Mutex<Queue>,
    filled: Notify,
}

impl Events {
    pub(crate) fn new(config: EventsConfig) -> Self {
        Self { config, queue: Mutex::default(), filled: Notify::new() }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Queues an event: an object was stored or removed.
    pub(crate) fn push(&self, is_stored: bool, tenant: &str, key: &Key, on_disk: bool) {
        let hash = hash_of(key.as_bytes());
        let mut queue = self.lock();
        if hash.is_none() {
            queue.counts.unparsed += 1;
            if !self.config.object_key {
                return;
            }
        }
        let is_long = key.as_bytes().len() > EVENT_KEY_BYTES_MAX;
        if is_long || queue.events.len() >= self.config.queue_max {
            queue.gap += 1;
            queue.counts.dropped += 1;
            if is_long {
                return;
            }
            queue.events.pop_front();
        }
        queue.next_id += 1;
        let (id, tenant, key, time_ms) = (queue.next_id, tenant.to_owned(), key.clone(), now_ms());
        queue.events.push_back(Event { id, time_ms, is_stored, on_disk, tenant, key, hash });
        drop(queue);
        self.filled.notify_one();
    }

    /// Encodes the next message, if events wait.
    fn take(&self) -> Option<Vec<u8>> {
        let mut queue = self.lock();
        if queue.events.is_empty() {
            return None;
        }
        let count = queue.events.len().min(BATCH_EVENTS_MAX);
        let events: Vec<_> = queue.events.drain(..count).collect();
        queue.sequence += 1 + std::mem::take(&mut queue.gap);
        let sequence = queue.sequence;
        queue.counts.batches += 1;
        queue.counts.events += events.len() as u64;
        drop(queue);
        let described = events.iter().map(|event| self.describe(event)).collect();
        let batch = Value::List(vec![Value::Number(now_ms()), Value::List(described), Value::Number(0)]);
        let mut payload = Vec::new();
        batch.write(&mut payload);
        Some(zmtp::message(&[b"", &sequence.to_be_bytes(), &payload]))
    }

    fn describe<'a>(&'a self, event: &'a Event) -> Value<'a> {
        let key = event.key.as_bytes();
        let hashes =
            |to_value: fn(u64) -> Value<'a>| Value::List(event.hash.into_iter().map(to_value).collect());
        let stored = event.is_stored;
        let mut map = vec![
            ("event_id", Value::Number(event.id)),
            ("timestamp", Value::Number(event.time_ms)),
            ("event_type", Value::Text(if stored { "stored" } else { "removed" })),
        ];
        if self.config.legacy {
            map.push(("type", Value::Text(if stored { "BlockStored" } else { "BlockRemoved" })));
        }
        for name in ["model_name", "block_size", "additional_salt", "lora_name"] {
            map.push((name, Value::Nil));
        }
        map.push(("tenant_id", Value::Text(&event.tenant)));
        map.push(("backend_id", Value::Text(&self.config.backend_id)));
        map.push(("group_id", Value::Nil));
        map.push(("medium", Value::Text(if event.on_disk { "disk" } else { "cpu" })));
        map.push(("dp_rank", Value::Nil));
        if self.config.object_key {
            map.push(("object_key", str::from_utf8(key).map_or(Value::Bytes(key), Value::Text)));
        }
        map.push(("seq_hashes", hashes(Value::Number)));
        if self.config.legacy {
            map.push(("block_hashes", hashes(|hash| Value::Signed(hash.cast_signed()))));
        }
        map.push(("base_block_idx", if stored { Value::Number(0) } else { Value::Nil }));
        if stored {
            map.push(("parent_hash", Value::Nil));
            map.push(("token_ids", Value::Nil));
            if self.config.legacy {
                map.push(("parent_block_hash", Value::Nil));
            }
        }
        Value::Map(map)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The lock is held for one event or batch; a panic leaves no partial state.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes events until it is dropped.
pub(crate) async fn publish(events: Arc<Events>, listener: TcpListener) {
    let (sender, _) = broadcast::channel(MESSAGES_MAX);
    let mut subscribers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    while subscribers.try_join_next().is_some() {}
                    // A subscriber beyond the limit is closed at once, and may reconnect.
                    if subscribers.len() < SUBSCRIBERS_MAX {
                        let messages = sender.subscribe();
                        subscribers.spawn(async move {
                            if let Err(error) = zmtp::serve(stream, messages).await {
                                tracing::debug!(%error, "event subscriber disconnected");
                            }
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for events");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            },
            () = events.filled.notified() => {
                while let Some(message) = events.take() {
                    // Without subscribers the message is lost, as with ZeroMQ.
                    let _nobody = sender.send(Arc::<[u8]>::from(message));
                }
            }
        }
    }
}

/// The hash that a key encodes, if any: a decimal number, or a hexadecimal one after `0x`.
fn hash_of(key: &[u8]) -> Option<u64> {
    let text = str::from_utf8(key).ok()?;
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|it| it.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        None if text.bytes().all(|it| it.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(queue_max: usize, object_key: bool) -> Events {
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = EventsConfig { listen, backend_id: "b".to_owned(), legacy: true, object_key, queue_max };
        Events::new(config)
    }

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn hashes_are_numbers() {
        for (text, expected) in [
            ("12", Some(12)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0xff", Some(255)),
            ("0x", None),
            ("+1", None),
            ("0x+1", None),
            ("a", None),
        ] {
            assert_eq!(hash_of(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn full_queue_drops_its_oldest_event() {
        let events = events(3, true);
        (1..=3).for_each(|number| events.push(true, "t", &key(&number.to_string()), false));
        assert_eq!(events.counts().dropped, 0);
        events.push(false, "t", &key("4"), false);
        let message = events.take().unwrap();
        // An empty frame, then the frame of the sequence number, each after flags and length.
        assert_eq!(message[..4], [1, 0, 1, 8]);
        assert_eq!(message[4..12], 2_u64.to_be_bytes());
        assert_eq!(events.counts(), Counts { batches: 1, events: 3, dropped: 1, unparsed: 0 });
        assert!(events.take().is_none());
    }

    #[test]
    fn too_long_key_causes_a_gap() {
        let events = events(3, true);
        events.push(true, "t", &key(&"k".repeat(EVENT_KEY_BYTES_MAX)), false);
        assert_eq!(events.counts().dropped, 0);
        events.push(true, "t", &key(&"k".repeat(EVENT_KEY_BYTES_MAX + 1)), false);
        let message = events.take().unwrap();
        assert_eq!(message[4..12], 2_u64.to_be_bytes());
        assert_eq!(events.counts(), Counts { batches: 1, events: 1, dropped: 1, unparsed: 2 });
    }

    #[test]
    fn batch_is_bounded_and_other_keys_need_the_key_field() {
        let many = events(1000, true);
        (0..=BATCH_EVENTS_MAX).for_each(|number| many.push(true, "t", &key(&number.to_string()), false));
        many.take().unwrap();
        assert_eq!(many.counts().events, BATCH_EVENTS_MAX as u64);
        many.take().unwrap();
        assert_eq!(many.counts().events, BATCH_EVENTS_MAX as u64 + 1);
        let hashes_only = events(10, false);
        hashes_only.push(true, "t", &key("text"), false);
        assert!(hashes_only.take().is_none());
        assert_eq!(hashes_only.counts().unparsed, 1);
    }
}
