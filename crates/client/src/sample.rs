//! Samples: groups of tensors that are put as one object and consumed.
//!
//! A sample is one object: a header followed by the tensors. So its parts are reserved together, visible
//! together, validated by one stamp, and freed together. No part of it can be missing.

use std::collections::BTreeSet;

use tiffin_transport::SourceBuf;
use tiffin_types::attributes::Consumption;
use tiffin_types::message::PutOptions;
use tiffin_types::{ATTRIBUTES_MAX, Generation, Key, OWNER_BYTES_MAX};

use crate::inner::Inner;
use crate::manifest::{Dtype, Manifest, TENSOR_ALIGN, Tensor};
use crate::put;
use crate::{Deadline, Error, Put, PutEffect, SpaceWait};

/// The bytes between the end of one part and the start of the next.
const PADDING: [u8; TENSOR_ALIGN as usize] = [0; TENSOR_ALIGN as usize];

/// One tensor to put.
#[derive(Clone, Debug)]
pub struct TensorRef<'a> {
    /// Its name, unique in the sample.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, the slowest first; none for a scalar.
    pub shape: Vec<u64>,
    /// Its bytes, in order. If they change before the put has ended, the stored bytes are unspecified.
    pub parts: Vec<SourceBuf<'a>>,
}

impl<'a> TensorRef<'a> {
    /// A tensor whose bytes are contiguous.
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[u64], bytes: &'a [u8]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec(), parts: vec![SourceBuf::from(bytes)] }
    }

    /// Total number of bytes; saturates if the sum overflows.
    fn len(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.len() as u64))
    }
}

/// One sample to put.
#[derive(Clone, Debug)]
pub struct SamplePut<'a> {
    /// Its name.
    pub id: Key,
    /// The tensors: at least one, each with a unique name.
    pub tensors: Vec<TensorRef<'a>>,
    /// Free-form bytes stored with the tensors, JSON for example.
    pub metadata: &'a [u8],
    /// Which groups are to consume it. It is not evicted before.
    pub consumption: Consumption,
    /// Copies, pins, and whether it may replace an older sample of that name. Its `sample` field is
    /// ignored.
    pub options: PutOptions,
}

impl<'a> SamplePut<'a> {
    /// One copy of these tensors, to be consumed once. It replaces a sample of that name if there is one.
    #[must_use]
    pub fn new(id: Key, tensors: Vec<TensorRef<'a>>) -> Self {
        let options = PutOptions { replicas: 1, ..PutOptions::default() };
        Self { id, tensors, metadata: &[], consumption: Consumption::Once, options }
    }
}

/// A stored sample, as a producer announces it to its consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRef {
    /// Its name.
    pub id: Key,
    /// Which put of the name it is.
    pub generation: Generation,
    /// Total length of the object.
    pub len: u64,
    /// It replaced an older sample of that name, whose refs are invalid now.
    pub replaced: bool,
    /// See [`Stored::unconfirmed`](crate::Stored::unconfirmed).
    pub unconfirmed: Vec<String>,
}

pub(crate) async fn put_samples(
    inner: &Inner,
    samples: &[SamplePut<'_>],
    space_wait: SpaceWait,
    deadline: Deadline,
) -> Vec<Result<SampleRef, Error>> {
    let manifests: Vec<_> = samples.iter().map(manifest).collect();
    let headers: Vec<_> =
        manifests.iter().map(|it| it.as_ref().map_or_else(|_| Vec::new(), Manifest::encode)).collect();
    let good = || samples.iter().zip(&manifests).zip(&headers).filter(|((_, it), _)| it.is_ok());
    let puts: Vec<_> = good()
        .filter_map(|((sample, manifest), header)| Some(to_put(sample, manifest.as_ref().ok()?, header)))
        .collect();
    let mut stored = put::put(inner, &puts, space_wait, deadline).await.into_iter();
    let results = samples.iter().zip(&manifests).map(|(sample, manifest)| {
        let manifest = manifest.as_ref().map_err(Error::clone)?;
        let stored = stored.next().unwrap_or_else(|| Err(Error::misfit()))?;
        match stored.effect {
            PutEffect::Kept => Err(Error::Exists { key: sample.id.clone(), generation: stored.generation }),
            effect => Ok(SampleRef {
                id: sample.id.clone(),
                generation: stored.generation,
                len: manifest.len,
                replaced: effect == PutEffect::Replaced,
                unconfirmed: stored.unconfirmed,
            }),
        }
    });
    results.collect()
}

fn manifest(sample: &SamplePut<'_>) -> Result<Manifest, Error> {
    let tensors = sample.tensors.iter().map(|it| Tensor {
        name: it.name.clone(),
        dtype: it.dtype,
        shape: it.shape.clone(),
        offset: 0,
        bytes: it.len(),
    });
    let checked = check_groups(&sample.consumption);
    let manifest = checked.and_then(|()| Manifest::lay_out(tensors.collect(), sample.metadata));
    manifest.map_err(|why| Error::invalid(format!("sample `{}`: {why}", sample.id)))
}

fn check_groups(consumption: &Consumption) -> Result<(), String> {
    let Consumption::Groups(groups) = consumption else { return Ok(()) };
    if groups.is_empty() || groups.len() > ATTRIBUTES_MAX {
        return Err(format!(
            "it names {} consumer groups; the number must be 1 to {ATTRIBUTES_MAX}",
            groups.len()
        ));
    }
    let mut names = BTreeSet::new();
    for group in groups {
        if group.len() > OWNER_BYTES_MAX {
            return Err(format!("a group's name has {} bytes, more than {OWNER_BYTES_MAX}", group.len()));
        }
        if !names.insert(group) {
            return Err(format!("it names the group `{group}` twice"));
        }
    }
    Ok(())
}

/// The sample as one object.
fn to_put<'a>(sample: &SamplePut<'a>, manifest: &Manifest, header: &'a [u8]) -> Put<'a> {
    let mut parts = vec![SourceBuf::from(header)];
    let mut end = header.len() as u64;
    for (tensor, place) in sample.tensors.iter().zip(&manifest.tensors) {
        let gap = PADDING.get(..(place.offset - end) as usize).unwrap_or_default();
        parts.push(SourceBuf::from(gap));
        parts.extend(&tensor.parts);
        end = place.offset + place.bytes;
    }
    let options = PutOptions { sample: Some(sample.consumption.clone()), ..sample.options.clone() };
    Put { key: sample.id.clone(), parts, options }
}
