//! The CUDA driver, its devices, and how fast they access a segment.

use std::time::Duration;

use tiffin_client::device_rates::{Measured, measure};
use tiffin_client::gpu::{self, DeviceError};
use tiffin_types::units::Size;

use super::Check;

const NAME: &str = "gpu";
/// Bytes that are copied to measure the bus.
const BYTES: u64 = 64 << 20;
/// Time limit for the registration of the segment.
const REGISTER_TIME_MAX: Duration = Duration::from_secs(5);

/// One check per device, or one that says why there is none.
pub(super) async fn check() -> Vec<Check> {
    let found = match gpu::load() {
        Ok(found) if !found.devices.is_empty() => found,
        Ok(found) => return vec![Check::ok(NAME, format!("CUDA {}, but no device", found.version))],
        // The usual machine without a GPU.
        Err(DeviceError::Unusable { library, .. }) if library == "libcuda.so.1" => {
            return vec![Check::ok(NAME, "no CUDA driver: only host memory is used")];
        }
        Err(error) => {
            let hint = "check the installation of the CUDA driver (`nvidia-smi`)";
            return vec![Check::limited(NAME, error.to_string(), hint)];
        }
    };
    let mut checks = Vec::new();
    for (number, (name, bytes)) in (0_u32..).zip(&found.devices) {
        let what = format!("cuda:{number}, {name}, {}, CUDA {}", Size(*bytes), found.version);
        checks.push(judge(&what, measure(number, BYTES, REGISTER_TIME_MAX).await));
    }
    checks
}

fn judge(what: &str, measured: Result<Measured, String>) -> Check {
    let measured = match measured {
        Ok(measured) => measured,
        Err(why) => {
            return Check::limited(
                NAME,
                format!("{what}: {why}"),
                "free memory of host and device, and try again",
            );
        }
    };
    let gigabytes = |rate: f64| rate / 1e9;
    let Measured { is_registered, save_rate, load_rate } = measured;
    let rates = format!("save {:.1} GB/s, load {:.1} GB/s", gigabytes(save_rate), gigabytes(load_rate));
    match is_registered {
        true => Check::ok(NAME, format!("{what}: segments are accessed directly, {rates}")),
        false => Check::limited(
            NAME,
            format!("{what}: segments cannot be registered, {rates} through pinned memory"),
            "raise the limit of locked memory (`ulimit -l`)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn verdict_depends_on_direct_access() {
        let measured = |is_registered| Measured { is_registered, save_rate: 53e9, load_rate: 52.4e9 };
        let check = judge("cuda:0", Ok(measured(true)));
        assert_eq!(check.verdict, Verdict::Ok);
        assert_eq!(check.found, "cuda:0: segments are accessed directly, save 53.0 GB/s, load 52.4 GB/s");
        assert_eq!(judge("cuda:0", Ok(measured(false))).verdict, Verdict::Limited);
        assert_eq!(judge("cuda:0", Err("out of memory".to_owned())).verdict, Verdict::Limited);
    }
}
