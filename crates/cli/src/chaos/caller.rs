//! Performs calls, verifies what they return, and says what was learned.

use std::collections::BTreeMap;
use std::time::Duration;

use tiffin_client::{
    Acked, Client, ConnectOptions, Deadline, DeleteOptions, Dtype, Error, Generation, GetOptions, Key,
    OnExists, Put, PutEffect, PutOptions, ResolveOptions, SamplePut, SpaceWait, TensorRef,
};

use super::record::{Answer, Call, Class, KeyId, failed};
use crate::console::Failure;
use crate::torture::pattern;

/// The consumer group of samples.
const GROUP: &str = "chaos";
/// The name of a sample's tensor.
const TENSOR: &str = "t";

/// A client that performs recorded calls.
pub(crate) struct Caller {
    pub(crate) client: Client,
    /// Time limit of a call.
    pub(crate) call_time: Duration,
    /// The generation of each value that this client has stored or read.
    generations: BTreeMap<u64, Generation>,
}

impl Caller {
    /// Connects.
    pub(crate) async fn connect(options: ConnectOptions, call_time: Duration) -> Result<Self, Error> {
        let client = Client::connect(options).await?;
        Ok(Self { client, call_time, generations: BTreeMap::new() })
    }

    /// The same client, for calls at the same time. It knows no generations yet.
    pub(crate) fn another(&self) -> Self {
        Self { client: self.client.clone(), call_time: self.call_time, generations: BTreeMap::new() }
    }

    /// Whether a value can be named in a call that needs its generation.
    pub(crate) fn knows(&self, value: u64) -> bool {
        self.generations.contains_key(&value)
    }

    /// Performs a call. `len` is the length of a value that it stores.
    pub(crate) async fn call(&mut self, id: KeyId, what: Call, len: usize) -> Result<Answer, Failure> {
        let key = id.key()?;
        Ok(match what {
            Call::Put { value } => self.put(id, key, value, len, id.options()).await,
            Call::Create { value } => {
                let options = PutOptions { on_exists: OnExists::Keep, ..id.options() };
                self.put(id, key, value, len, options).await
            }
            Call::Swap { expected, value } => {
                let replaces = self.generations.get(&expected).copied();
                self.put(id, key, value, len, PutOptions { replaces, ..id.options() }).await
            }
            Call::Delete => match only(self.client.delete(&[key], forced(), self.deadline()).await) {
                Ok(existed) => Answer::Deleted(existed),
                Err(error) => failed(&error),
            },
            Call::Exists => {
                let options = ResolveOptions::default();
                match only(self.client.exists(&[key], options, self.deadline()).await) {
                    Ok(present) => Answer::Present(present),
                    Err(error) => Answer::Nothing(error.to_string()),
                }
            }
            Call::Get if id.class() == Class::Sample => self.lease(id, key).await,
            Call::Get => self.get(id, key).await,
            Call::Ack { expected } => {
                let generation = self.generations.get(&expected).copied().unwrap_or_default();
                match only(self.client.ack(&[(key, generation)], GROUP, self.deadline()).await) {
                    Ok(Acked::Freed) => Answer::Freed,
                    Ok(Acked::Stale) => Answer::Stale,
                    Ok(Acked::Recorded) => Answer::Nothing("recorded".to_owned()),
                    Err(error) => failed(&error),
                }
            }
        })
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.call_time)
    }

    async fn put(&mut self, id: KeyId, key: Key, value: u64, len: usize, options: PutOptions) -> Answer {
        let mut bytes = vec![0; len.max(pattern::HEAD_BYTES)];
        pattern::fill(&mut bytes, id.0, value);
        if id.class() == Class::Sample {
            return self.put_sample(key, value, &bytes, options).await;
        }
        let put = Put { options, ..Put::new(key, &bytes) };
        match only(self.client.put(&[put], self.deadline()).await) {
            Ok(stored) if stored.effect == PutEffect::Kept => Answer::Kept,
            Ok(stored) => {
                self.generations.insert(value, stored.generation);
                let replaced = stored.effect == PutEffect::Replaced;
                let is_confirmed = stored.unconfirmed.is_empty();
                Answer::Stored { replaced, copies: stored.copies, is_confirmed }
            }
            Err(error) => failed(&error),
        }
    }

    async fn put_sample(&mut self, key: Key, value: u64, bytes: &[u8], options: PutOptions) -> Answer {
        let tensors = vec![TensorRef::new(TENSOR, Dtype::U8, &[bytes.len() as u64], bytes)];
        let sample = SamplePut { options, ..SamplePut::new(key, tensors) };
        match only(self.client.put_samples(&[sample], SpaceWait::Never, self.deadline()).await) {
            Ok(stored) => {
                self.generations.insert(value, stored.generation);
                let is_confirmed = stored.unconfirmed.is_empty();
                Answer::Stored { replaced: stored.replaced, copies: 1, is_confirmed }
            }
            Err(Error::Exists { .. }) => Answer::Kept,
            Err(error) => failed(&error),
        }
    }

    async fn get(&mut self, id: KeyId, key: Key) -> Answer {
        match only(self.client.get(&[key], GetOptions::default(), self.deadline()).await) {
            Ok(object) => self.verify(id, object.generation, &object.bytes),
            Err(Error::NotFound { .. }) => Answer::Absent,
            Err(error) => Answer::Nothing(error.to_string()),
        }
    }

    async fn lease(&mut self, id: KeyId, key: Key) -> Answer {
        let deadline = self.deadline();
        let lease = match only(self.client.lease(&[(key, None)], GROUP, deadline).await) {
            Ok(lease) => lease,
            Err(Error::NotFound { .. }) => return Answer::Absent,
            Err(error) => return Answer::Nothing(error.to_string()),
        };
        match lease.read(&[TENSOR], deadline).await {
            Ok(tensors) => {
                let bytes = tensors.into_iter().next().unwrap_or_default();
                self.verify(id, lease.generation(), &bytes)
            }
            Err(error) => Answer::Nothing(error.to_string()),
        }
    }

    fn verify(&mut self, id: KeyId, generation: Generation, bytes: &[u8]) -> Answer {
        match pattern::check(bytes, id.0) {
            Ok(value) => {
                let known = *self.generations.entry(value).or_insert(generation);
                match known == generation {
                    true => Answer::Value(value),
                    false => Answer::Wrong(format!("{value:x} is generation {generation}, and was {known}")),
                }
            }
            Err(what) => Answer::Wrong(what),
        }
    }
}

fn forced() -> DeleteOptions {
    DeleteOptions { force: true }
}

/// The outcome of a batch of one.
fn only<T>(results: Vec<Result<T, Error>>) -> Result<T, Error> {
    results.into_iter().next().unwrap_or(Err(Error::Closed))
}
