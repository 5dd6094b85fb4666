//! What an engine counts.

/// What happened so far. Pages, unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were taken.
    pub requests: u64,
    /// Inputs that count for nothing.
    pub refused: u64,
    /// Requests that were told something that means nothing in their state.
    pub ignored: u64,
    /// Completions of operations that are not under way: late, repeated or never issued (L1).
    pub stray_acks: u64,
    /// Outcomes that name more pages than their operation has.
    pub excessive_acks: u64,
    /// Questions to the store.
    pub probes: u64,
    /// Requests that did not ask because the store had failed shortly before.
    pub cooled: u64,
    /// Pages asked for from the store.
    pub fetch_issued: u64,
    /// Of these, the ones that came.
    pub fetched: u64,
    /// Pages that a request waited for although another one had asked for them.
    pub joined: u64,
    /// Fetched and used by a request.
    pub prefetch_used: u64,
    /// Fetched and gone before anybody used them.
    pub prefetch_wasted: u64,
    /// Requests that stopped waiting before all had come.
    pub prefetch_late: u64,
    /// Requests whose promised pages were all there when they ran.
    pub prefetch_in_time: u64,
    /// Pages that went to the device.
    pub loaded: u64,
    /// Pages that went to the host.
    pub saved: u64,
    /// Pages that were not saved because the host had no room.
    pub saves_skipped: u64,
    /// Of the pages that went to the host, those that somebody waited for to have their room.
    pub written_back: u64,
    /// Copies that left the device under write-back without having been saved, because they could not be.
    pub lost_unsaved: u64,
    /// Pages that went to the store.
    pub backed_up: u64,
    /// Backups that were left out because too many waited.
    pub backups_skipped: u64,
    /// Pages whose copy was there already when they had been computed or brought.
    pub duplicates: u64,
    /// Copies that left the device for others.
    pub evicted_device: u64,
    /// Copies that left the host for others.
    pub evicted_host: u64,
    /// Times that a request had to leave the device.
    pub retractions: u64,
    /// Operations that nobody waited for any more.
    pub abandoned: u64,
}

impl Stats {
    /// Every count by its name, in order.
    ///
    /// # Errors
    /// Those of `tell`, which is not told more then.
    pub fn each<E>(&self, mut tell: impl FnMut(&'static str, u64) -> Result<(), E>) -> Result<(), E> {
        macro_rules! tell {
            ($($name:ident),* $(,)?) => {{
                // A count that is forgotten here is an error of the compiler.
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
