//! The decoders of files, settings and memory pools, for `tiffin-smoke` and cargo-fuzz.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tiffin_rpc::{Address, Masters};
use tiffin_trace::Endpoint;
use tiffin_transport as transport;
use tiffin_transport::control::{SlotRecord, SlotState};
use tiffin_transport::pool::Pool;
use tiffin_transport::segment::{MemoryOptions, NodeMemory};

use crate::access::AccessFile;
use crate::config::{SettingsFile, SsdConfig};
use crate::{StartError, mooncake, node, tenants};

/// Name, decoder and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub const TARGETS: [Target; 5] = [
    ("settings", settings, settings_files),
    ("access_file", access_file, access_files),
    ("tenants", tenant_file, tenant_files),
    ("addresses", addresses, address_texts),
    ("pool", pool, pools),
];

/// The id of the segment of every pool.
const SEGMENT: u64 = 0xf022;
/// Bytes of the data segment of every pool.
const DATA_BYTES: u64 = 64 << 10;
/// The greatest control segment that is tried.
const CONTROL_BYTES_MAX: usize = 1 << 20;

fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _file = SettingsFile::parse(&text, "tiffin.toml");
    let _file = mooncake::MASTER.parse_file(&text, "master.yaml");
    let words: Vec<_> = text.lines().map(str::to_owned).collect();
    let _line = mooncake::MASTER.parse(&words, &BTreeMap::new());
}

fn settings_files() -> Vec<Vec<u8>> {
    let texts = [
        "log_level = 'debug'\n[master]\nlisten = '127.0.0.1:0'\nlease_ttl = '10s'\nhttp = 'off'\n",
        "[node]\nmemory = '8GiB'\nname = 'n'\nssd = ['path=/data,size=1GiB']\npopulate = 'on'\n[client]\n\
         timeout = '5s'\nnamespace = 'team-a'\n",
        "rpc_port: 50051\nenable_metric_reporting: true\ndefault_kv_lease_ttl: 5000\n",
        "{\"rpc_port\": 50051, \"eviction_ratio\": 0.05, \"cluster_id\": \"a\"}",
        "--rpc_port=50051\n--eviction_ratio\n0.1\n--noenable_ha\n-v=1\n",
    ];
    texts.map(|it| it.as_bytes().to_vec()).into()
}

fn access_file(bytes: &[u8]) {
    let _file = AccessFile::parse(&String::from_utf8_lossy(bytes));
}

fn access_files() -> Vec<Vec<u8>> {
    let token = |name: &str, rest: &str| {
        let hash = "00112233445566778899aabbccddeeff".repeat(2);
        format!(
            "[[token]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\nrights = [\"read\", \"write\"]\n{rest}\n"
        )
    };
    let limits = "namespaces = [\"team-a\", \"shared-*\"]\nexpires = \"2030-01-02T03:04:05Z\"";
    vec![token("a", "").into_bytes(), (token("a", limits) + &token("b", "")).into_bytes()]
}

fn tenant_file(bytes: &[u8]) {
    let _quotas = tenants::parse(&String::from_utf8_lossy(bytes));
}

fn tenant_files() -> Vec<Vec<u8>> {
    let texts = [
        "version: 1\n\ntenants:\n  - name: \"a\"\n    quota: 100\n  - name: 'b'\n    quota: 7\n",
        "---\nversion: 1\ntenants:\n- {name: a, quota: 1}\n# end\n",
    ];
    texts.map(|it| it.as_bytes().to_vec()).into()
}

fn addresses(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>().as_ref(), Ok(&address), "{text:?}");
    }
    let _masters = text.parse::<Masters>();
    let _endpoint = text.parse::<Endpoint>();
    let _disk = text.parse::<SsdConfig>();
}

fn address_texts() -> Vec<Vec<u8>> {
    let texts = [
        "127.0.0.1:7400",
        "[::1]:80",
        "unix:@tiffin-1",
        "a:1, b:2;c:3",
        "etcd://h:2379,g:2379/prod",
        "http://collector:4318/v1",
        "path=/data/tiffin,size=100GiB",
    ];
    texts.map(|it| it.as_bytes().to_vec()).into()
}

/// The control segment of a pool that an earlier process has left.
fn pool(bytes: &[u8]) {
    if bytes.len() > CONTROL_BYTES_MAX {
        return;
    }
    let folder = Folder::new();
    let wanted = node::fuzz_geometry(SEGMENT, DATA_BYTES);
    let made = [("control", bytes.to_vec()), ("stamps", vec![7; 16])].into_iter().all(|(name, content)| {
        std::fs::write(folder.0.join(name), content).is_ok() && set_private(&folder.0.join(name))
    });
    let sized =
        [("data", wanted.data_bytes), ("claims", wanted.claims_bytes())].into_iter().all(|(name, len)| {
            let file = std::fs::File::create(folder.0.join(name));
            file.is_ok_and(|it| it.set_len(len).is_ok()) && set_private(&folder.0.join(name))
        });
    assert!(made && sized, "a pool in `{}`", folder.0.display());
    match node::fuzz_pool(&folder.0, SEGMENT, DATA_BYTES) {
        Ok(()) | Err(StartError::Memory(_) | StartError::Disk(_)) => (),
        Err(other) => panic!("{other}"),
    }
}

fn pools() -> Vec<Vec<u8>> {
    let folder = Folder::new();
    let content = || std::fs::read(folder.0.join("control")).expect("a control segment");
    let pool = Pool::open(&folder.0).expect("an empty pool");
    let geometry = node::fuzz_geometry(SEGMENT, DATA_BYTES);
    let opened = NodeMemory::open_pool(pool, geometry, MemoryOptions::default());
    let (_memory, mut writer) = opened.expect("memory for a pool");
    let empty = content();
    writer.set_stamp_high_water(1 << 16);
    writer.set_epoch(3, 33, 333);
    let extent = |offset, len| transport::Extent { offset, len };
    writer.write_heap(0, b"defaultkey");
    let key = tiffin_node::StampKey::from_bytes([7; 16]);
    for (slot, state) in [(0, SlotState::Committed), (1, SlotState::Reserved), (2, SlotState::Prepared)] {
        let heap = u64::from(slot) * 64;
        writer.write_heap(heap, b"defaultkey");
        let record = SlotRecord {
            stamp: key.stamp(u64::from(slot) + 1).0,
            state,
            len: 100,
            extents: vec![extent(u64::from(slot) * 4096, 100)],
            namespace: extent(heap, 7),
            key: extent(heap + 7, 3),
            name_bytes: 64,
            writer: 5,
            ..SlotRecord::default()
        };
        writer.write_slot(slot, &record);
    }
    vec![empty, content()]
}

/// A folder on a tmpfs, which is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("tiffin-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = Path::new("/dev/shm").join(name);
        let _absent = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder on a tmpfs");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _kept = std::fs::remove_dir_all(&self.0);
    }
}

fn set_private(path: &Path) -> bool {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_input_harms_no_decoder() {
        // Files are parsed, and pools opened, in milliseconds.
        tiffin_smoke::run_times(&super::TARGETS, 500);
    }
}
