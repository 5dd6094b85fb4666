//! Settings of device transfers. They are read from the environment once, at the first use.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The driver's usual file.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

const MIB: u64 = 1 << 20;
/// Smallest and largest chunk of the pinned ring. A chunk of the data socket must fit.
const CHUNK_BYTES: (u64, u64) = (4 * MIB, 256 * MIB);

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Whether other work computes on the device during transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It does: no kernel writes to host memory.
    Busy,
    /// It does not: kernels are used in both directions.
    Idle,
    /// It does if the caller's stream has unfinished work when a transfer begins.
    Auto,
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `TIFFIN_CUDA_LIBRARY`: the driver, if it is not `libcuda.so.1`.
    pub library: Option<PathBuf>,
    /// `TIFFIN_GPU_LOAD`: `busy`, `idle` or `auto`.
    pub load: Load,
    /// `TIFFIN_GPU_REGISTERED_BYTES`: maximum bytes of segments that are registered with the driver.
    pub registered_bytes_max: u64,
    /// `TIFFIN_GPU_RING_BYTES`: maximum bytes of pinned memory for transfers that cannot be direct.
    pub ring_bytes_max: u64,
    /// `TIFFIN_GPU_CHUNK_BYTES`: size of one chunk of that memory.
    pub chunk_bytes: u64,
    /// `TIFFIN_GPU_GATHER_BYTES`: device memory through which pages go, for a transfer of a device. Zero
    /// turns that off.
    pub gather_bytes: u64,
    /// `TIFFIN_GPU_KERNELS`: `0` never loads a kernel into a device.
    pub kernels: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: None,
            load: Load::Busy,
            registered_bytes_max: u64::MAX,
            ring_bytes_max: 64 * MIB,
            chunk_bytes: 8 * MIB,
            gather_bytes: 128 * MIB,
            kernels: true,
        }
    }
}

impl Settings {
    /// Reads settings from pairs of names and values. Invalid values are logged and ignored, because a
    /// library cannot refuse to start.
    pub fn from_pairs(get: impl Fn(&str) -> Option<String>) -> Self {
        let plain = Self::default();
        let bytes = |name: &str, default: u64| match get(name).map(|it| (parse_bytes(&it), it)) {
            None => default,
            Some((Some(bytes), _)) => bytes,
            Some((None, text)) => ignored(name, &text, default),
        };
        let load = match get("TIFFIN_GPU_LOAD").as_deref() {
            None => plain.load,
            Some("busy") => Load::Busy,
            Some("idle") => Load::Idle,
            Some("auto") => Load::Auto,
            Some(other) => ignored("TIFFIN_GPU_LOAD", other, plain.load),
        };
        let chunk_bytes = bytes("TIFFIN_GPU_CHUNK_BYTES", plain.chunk_bytes);
        let chunk_bytes = chunk_bytes.clamp(CHUNK_BYTES.0, CHUNK_BYTES.1);
        Self {
            library: get("TIFFIN_CUDA_LIBRARY").filter(|it| !it.is_empty()).map(PathBuf::from),
            load,
            registered_bytes_max: bytes("TIFFIN_GPU_REGISTERED_BYTES", plain.registered_bytes_max),
            // One chunk is the least with which a transfer can proceed.
            ring_bytes_max: bytes("TIFFIN_GPU_RING_BYTES", plain.ring_bytes_max).max(chunk_bytes),
            chunk_bytes,
            gather_bytes: bytes("TIFFIN_GPU_GATHER_BYTES", plain.gather_bytes),
            kernels: get("TIFFIN_GPU_KERNELS").as_deref() != Some("0"),
        }
    }

    /// Sets the settings of this process. False if they are in use already.
    pub fn install(self) -> bool {
        SETTINGS.set(self).is_ok()
    }

    /// The settings of this process.
    pub fn get() -> &'static Self {
        #[expect(clippy::disallowed_methods, reason = "this is the settings struct of this crate")]
        SETTINGS.get_or_init(|| Self::from_pairs(|name| std::env::var(name).ok()))
    }
}

fn ignored<T>(name: &str, text: &str, default: T) -> T {
    tracing::warn!("the setting {name} is ignored: invalid value `{text}`");
    default
}

/// A number of bytes with an optional unit of `KiB`, `MiB` or `GiB`.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic()).trim_end();
    let unit = match text.get(digits.len()..)?.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Settings {
        Settings::from_pairs(|name| pairs.iter().find(|(it, _)| *it == name).map(|(_, it)| (*it).to_owned()))
    }

    #[test]
    fn settings_are_read_and_invalid_ones_ignored() {
        assert_eq!(of(&[]), Settings::default());
        let read = of(&[
            ("TIFFIN_CUDA_LIBRARY", "/x.so"),
            ("TIFFIN_GPU_LOAD", "idle"),
            ("TIFFIN_GPU_REGISTERED_BYTES", "2 GiB"),
            ("TIFFIN_GPU_CHUNK_BYTES", "5MiB"),
            ("TIFFIN_GPU_RING_BYTES", "0"),
            ("TIFFIN_GPU_GATHER_BYTES", "0"),
            ("TIFFIN_GPU_KERNELS", "0"),
        ]);
        assert_eq!(read.library, Some("/x.so".into()));
        assert_eq!((read.load, read.registered_bytes_max), (Load::Idle, 2 << 30));
        assert_eq!((read.chunk_bytes, read.ring_bytes_max), (5 << 20, 5 << 20), "one chunk at least");
        assert_eq!((read.gather_bytes, read.kernels), (0, false));
        for text in ["", "x", "5 TB", "-1", "99999999999 GiB"] {
            let read = of(&[("TIFFIN_GPU_RING_BYTES", text), ("TIFFIN_GPU_LOAD", text)]);
            assert_eq!(read, Settings::default(), "`{text}`");
        }
        assert_eq!(of(&[("TIFFIN_GPU_CHUNK_BYTES", "1")]).chunk_bytes, 4 << 20);
    }
}
