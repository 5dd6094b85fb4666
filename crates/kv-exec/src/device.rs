//! The device: the memory on which the model computes.

use std::sync::Arc;

use tiffin_transport::copy::copy;
use tiffin_transport::gpu::Stream;

use crate::load::LoadProgress;
use crate::pages::{PageReadGuard, PageWriteGuard, Pages};
use crate::store::{Fault, Stop};

/// The memory on which the model computes. Threads of the executor make the calls, which may block.
///
/// **Contract.** After a call has returned or panicked, it no longer accesses the pages that it was given.
/// Results are numbers of leading pages.
pub trait Device: Send + Sync + 'static {
    /// Copies pages of the host to pages of the device.
    fn load(&self, pages: &[(PageReadGuard<'_>, u32)], stop: &Stop) -> Result<u32, Fault>;

    /// The same after a fence, if there is one. A device that loads layer by layer reports in `progress`
    /// which layers are queued.
    fn load_after(
        &self,
        fence: Option<&dyn Fence>,
        pages: &[(PageReadGuard<'_>, u32)],
        _progress: &LoadProgress,
        stop: &Stop,
    ) -> Result<u32, Fault> {
        fence.map_or(Ok(()), |fence| fence.wait(stop))?;
        self.load(pages, stop)
    }

    /// Copies pages of the device to pages of the host.
    fn save(&self, pages: &[(u32, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault>;

    /// The work that the caller of a step has begun on the device, and that may not have ended; `None` if
    /// there is none. The loads and saves of that step begin when it has ended. The step makes this call,
    /// which must not block.
    fn fence(&self) -> Result<Option<Arc<dyn Fence>>, Fault> {
        Ok(None)
    }
}

/// Work on a device that comes before an operation.
pub trait Fence: Send + Sync {
    /// Waits until the work has ended, or the operation is stopped, which is an error.
    fn wait(&self, stop: &Stop) -> Result<(), Fault>;

    /// Lets later work of a stream come after the work, without a wait of the caller. False if only
    /// [`Self::wait`] can do that.
    fn order(&self, _then: Stream) -> Result<bool, Fault> {
        Ok(false)
    }
}

/// A device in host memory: an array or a tensor.
#[derive(Debug)]
pub struct HostDevice {
    pages: Arc<Pages>,
}

impl HostDevice {
    /// A device of these pages.
    #[must_use]
    pub fn new(pages: Arc<Pages>) -> Self {
        Self { pages }
    }
}

impl Device for HostDevice {
    fn load(&self, pages: &[(PageReadGuard<'_>, u32)], stop: &Stop) -> Result<u32, Fault> {
        let mut done = 0;
        for (source, page) in pages.iter().take_while(|_| !stop.should_stop()) {
            let target = self.pages.write(*page).ok_or(Fault::Page(*page))?;
            copy(source.bytes(), target.bytes());
            done += 1;
        }
        Ok(done)
    }

    fn save(&self, pages: &[(u32, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault> {
        let mut done = 0;
        for (page, target) in pages.iter().take_while(|_| !stop.should_stop()) {
            let source = self.pages.read(*page).ok_or(Fault::Page(*page))?;
            copy(source.bytes(), target.bytes());
            done += 1;
        }
        Ok(done)
    }
}
