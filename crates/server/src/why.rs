//! Why an object exists, or what removed it, as text. `tiffin why` and the page at `/` show it.

use std::fmt::Write as _;
use std::time::Duration;

use tiffin_types::Key;
use tiffin_types::attributes::Consumption;
use tiffin_types::message::{Cause, CopyWait, Gone, Here, Why as Answer};
use tiffin_types::units::Size;

/// Bytes as text, with unprintable characters escaped.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", chunk.invalid().escape_ascii());
    }
    text
}

/// The answer for one key.
#[must_use]
pub fn as_text(key: &Key, answer: &Answer) -> String {
    let key = printable(key.as_bytes());
    match answer {
        Answer::Here(here) => here_text(&key, here),
        Answer::Gone(gone) => {
            let (generation, ago) = (gone.generation, ago(gone.ago_ms));
            let reader = match gone.reader.is_empty() {
                true => String::new(),
                false => format!("\n  used     last by {}", name(&gone.reader)),
            };
            let disk = match gone.disk_bytes_max {
                0 => String::new(),
                most => format!("\n  disk     {}", refused(most)),
            };
            format!("`{key}` is gone: generation {generation} {}, {ago}{reader}{disk}", cause(gone))
        }
        Answer::Unknown => {
            format!("`{key}` is unknown: it never existed, or its removal is no longer recorded")
        }
    }
}

fn here_text(key: &str, here: &Here) -> String {
    let mut lines = vec![
        format!("`{key}` exists: generation {}, {}", here.found.generation, Size(here.found.len)),
        format!("  kept     {}", kept(here)),
        format!("  nodes    {}", nodes(here)),
    ];
    let named = |names: &[String]| names.iter().map(|it| name(it)).collect::<Vec<_>>().join(", ");
    for (title, text) in [
        ("pins", owners(&here.pins)),
        ("ttl", here.ttl_ms.map_or_else(String::new, |it| ttl(it, here))),
        ("leases", named(&here.leases)),
        ("views", views(here)),
        ("sends", if here.sends == 0 { String::new() } else { format!("{} in progress", here.sends) }),
        ("sample", here.sample.as_ref().map_or_else(String::new, |it| sample(it, &here.acked))),
        ("copies", copies(here)),
        ("disk", if here.disk_bytes_max == 0 { String::new() } else { refused(here.disk_bytes_max) }),
        ("put", format!("{} by {}", ago(here.age_ms), name(&here.writer))),
        ("used", if here.reader.is_empty() { String::new() } else { used(here) }),
    ] {
        if !text.is_empty() {
            lines.push(format!("  {title:<7}  {text}"));
        }
    }
    lines.join("\n")
}

/// Whether copies are missing, and what they wait for.
fn copies(here: &Here) -> String {
    let Here { copies_wanted, copies_there, .. } = here;
    if copies_there >= copies_wanted {
        return String::new();
    }
    let have = format!("{copies_there} of {copies_wanted} copies");
    match here.copy_wait {
        CopyWait::Nothing if here.copying_to.is_empty() => have,
        CopyWait::Nothing => format!("{have}; being copied to {}", name(&here.copying_to)),
        CopyWait::Node => format!("{have}; waits for another node"),
        CopyWait::Memory => format!("{have}; waits for free memory on another node"),
        CopyWait::Quota => format!("{have}; waits for the quota of the namespace"),
        CopyWait::Source => format!("{have}; waits for a node that has it"),
        CopyWait::Turn => format!("{have}; waits for its turn"),
    }
}

/// Why the object is not on a disk.
fn refused(bytes_max: u64) -> String {
    let most = Size(bytes_max);
    format!("too large, the maximum is {most}; use a larger disk, or split the object")
}

/// Open views of the object: they keep its memory, even after it is removed.
fn views(here: &Here) -> String {
    let mut who: Vec<_> = here.viewers.iter().map(|it| name(it)).collect();
    if here.viewers_more > 0 {
        who.push(format!("{} more", here.viewers_more));
    }
    match (here.views, who.is_empty()) {
        (0, _) => String::new(),
        (count, true) => format!("{count} open"),
        (count, false) => format!("{count} open: {}", who.join(", ")),
    }
}

/// Owners of its pins; a pin may have no owner.
fn owners(pins: &[String]) -> String {
    let owner = |it: &String| if it.is_empty() { "no owner".to_owned() } else { name(it) };
    pins.iter().map(owner).collect::<Vec<_>>().join(", ")
}

/// What protects it from eviction, the strongest first.
fn kept(here: &Here) -> String {
    if !here.pins.is_empty() {
        "until it is unpinned or removed: pinned objects are never evicted".to_owned()
    } else if here.sample.is_some() {
        "until it is consumed or removed: samples are never evicted".to_owned()
    } else if here.lease_ms > 0 {
        format!(
            "for {} more, because it was just read or probed; then until space is needed",
            time(here.lease_ms)
        )
    } else if here.found.soft_pin {
        "until space is needed and nothing else is left: it is soft-pinned".to_owned()
    } else {
        "until space is needed".to_owned()
    }
}

/// When it expires.
fn ttl(ttl_ms: u64, here: &Here) -> String {
    match here.found.expires_in_ms {
        Some(0) if !here.pins.is_empty() => {
            format!("{}, which is over: the object ends with its last pin", time(ttl_ms))
        }
        left => format!("{}, of which {} are left", time(ttl_ms), time(left.unwrap_or(0))),
    }
}

