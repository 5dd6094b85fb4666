//! A store, a device and a collective that are Python objects, called from our threads.
//!
//! The store is Mooncake's own class, `MooncakeDistributedStore`, or any object with its three batched calls,
//! which release the interpreter while they move bytes.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tiffin_kv_exec::{
    Device, Fault, Gather, GatherError, PageName, PageReadGuard, PageStore, PageWriteGuard, Stop,
};

use super::convert::page_ids;
use crate::runtime;

/// Mooncake's answer for an object that exists.
const IS_THERE: i64 = 1;
/// Mooncake's answer for success.
const IS_OK: i64 = 0;

/// A store with `batch_is_exist`, `batch_get_into` and `batch_put_from`.
pub(super) struct PythonStore {
    pub(super) store: Py<PyAny>,
    /// The option with which a probe prefetches, if the store has it.
    pub(super) exist_options: Option<Py<PyAny>>,
}

impl PageStore for PythonStore {
    fn probe(&self, names: &[PageName], _stop: &Stop) -> Result<u32, Fault> {
        let said = self.ask("batch_is_exist", names.iter(), None)?;
        Ok(leading(&said, |_, number| number == IS_THERE))
    }

    fn fetch(&self, pages: &[(PageName, PageWriteGuard<'_>)], _stop: &Stop) -> Result<u32, Fault> {
        let (addresses, sizes): (Vec<_>, Vec<_>) =
            pages.iter().map(|(_, page)| (page.bytes().as_mut_ptr() as usize, page.bytes().len())).unzip();
        let names = pages.iter().map(|(name, _)| name);
        let said = self.ask("batch_get_into", names, Some((&addresses, &sizes)))?;
        Ok(leading(&said, |at, number| sizes.get(at).is_some_and(|size| i64::try_from(*size) == Ok(number))))
    }

    fn back_up(&self, pages: &[(PageName, PageReadGuard<'_>)], _stop: &Stop) -> Result<u32, Fault> {
        let (addresses, sizes): (Vec<_>, Vec<_>) =
            pages.iter().map(|(_, page)| (page.bytes().as_ptr() as usize, page.bytes().len())).unzip();
        let names = pages.iter().map(|(name, _)| name);
        let said = self.ask("batch_put_from", names, Some((&addresses, &sizes)))?;
        match said.first() {
            Some(code) if *code != IS_OK => Err(Fault::Other(format!("batch_put_from answered {code}"))),
            _ => Ok(leading(&said, |_, number| number == IS_OK)),
        }
    }

    fn drop_all(&self, prefix: &str, _stop: &Stop) -> Result<(), Fault> {
        within(|py| {
            let removed = self.store.call_method1(py, "remove_by_regex", (format!("^{prefix}"), true))?;
            removed.extract::<i64>(py)
        })
        .and_then(|count| {
            if count < 0 { Err(Fault::Other(format!("remove_by_regex answered {count}"))) } else { Ok(()) }
        })
    }

    fn register(&self, address: usize, bytes: usize) -> Result<(), Fault> {
        within(|py| self.store.call_method1(py, "register_buffer", (address, bytes))?.extract::<i64>(py))
            .and_then(|code| {
                let said = || Fault::Other(format!("register_buffer answered {code}"));
                if code == IS_OK { Ok(()) } else { Err(said()) }
            })
    }

    fn unregister(&self, address: usize) {
        // If the call fails, the store has ended, and the registration with it.
        let _ = within(|py| self.store.call_method1(py, "unregister_buffer", (address,)).map(drop));
    }
}

impl PythonStore {
    /// One of the batched calls: keys, and the memory of each, if there is any.
    fn ask<'a>(
        &self,
        method: &str,
        names: impl ExactSizeIterator<Item = &'a PageName>,
        memory: Option<(&[usize], &[usize])>,
    ) -> Result<Vec<i64>, Fault> {
        within(|py| {
            let keys = PyList::new(py, names.map(PageName::as_str))?;
            let said = match (memory, &self.exist_options) {
                (Some((addresses, sizes)), _) => {
                    self.store.call_method1(py, method, (keys, addresses, sizes))?
                }
                (None, Some(options)) => self.store.call_method1(py, method, (keys, options))?,
                (None, None) => self.store.call_method1(py, method, (keys,))?,
            };
            said.extract(py)
        })
    }
}

/// A device with `load(host_pages, device_pages)` and `save(device_pages, host_pages)`.
pub(super) struct PythonDevice(pub(super) Py<PyAny>);

impl PythonDevice {
    /// Passes two lists of page ids, and returns the number of completed pages; `None` means all.
    fn call(&self, method: &str, from: &[u32], to: &[u32]) -> Result<u32, Fault> {
        within(|py| {
            let done = self.0.call_method1(py, method, (page_ids(py, from), page_ids(py, to)))?;
            Ok(done.extract::<Option<u32>>(py)?.unwrap_or(u32::MAX))
        })
    }
}

impl Device for PythonDevice {
    fn load(&self, pages: &[(PageReadGuard<'_>, u32)], _stop: &Stop) -> Result<u32, Fault> {
        let (host, device): (Vec<_>, Vec<_>) = pages.iter().map(|(host, to)| (host.page(), *to)).unzip();
        self.call("load", &host, &device)
    }

    fn save(&self, pages: &[(u32, PageWriteGuard<'_>)], _stop: &Stop) -> Result<u32, Fault> {
        let (device, host): (Vec<_>, Vec<_>) = pages.iter().map(|(from, host)| (*from, host.page())).unzip();
        self.call("save", &device, &host)
    }
}

/// A callable that takes bytes and returns the bytes of all ranks, in order.
pub(super) struct PythonGather(pub(super) Py<PyAny>);

impl Gather for PythonGather {
    fn all_gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, GatherError> {
        let gathered = within(|py| {
            let all = self.0.bind(py).call1((PyBytes::new(py, &mine),))?;
            all.try_iter()?.map(|word| word?.extract::<Vec<u8>>()).collect::<PyResult<Vec<_>>>()
        });
        gathered.map_err(|fault| GatherError::Other(fault.to_string()))
    }
}

/// Calls Python; an exception becomes a fault.
fn within<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Fault> {
    let done = runtime::enter(|py| work(py).map_err(|error| Fault::Other(error.to_string())));
    done.unwrap_or_else(|| Err(Fault::Other("the interpreter is shutting down".to_owned())))
}

fn leading(said: &[i64], is_good: impl Fn(usize, i64) -> bool) -> u32 {
    said.iter().enumerate().take_while(|(at, number)| is_good(*at, **number)).count() as u32
}
