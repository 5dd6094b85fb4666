//! The counters of an engine.

/// Counters since the start. They count pages, unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were accepted.
    pub requests: u64,
    /// Inputs that were refused.
    pub refused: u64,
    /// Inputs for a request that do not apply in its state.
    pub ignored: u64,
    /// Completions of operations that are not in flight: late, repeated or never issued (L1).
    pub stray_acks: u64,
    /// Outcomes that name more pages than their operation has.
    pub excessive_acks: u64,
    /// Probes of the store.
    pub probes: u64,
    /// Requests that did not probe because the store had failed shortly before.
    pub cooled: u64,
    /// Pages requested from the store.
    pub fetch_issued: u64,
    /// Pages received from the store.
    pub fetched: u64,
    /// Times that a request joined the fetch of another request.
    pub joined: u64,
    /// Fetched pages that a request used.
    pub prefetch_used: u64,
    /// Fetched pages that were evicted before a request used them.
    pub prefetch_wasted: u64,
    /// Requests that stopped waiting before all pages had arrived.
    pub prefetch_late: u64,
    /// Requests whose promised pages were all there when they ran.
    pub prefetch_in_time: u64,
    /// Pages that went to the device.
    pub loaded: u64,
    /// Pages that went to the host.
    pub saved: u64,
    /// Pages that were not saved because the host was full.
    pub saves_skipped: u64,
    /// Saved pages whose device memory a request waited for.
    pub written_back: u64,
    /// Copies that left the device under write-back without a save, because saves failed.
    pub lost_unsaved: u64,
    /// Pages that went to the store.
    pub backed_up: u64,
    /// Backups that were skipped because the queue was full.
    pub backups_skipped: u64,
    /// Computed pages of which the index had a copy already.
    pub duplicates: u64,
    /// Copies that were evicted from the device.
    pub evicted_device: u64,
    /// Copies that were evicted from the host.
    pub evicted_host: u64,
    /// Times that a request was retracted from the device.
    pub retractions: u64,
    /// Operations that were abandoned: no request waited for them any more.
    pub abandoned: u64,
}

impl Stats {
    /// Every counter by its name, in order.
    ///
    /// # Errors
    /// The first error of `tell`, which is not called again after it.
    pub fn each<E>(&self, mut tell: impl FnMut(&'static str, u64) -> Result<(), E>) -> Result<(), E> {
        macro_rules! tell {
            ($($name:ident),* $(,)?) => {{
                // A counter that is missing here is a compile error.
                let Self { $($name),* } = *self;
                $(tell(stringify!($name), $name)?;)*
            }};
        }
        tell!(
            requests,
            refused,
            ignored,
            stray_acks,
            excessive_acks,
            probes,
            cooled,
            fetch_issued,
            fetched,
            joined,
            prefetch_used,
            prefetch_wasted,
            prefetch_late,
            prefetch_in_time,
            loaded,
            saved,
            saves_skipped,
            written_back,
            lost_unsaved,
            backed_up,
            backups_skipped,
            duplicates,
            evicted_device,
            evicted_host,
            retractions,
            abandoned,
        );
        Ok(())
    }
}
