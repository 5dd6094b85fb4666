//! `tiffin doctor`: what works on this machine, and how to fix what does not.
//!
//! Every check tries the feature itself where possible: a container may disable what the kernel's version
//! promises. The checks change nothing, and remove what they create.

mod gpu;
mod limits;
mod memory;
mod ports;
mod sockets;
mod trial;
mod uring;

use bytesize::ByteSize;
use serde::Serialize;
use serde_json::json;
use tiffin_server::NodeConfig;
use tiffin_server::config::{self, MEMORY_DEFAULT, SsdConfig, StorageArgs};

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};

/// Checks what works on this machine: shared memory, sockets, limits, ports, GPUs; and shows how to fix what
/// does not.
///
/// Exits with 1 if something is missing that a store needs.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Planned memory of a store on this machine. Default: from the settings.
    #[arg(long, env = "TIFFIN_NODE_MEMORY", value_name = "SIZE", value_parser = config::size)]
    memory: Option<ByteSize>,

    /// Planned disks of the store: they need memory as well. Default: from the settings.
    #[arg(long, env = "TIFFIN_NODE_SSD", value_name = "path=DIR,size=SIZE", value_delimiter = ';')]
    ssd: Vec<SsdConfig>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Works fully.
    Ok,
    /// A store works, but a feature does not, or is slower.
    Limited,
    /// A store cannot work.
    Missing,
}

/// One check.
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

/// Runs all checks.
pub(crate) async fn run(doctor: &Doctor, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let mut checks = vec![memory::files(), memory::available(&wanted(doctor, &context.file.storage))];
    checks.extend([sockets::descriptors(), sockets::process_handles()]);
    checks.extend([limits::open_files(), limits::locked_memory()]);
    checks.extend([memory::transparent_huge_pages(), memory::shm_folder()]);
    checks.push(uring::check());
    checks.extend(gpu::check().await);
    checks.extend(ports::check(context.common.token().ok().as_deref()).await);
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

/// The planned node, as far as its memory is concerned.
fn wanted(doctor: &Doctor, file: &StorageArgs) -> NodeConfig {
    let memory = doctor.memory.or(file.memory).unwrap_or(MEMORY_DEFAULT).as_u64();
    let ssd = if doctor.ssd.is_empty() { file.ssd.clone() } else { doctor.ssd.clone() };
    NodeConfig { memory, ssd, ..NodeConfig::default() }
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
        (missing, _) => {
            let is = if missing == 1 { "is" } else { "are" };
            format!("\nA store cannot work on this machine: {missing} of the above {is} missing.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_shown_as_text_with_hints() {
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
        assert!(summary(&checks).contains("cannot work on this machine: 1 of the above is missing."));
        assert!(summary(&checks[..2]).contains("1 of the above"));
        assert!(summary(&checks[..1]).ends_with("works on this machine."));
    }
}
