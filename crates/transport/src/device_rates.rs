//! Measures how fast a device copies to and from a segment.

use std::ptr::NonNull;
use std::time::{Duration, Instant as StdInstant};

use tiffin_gpu::{Place, Stream};

use crate::buffer::{SourceBuf, TargetBuf};
use crate::device::copy_list;
use crate::layout::Geometry;
use crate::segment::NodeMemory;
use crate::{Extent, Instant};

/// Number of copies in each direction that are measured.
const MEASURE_ROUNDS: usize = 8;

/// How fast a device copies to and from a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The device accesses the segment directly.
    pub is_registered: bool,
    /// Bytes per second from the device.
    pub save_rate: f64,
    /// Bytes per second to the device.
    pub load_rate: f64,
}

/// Copies a segment of this size to a device and back a few times, and returns the best rates. The segment
/// is made for that, and registered if that is possible in `time_max`.
pub async fn measure(device: u32, bytes: u64, time_max: Duration) -> Result<Measured, String> {
    let on_device = tiffin_gpu::Memory::allocate(device, bytes).map_err(|error| error.to_string())?;
    let geometry = Geometry { segment: 1, data_bytes: bytes, slot_count: 1, heap_bytes: 0 };
    let (memory, _writer) = NodeMemory::create(geometry).map_err(|error| error.to_string())?;
    let all = Extent { offset: 0, len: bytes };
    memory.data.populate(all).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + time_max;
    memory.data.prepare_for(device);
    let is_whole = || tiffin_gpu::mapped_address(memory.data.start_address(), bytes).is_some();
    while !is_whole() && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    let place = Place::new(device, Stream::Synchronized);
    let start = std::ptr::with_exposed_provenance_mut(on_device.start() as usize);
    let (start, len) = (NonNull::new(start).ok_or("the device gave no memory")?, bytes as usize);
    let mut rates = [0_f64; 2];
    for _ in 0..MEASURE_ROUNDS {
        for (rate, is_save) in rates.iter_mut().zip([true, false]) {
            let (Some(source), Some(target)) = (memory.data.source(all), memory.data.target(all)) else {
                return Err("the segment is not mapped".to_owned());
            };
            // SAFETY: the memory of the device lives longer than the copy, and nothing else uses it.
            let pair = unsafe {
                match is_save {
                    true => (SourceBuf::on_device(start, len, &place), target),
                    false => (source, TargetBuf::on_device(start, len, &place)),
                }
            };
            let began = StdInstant::now();
            copy_list(vec![pair]).await.map_err(|error| error.to_string())?;
            *rate = rate.max(bytes as f64 / began.elapsed().as_secs_f64());
        }
    }
    let [save_rate, load_rate] = rates;
    Ok(Measured { is_registered: is_whole(), save_rate, load_rate })
}