fn nodes(here: &Here) -> String {
    let away = |node: &String| if here.unreachable.contains(node) { " (cannot be reached)" } else { "" };
    here.nodes.iter().map(|node| format!("{}{}", name(node), away(node))).collect::<Vec<_>>().join(", ")
}

fn sample(consumption: &Consumption, acked: &[String]) -> String {
    let list = |names: &[String]| names.iter().map(|it| name(it)).collect::<Vec<_>>().join(", ");
    match consumption {
        Consumption::Once => "waits for its first consumer".to_owned(),
        Consumption::Retained => "stays until it is removed, however often it is consumed".to_owned(),
        Consumption::Groups(groups) => {
            let open: Vec<_> = groups.iter().filter(|it| !acked.contains(it)).cloned().collect();
            let done =
                if acked.is_empty() { String::new() } else { format!("; consumed by {}", list(acked)) };
            format!("waits for {}{done}", list(&open))
        }
    }
}

fn used(here: &Here) -> String {
    format!("{} by {}", ago(here.idle_ms), name(&here.reader))
}

fn cause(gone: &Gone) -> String {
    let by = if gone.by.is_empty() { String::new() } else { format!(" by {}", name(&gone.by)) };
    match gone.cause {
        Cause::Deleted => format!("was removed{by}"),
        Cause::Replaced => format!("was replaced{by}"),
        Cause::Evicted => format!("was evicted to free space{}{by}", eviction_reason(gone)),
        Cause::NodeLost if gone.node.is_empty() => "was lost with its last node".to_owned(),
        Cause::NodeLost => format!("was lost with its last node, {}", name(&gone.node)),
        Cause::Consumed => format!("was consumed{by}"),
        Cause::Expired => "expired: its TTL was over".to_owned(),
        Cause::HeldTooLong => {
            "was dropped: no client leased it for longer than the namespace allows".to_owned()
        }
    }
}

/// On which node memory was needed, and for which put.
fn eviction_reason(gone: &Gone) -> String {
    let node = match (gone.node.is_empty(), &gone.for_key) {
        (false, _) => format!(" on {}", name(&gone.node)),
        (true, Some(_)) => " within the namespace's quota".to_owned(),
        (true, None) => String::new(),
    };
    let put = |key: &Key| format!(" for a put of `{}`", printable(key.as_bytes()));
    format!("{node}{}", gone.for_key.as_ref().map_or_else(String::new, put))
}

/// The name of a client, escaped: it is not trusted.
fn name(text: &str) -> String {
    if text.is_empty() { "an unnamed client".to_owned() } else { format!("`{}`", printable(text.as_bytes())) }
}

fn ago(ms: u64) -> String {
    if ms < 1000 { "just now".to_owned() } else { format!("{} ago", time(ms)) }
}

/// Rounded up to seconds.
/// A time in whole seconds, rounded up.
#[must_use]
pub fn time(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms.div_ceil(1000))).to_string()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn kept_object_names_its_holders() {
        let here = Here {
            nodes: vec!["left".to_owned(), "right".to_owned()],
            unreachable: vec!["right".to_owned()],
            pins: vec!["run-7".to_owned()],
            sample: Some(Consumption::Groups(vec!["a".to_owned(), "b".to_owned()])),
            acked: vec!["a".to_owned()],
            leases: vec!["trainer\x1b".to_owned()],
            views: 3,
            viewers: vec!["dashboard".to_owned(), "trainer".to_owned()],
            viewers_more: 1,
            sends: 4,
            disk_bytes_max: 5 << 20,
            copies_wanted: 2,
            copies_there: 1,
            copying_to: "third".to_owned(),
            age_ms: 61_000,
            idle_ms: 10,
            writer: "engine".to_owned(),
            reader: "trainer".to_owned(),
            ..Here::default()
        };
        expect![[r#"
            `k` exists: generation 0.0, 0 B
              kept     until it is unpinned or removed: pinned objects are never evicted
              nodes    `left`, `right` (cannot be reached)
              pins     `run-7`
              leases   `trainer\u{1b}`
              views    3 open: `dashboard`, `trainer`, 1 more
              sends    4 in progress
              sample   waits for `b`; consumed by `a`
              copies   1 of 2 copies; being copied to `third`
              disk     too large, the maximum is 5.0 MiB; use a larger disk, or split the object
              put      1m 1s ago by `engine`
              used     just now by `trainer`"#]]
        .assert_eq(&as_text(&Key::new(b"k").unwrap(), &Answer::Here(Box::new(here))));
    }

    #[test]
    fn every_cause_is_described() {
        let key = Key::new(b"k").unwrap();
        for (cause, expected) in [
            (Cause::Deleted, "was removed by `x`"),
            (Cause::Replaced, "was replaced by `x`"),
            (Cause::Evicted, "was evicted to free space on `n` for a put of `new` by `x`"),
            (Cause::NodeLost, "was lost with its last node, `n`"),
            (Cause::Consumed, "was consumed by `x`"),
            (Cause::Expired, "expired: its TTL was over"),
            (Cause::HeldTooLong, "was dropped: no client leased it for longer than the namespace allows"),
        ] {
            let (by, node, reader) = ("x".to_owned(), "n".to_owned(), "r".to_owned());
            let for_key = Some(Key::new(b"new").unwrap());
            let gone = Gone { cause, by, node, for_key, reader, ago_ms: 2000, ..Gone::default() };
            let text = as_text(&key, &Answer::Gone(gone));
            assert_eq!(
                text,
                format!("`k` is gone: generation 0.0 {expected}, 2s ago\n  used     last by `r`")
            );
        }
        assert!(as_text(&key, &Answer::Unknown).starts_with("`k` is unknown"));
    }
}
