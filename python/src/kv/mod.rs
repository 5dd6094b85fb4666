//! The KV hierarchy in Python, on which `tiffin.kv` is built.
//!
//! | module | purpose |
//! |---|---|
//! | `engine` | the class: a step is one call, with the interpreter released |
//! | `settings` | the configuration of an engine, from arguments |
//! | `convert` | inputs from tuples, and results as tuples |
//! | `python_objects` | a store, a device and a collective that are Python objects |
//! | `layers` | arrays of a CUDA device, as the device of an engine |
//! | `memory` | memory of Python, in pages |

mod convert;
mod engine;
mod layers;
mod memory;
mod python_objects;
mod settings;

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tiffin_kv::{ChainHash, RankPart, hash};
use tiffin_kv_exec::PageName;

use crate::errors::invalid;
use convert::{Coordinates, Mediums, Names};

/// Adds the classes and functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::KvEngine>()?;
    module.add_class::<layers::KvLayers>()?;
    module.add_function(wrap_pyfunction!(kv_chain, module)?)?;
    module.add_function(wrap_pyfunction!(kv_names, module)?)?;
    module.add_function(wrap_pyfunction!(settings::kv_settings, module)?)?;
    module.add_function(wrap_pyfunction!(kv_replay, module)?)
}

/// The root of a namespace, and the hashes of the full pages among these tokens.
#[pyfunction]
fn kv_chain<'py>(
    py: Python<'py>,
    namespace: Names,
    page_tokens: u32,
    tokens: &[u8],
    media: Mediums,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
    if page_tokens == 0 {
        return Err(invalid(py, "a page has 0 tokens\n\nhint: 16 to 64 are usual"));
    }
    let (root, hashes) = py.detach(|| {
        let root = convert::namespace(namespace).root(page_tokens);
        let (tokens, media) = (convert::tokens(tokens), convert::media(media));
        (root, hash::chain(root, 0, page_tokens, &tokens, &media))
    });
    let bytes = |ChainHash(hash): &ChainHash| PyBytes::new(py, hash);
    Ok((bytes(&root), hashes.iter().map(bytes).collect()))
}

/// The names of these pages of a rank in a shared store.
#[pyfunction]
fn kv_names(root: [u8; 16], rank: Coordinates, hashes: Vec<[u8; 16]>) -> Vec<String> {
    let rank: RankPart = convert::rank(rank);
    let name = |hash: [u8; 16]| PageName::new(ChainHash(root), &rank, ChainHash(hash)).as_str().to_owned();
    hashes.into_iter().map(name).collect()
}

/// The output of `tiffin kv replay` for these arguments, as JSON.
#[pyfunction]
fn kv_replay(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<String> {
    py.detach(|| tiffin_cli::kv_replay(arguments)).map_err(|text| invalid(py, text))
}
