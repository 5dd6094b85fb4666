//! `tiffin doctor`: what works on this machine, and what to do about what does not.
//!
//! Every check tries the thing itself where that is possible: what a version number promises, a container may
//! take away. The checks change nothing, and what they make is gone when they are done.

mod limits;
mod memory;
mod ports;
mod sockets;
mod trial;
mod uring;

use bytesize::ByteSize;
use serde::Serialize;
use serde_json::json;
use tiffin_server::config::MEMORY_DEFAULT;

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};

/// Says what works on this machine: shared memory, sockets, limits, ports; and what to do about what does not.
///
/// Leaves with 1 if something is missing that a store cannot do without.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// How much memory a store on this machine is meant to have. Default: as the settings say.
    #[arg(long, env = "TIFFIN_NODE_MEMORY", value_name = "SIZE")]
    memory: Option<ByteSize>,
}

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As well as it can.
    Ok,
    /// A store works, but something about it does not, or less well.
    Limited,
    /// A store cannot work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    hint: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), hint: None }
    }

    fn limited(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Limited, found: found.into(), hint: Some(hint.into()) }
    }

    fn missing(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Missing, found: found.into(), hint: Some(hint.into()) }
    }
}

/// Looks at everything.
pub(crate) async fn run(doctor: &Doctor, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let wanted = doctor.memory.or(context.file.storage.memory).unwrap_or(MEMORY_DEFAULT);
    let mut checks = vec![memory::files(), memory::available(wanted.as_u64())];
    checks.extend([sockets::descriptors(), sockets::process_handles()]);
    checks.extend([limits::open_files(), limits::locked_memory()]);
    checks.extend([memory::huge_pages(), memory::transparent_huge_pages(), memory::shm_folder()]);
    checks.push(uring::check());
    checks.extend(ports::check());
    checks.push(trial::check().await);
    let works = checks.iter().all(|check| check.verdict != Verdict::Missing);
    if console.json {
        console.value(&json!({ "works": works, "checks": checks }))?;
    } else {
        console.text(shown(&checks))?;
        console.text(summary(&checks))?;
    }
    Ok(if works { STATUS_OK } else { STATUS_FAILED })
}

fn shown(checks: &[Check]) -> String {
    let widest = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "MISSING",
        };
        lines.push(format!("{verdict:<7}  {:<widest$}  {}", check.name, check.found));
        let hint = check.hint.as_ref().map(|hint| format!("{:9}{:widest$}  hint: {hint}", "", ""));
        lines.extend(hint);
    }
    lines.join("\n")
}

fn summary(checks: &[Check]) -> String {
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    match (count(Verdict::Missing), count(Verdict::Limited)) {
        (0, 0) => "\nA store works on this machine.".to_owned(),
        (0, limited) => format!("\nA store works on this machine; {limited} of the above could be better."),
        (missing, _) => format!("\nA store cannot work on this machine: {missing} of the above are missing."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_in_words_with_its_hint() {
        let checks = [
            Check::ok("this", "is fine"),
            Check::limited("that one", "is slow", "buy another"),
            Check::missing("this", "is not here", "find it"),
        ];
        let expected = "\
ok       this      is fine
limited  that one  is slow
                   hint: buy another
MISSING  this      is not here
                   hint: find it";
        assert_eq!(shown(&checks), expected);
        assert!(summary(&checks).contains("cannot work"));
        assert!(summary(&checks[..2]).contains("1 of the above"));
        assert!(summary(&checks[..1]).ends_with("works on this machine."));
    }
}
