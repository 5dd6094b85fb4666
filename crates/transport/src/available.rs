//! How much memory a new segment may take: what the machine has left, and what the control groups of this
//! process allow.
//!
//! Both versions of control groups are read, alone or side by side, with the paths that a container sees:
//! - Version 2 has one hierarchy (`0::/path`), version 1 one per controller (`4:memory:/path`).
//! - `/proc/self/mountinfo` says where a hierarchy is mounted, and which of its groups is the root of the
//!   mount. A container often sees its own group as that root, while `/proc/self/cgroup` has the path on the
//!   host.
//! - A limit binds all groups below it, so every group from ours to the root of the mount is checked.
//!
//! **Invariant:** file pages that the kernel can drop do not count as used, because a new segment may take
//! their place.

use std::fs::File;
use std::io::Read;

/// Maximum number of bytes read from a kernel file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Memory that the process needs besides its segments: a control group limits both together.
const PROCESS_BYTES: u64 = 16 << 20;
/// A limit of version 1 above this means that there is none.
const LIMIT_BYTES_MAX: u64 = 1 << 62;

/// The memory that may still be allocated, and the limit that determines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Number of bytes.
    pub bytes: u64,
    /// The tightest limit of a control group; `None` if the machine's memory is tighter.
    pub limit: Option<Limit>,
}

/// A limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Path of the limit file.
    pub file: String,
    /// Value of the limit.
    pub bytes: u64,
}

/// How much memory this process may still allocate.
#[must_use]
pub fn available_memory() -> Available {
    available(small_file)
}

/// File and counter names of one version of control groups.
struct Names {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` that count memory which the kernel can reclaim at once.
    reclaimable: &'static [&'static str],
}

const VERSION_1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};
/// Above `memory.high` a process is not killed, but throttled until it hardly makes progress.
const VERSION_2: Names = Names {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Where a hierarchy is mounted, and which of its groups is the root of the mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: String,
    point: String,
}

fn available(read: impl Fn(&str) -> Option<String>) -> Available {
    let machine = read("/proc/meminfo").and_then(|text| meminfo_available(&text)).unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let mut least = Available { bytes: machine, limit: None };
    for (names, path) in [(&VERSION_2, group_path_2(&groups)), (&VERSION_1, group_path_1(&groups))] {
        let Some(path) = path else { continue };
        let is_v2 = std::ptr::eq(names, &VERSION_2);
        for group in groups_above(&mount(&mounts, is_v2), path) {
            for (bytes, limit) in left_in(&group, names, &read) {
                if bytes < least.bytes {
                    least = Available { bytes, limit: Some(limit) };
                }
            }
        }
    }
    least
}

/// The path of our group in the hierarchy of version 2.
fn group_path_2(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The path of our group in the hierarchy of version 1 that has the memory controller.
fn group_path_1(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    })
}

/// The mount of a hierarchy; the usual mount point if the kernel does not list it.
fn mount(mounts: &str, is_v2: bool) -> Mount {
    let found = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
        let (root, point) = (left.next()?, left.next()?);
        let (kind, options) = (right.next()?, right.nth(1).unwrap_or_default());
        let is_ours = match is_v2 {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        };
        is_ours.then(|| Mount { root: root.to_owned(), point: point.to_owned() })
    });
    found.unwrap_or_else(|| Mount {
        root: "/".to_owned(),
        point: if is_v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" }.to_owned(),
    })
}

/// The folders of our group and of all visible groups above it, ours first.
fn groups_above(mount: &Mount, path: &str) -> Vec<String> {
    let root = mount.root.trim_end_matches('/');
    // A path that does not lie below the root of the mount is that of another namespace.
    let below = path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or("");
    let below = if below.split('/').any(|part| part == "..") { "" } else { below };
    let mut below = below.trim_end_matches('/');
    let mut folders = Vec::new();
    loop {
        folders.push(format!("{}{below}", mount.point.trim_end_matches('/')));
        match below.rsplit_once('/') {
            Some((above, _)) => below = above,
            None => return folders,
        }
    }
}

/// How much memory each limit of a group still allows.
fn left_in(folder: &str, names: &Names, read: &impl Fn(&str) -> Option<String>) -> Vec<(u64, Limit)> {
    let number = |file: &str| read(&format!("{folder}/{file}"))?.trim().parse::<u64>().ok();
    let Some(usage) = number(names.usage) else { return Vec::new() };
    let stat = read(&format!("{folder}/memory.stat")).unwrap_or_default();
    let counted = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        names.reclaimable.contains(&name).then(|| value.trim().parse::<u64>().ok()).flatten()
    };
    let reclaimable: u64 = stat.lines().filter_map(counted).fold(0, u64::saturating_add);
    let used = usage.saturating_sub(reclaimable).saturating_add(PROCESS_BYTES);
    // Without a limit, version 2 has `max`, which does not parse, and version 1 a very large number.
    let limits = names.limits.iter().filter_map(|file| {
        let bytes = number(file).filter(|bytes| *bytes < LIMIT_BYTES_MAX)?;
        Some((bytes.saturating_sub(used), Limit { file: format!("{folder}/{file}"), bytes }))
    });
    limits.collect()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The text of a small kernel file; `None` if it cannot be read.
fn small_file(path: &str) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MIB: u64 = 1 << 20;
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V1_IN_CONTAINER: &str =
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,cpu,memory\n";
    const V2_ELSEWHERE: &str = "30 23 0:26 /kubepods/pod7 /run/groups rw - cgroup2 none rw\n";

    /// A test case: name, our groups, the mounts, files with their numbers, and the expected result: free
    /// bytes besides those of the process, and the file of the limit.
    type Layout<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, u64)], Option<(u64, &'a str)>);

    fn expect(layout: &Layout<'_>) {
        let (name, groups, mounts, files, expected) = layout;
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        all.insert("/proc/meminfo".into(), format!("MemAvailable: {} kB\n", 64 << 20));
        all.insert("/proc/self/cgroup".into(), (*groups).to_owned());
        all.insert("/proc/self/mountinfo".into(), (*mounts).to_owned());
        for (path, bytes) in *files {
            match path.split_once('#') {
                Some((path, counter)) => {
                    all.entry(path.into()).or_default().push_str(&format!("{counter} {bytes}\n"));
                }
                None => drop(all.insert((*path).into(), format!("{bytes}\n"))),
            }
        }
        let found = available(|path| all.get(path).cloned());
        let expected = match expected {
            Some((bytes, file)) => (bytes - PROCESS_BYTES, Some(*file)),
            None => (64 << 30, None),
        };
        let file = found.limit.as_ref().map(|limit| limit.file.as_str());
        assert_eq!((found.bytes, file), expected, "{name}");
    }

    #[test]
    fn limits_of_version_2_count() {
        let root = "/sys/fs/cgroup";
        for layout in [
            ("no limit", "0::/\n", V2, &[][..], None),
            (
                "the container's own group is the root of the mount",
                "0::/\n",
                V2,
                &[("/sys/fs/cgroup/memory.max", 400 * MIB), ("/sys/fs/cgroup/memory.current", 30 * MIB)],
                Some((370 * MIB, "/sys/fs/cgroup/memory.max")),
            ),
            (
                "a nested group, and the tighter limit above it",
                "0::/a/b\n",
                V2,
                &[
                    ("/sys/fs/cgroup/a/b/memory.max", 900 * MIB),
                    ("/sys/fs/cgroup/a/b/memory.current", 10 * MIB),
                    ("/sys/fs/cgroup/a/memory.max", 1000 * MIB),
                    ("/sys/fs/cgroup/a/memory.current", 400 * MIB),
                ],
                Some((600 * MIB, "/sys/fs/cgroup/a/memory.max")),
            ),
            (
                "the path of the host, in a mount whose root is our group",
                "0::/kubepods/pod7/web\n",
                V2_ELSEWHERE,
                &[("/run/groups/web/memory.max", 500 * MIB), ("/run/groups/web/memory.current", MIB)],
                Some((499 * MIB, "/run/groups/web/memory.max")),
            ),
            (
                "a path of another namespace",
                "0::/../other\n",
                V2,
                &[("/sys/fs/cgroup/memory.max", 400 * MIB), ("/sys/fs/cgroup/memory.current", 0)],
                Some((400 * MIB, "/sys/fs/cgroup/memory.max")),
            ),
            (
                "a limit that throttles",
                "0::/\n",
                "",
                &[("/sys/fs/cgroup/memory.high", 300 * MIB), ("/sys/fs/cgroup/memory.current", 0)],
                Some((300 * MIB, "/sys/fs/cgroup/memory.high")),
            ),
        ] {
            expect(&layout);
        }
        let mount = mount(V2, true);
        assert_eq!(groups_above(&mount, "/a/b"), [format!("{root}/a/b"), format!("{root}/a"), root.into()]);
    }

    #[test]
    fn limits_of_version_1_count() {
        let (limit, usage) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
        let at = |folder: &str, file: &str| format!("/sys/fs/cgroup/memory{folder}/{file}");
        let none = [(at("", limit), 9_223_372_036_854_771_712), (at("", usage), 99 * MIB)];
        let own = [(at("/box", limit), 400 * MIB), (at("/box", usage), 50 * MIB)];
        let above = [(at("/box/in", limit), 9_223_372_036_854_771_712), (at("/box/in", usage), MIB)];
        let root = [(at("", limit), 400 * MIB), (at("", usage), 0)];
        let expected = at("/box", limit);
        let expected_root = at("", limit);
        let paths = |files: &[&[(String, u64)]]| -> Vec<(String, u64)> { files.concat() };
        for (name, groups, mounts, files, left) in [
            ("no limit", "4:memory:/\n0::/\n", HYBRID, paths(&[&none]), None),
            ("ours", "4:memory:/box\n", V1, paths(&[&none, &own]), Some((350 * MIB, expected.as_str()))),
            (
                "hybrid, and one above",
                "4:memory:/box/in\n1:cpu:/\n0::/\n",
                HYBRID,
                paths(&[&none, &own, &above]),
                Some((350 * MIB, expected.as_str())),
            ),
            (
                "a container that sees its group as the root",
                "4:cpu,memory:/docker/abc\n",
                V1_IN_CONTAINER,
                paths(&[&root]),
                Some((400 * MIB, expected_root.as_str())),
            ),
            (
                "no mounts are known",
                "4:memory:/box\n",
                "",
                paths(&[&own]),
                Some((350 * MIB, expected.as_str())),
            ),
            ("another controller", "4:memory_of:/box\n", V1, paths(&[&own]), None),
        ] {
            let files: Vec<(&str, u64)> = files.iter().map(|(path, bytes)| (path.as_str(), *bytes)).collect();
            expect(&(name, groups, mounts, &files, left));
        }
    }

    #[test]
    fn droppable_file_pages_do_not_count_as_used() {
        expect(&(
            "version 2",
            "0::/\n",
            V2,
            &[
                ("/sys/fs/cgroup/memory.max", 400 * MIB),
                ("/sys/fs/cgroup/memory.current", 390 * MIB),
                ("/sys/fs/cgroup/memory.stat#anon", 10 * MIB),
                ("/sys/fs/cgroup/memory.stat#shmem", 70 * MIB),
                ("/sys/fs/cgroup/memory.stat#inactive_file", 200 * MIB),
                ("/sys/fs/cgroup/memory.stat#active_file", 100 * MIB),
            ],
            Some((310 * MIB, "/sys/fs/cgroup/memory.max")),
        ));
        expect(&(
            "version 1",
            "4:memory:/\n",
            V1,
            &[
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", 400 * MIB),
                ("/sys/fs/cgroup/memory/memory.usage_in_bytes", 390 * MIB),
                ("/sys/fs/cgroup/memory/memory.stat#inactive_file", 7),
                ("/sys/fs/cgroup/memory/memory.stat#total_inactive_file", 200 * MIB),
            ],
            Some((210 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes")),
        ));
    }

    #[test]
    fn meminfo_is_parsed() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:      512 kB\n"), Some(512 << 10));
        for text in ["", "MemTotal: 1 kB\n", "MemAvailable: lots kB\n", "MemAvailable: 12\n"] {
            assert_eq!(meminfo_available(text), None, "{text:?}");
        }
        assert_eq!(available(|_| None), Available { bytes: u64::MAX, limit: None });
    }
}
