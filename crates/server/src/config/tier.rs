//! Settings of the tier below memory: the disks, and which objects are written to them.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer};
use tiffin_types::message::Demotion as CoreDemotion;

use super::nearest::nearest;
use super::{ConfigError, Switch, check_duration, duration, file};

/// See [`TierArgs::prefetch_cooldown`].
pub(super) const PREFETCH_COOLDOWN_DEFAULT: Duration = Duration::from_secs(5);
/// See [`TierArgs::promote_after`].
pub(super) const PROMOTE_AFTER_DEFAULT: u8 = 2;
/// See [`TierArgs::prefetch_dedup_ttl`].
pub(super) const PREFETCH_DEDUP_TTL_DEFAULT: Duration = Duration::from_secs(30);
/// See [`TierArgs::disk_away`].
pub(super) const DISK_AWAY_DEFAULT: Duration = Duration::from_secs(3600);
/// See [`TierArgs::repair_delay`].
pub(super) const REPAIR_DELAY_DEFAULT: Duration = Duration::from_secs(10);
/// See [`TierArgs::repair_copies`].
pub(super) const REPAIR_COPIES_DEFAULT: u32 = 8;
/// The minimum size of a disk.
pub(super) const SSD_BYTES_MIN: u64 = 64 << 20;

/// The master's settings of the tier.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct TierArgs {
    /// When objects are written to a node's disks, unless their namespace has a policy of its own: before
    /// their memory is needed (`on-pressure`), soon after they were put (`write-through`), or never
    /// (`never`). Default: `on-pressure`.
    #[arg(long, env = "TIFFIN_MASTER_DEMOTION", value_name = "WHEN")]
    pub demotion: Option<Demotion>,

    /// Whether an object that is read repeatedly while only a disk has it returns to memory. Default: `on`.
    #[arg(long, env = "TIFFIN_MASTER_PROMOTE_ON_HIT", value_name = "SWITCH")]
    pub promote_on_hit: Option<Switch>,

    /// The number of reads after which it returns, 1 to 255. Default: `2`.
    #[arg(long, env = "TIFFIN_MASTER_PROMOTE_AFTER", value_name = "READS")]
    pub promote_after: Option<u8>,

    /// After a prefetch found no memory on a node in time, how long other prefetches do not wait for memory
    /// there. Default: `5s`.
    #[arg(long, env = "TIFFIN_MASTER_PREFETCH_COOLDOWN", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub prefetch_cooldown: Option<Duration>,

    /// How long an object is not prefetched again after it was. Default: `30s`.
    #[arg(long, env = "TIFFIN_MASTER_PREFETCH_DEDUP_TTL", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub prefetch_dedup_ttl: Option<Duration>,

    /// A disk whose node has been away for this long is absent: unprotected objects that only it has are
    /// removed. Default: `1h`.
    #[arg(long, env = "TIFFIN_MASTER_DISK_AWAY", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub disk_away: Option<Duration>,

    /// How long a node may be gone before copies of its objects are made on other nodes, for objects that
    /// were put with several copies. Default: `10s`.
    #[arg(long, env = "TIFFIN_MASTER_REPAIR_DELAY", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub repair_delay: Option<Duration>,

    /// The number of such copies that are made at the same time; `0` makes none. Default: `8`.
    #[arg(long, env = "TIFFIN_MASTER_REPAIR_COPIES", value_name = "NUMBER")]
    pub repair_copies: Option<u32>,
}

/// See [`TierArgs::demotion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demotion {
    /// Before their memory is reused.
    #[default]
    OnPressure,
    /// Soon after the put.
    WriteThrough,
    /// Never.
    Never,
}

impl From<Demotion> for CoreDemotion {
    fn from(it: Demotion) -> Self {
        match it {
            Demotion::OnPressure => Self::OnPressure,
            Demotion::WriteThrough => Self::WriteThrough,
            Demotion::Never => Self::Never,
        }
    }
}

/// The master's settings of the tier, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// See [`TierArgs::demotion`].
    pub demotion: Demotion,
    /// See [`TierArgs::promote_on_hit`].
    pub promote_on_hit: bool,
    /// See [`TierArgs::promote_after`].
    pub promote_after: u8,
    /// See [`TierArgs::prefetch_cooldown`].
    pub prefetch_cooldown: Duration,
    /// See [`TierArgs::prefetch_dedup_ttl`].
    pub prefetch_dedup_ttl: Duration,
    /// See [`TierArgs::disk_away`].
    pub disk_away: Duration,
    /// See [`TierArgs::repair_delay`].
    pub repair_delay: Duration,
    /// See [`TierArgs::repair_copies`].
    pub repair_copies: u32,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            demotion: Demotion::default(),
            promote_on_hit: true,
            promote_after: PROMOTE_AFTER_DEFAULT,
            prefetch_cooldown: PREFETCH_COOLDOWN_DEFAULT,
            prefetch_dedup_ttl: PREFETCH_DEDUP_TTL_DEFAULT,
            disk_away: DISK_AWAY_DEFAULT,
            repair_delay: REPAIR_DELAY_DEFAULT,
            repair_copies: REPAIR_COPIES_DEFAULT,
        }
    }
}

impl TierArgs {
    /// Applies flags and variables, then the file, then the defaults.
    pub(super) fn over(self, said: Self) -> TierConfig {
        let otherwise = TierConfig::default();
        let switch = self.promote_on_hit.or(said.promote_on_hit);
        TierConfig {
            demotion: self.demotion.or(said.demotion).unwrap_or_default(),
            promote_on_hit: switch.is_none_or(|it| it == Switch::On),
            promote_after: self.promote_after.or(said.promote_after).unwrap_or(otherwise.promote_after),
            prefetch_cooldown: self
                .prefetch_cooldown
                .or(said.prefetch_cooldown)
                .unwrap_or(otherwise.prefetch_cooldown),
            prefetch_dedup_ttl: self
                .prefetch_dedup_ttl
                .or(said.prefetch_dedup_ttl)
                .unwrap_or(otherwise.prefetch_dedup_ttl),
            disk_away: self.disk_away.or(said.disk_away).unwrap_or(otherwise.disk_away),
            repair_delay: self.repair_delay.or(said.repair_delay).unwrap_or(otherwise.repair_delay),
            repair_copies: self.repair_copies.or(said.repair_copies).unwrap_or(otherwise.repair_copies),
        }
    }
}

impl TierConfig {
    /// Rejects invalid values.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.promote_after == 0 {
            return Err(ConfigError::Value {
                name: "promote_after",
                value: "0".to_owned(),
                why: "an object returns to memory after at least one read".to_owned(),
                hint: "a typical value is `2`; to promote nothing, use `--promote-on-hit off`".to_owned(),
            });
        }
        check_duration("prefetch_cooldown", self.prefetch_cooldown, Duration::ZERO, "5s")?;
        check_duration("prefetch_dedup_ttl", self.prefetch_dedup_ttl, Duration::ZERO, "30s")?;
        check_duration("disk_away", self.disk_away, Duration::from_millis(1), "1h")?;
        check_duration("repair_delay", self.repair_delay, Duration::ZERO, "10s")
    }

    /// The same settings as core's type.
    #[must_use]
    pub fn core(&self) -> tiffin_core::master::TierConfig {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut tier = tiffin_core::master::TierConfig {
            demotion: self.demotion.into(),
            promote_on_hit: self.promote_on_hit,
            promote_hits: self.promote_after,
            away_ms_max: ms(self.disk_away),
            ..tiffin_core::master::TierConfig::default()
        };
        tier.throttle.cooldown = ms(self.prefetch_cooldown);
        tier.throttle.done_ttl = ms(self.prefetch_dedup_ttl);
        tier.repair.delay_ms = ms(self.repair_delay);
        tier.repair.copies_max = self.repair_copies as usize;
        tier
    }
}

/// A directory or block device, and the number of its bytes that may be used:
/// `path=/data/tiffin,size=100GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdConfig {
    /// The path.
    pub path: PathBuf,
    /// The maximum number of bytes.
    pub size: u64,
    /// The I/O engine.
    pub engine: Engine,
}

/// The I/O engine of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel permits it, otherwise blocking calls. The log says which, and why.
    #[default]
    Auto,
    /// io_uring; the node does not start without it.
    Uring,
    /// Blocking calls.
    Blocking,
}

/// Why a text does not describe a disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid disk `{text}`: {why}\n\nhint: write it like `path=/data/tiffin,size=100GiB`")]
pub struct SsdError {
    text: String,
    why: String,
}

impl FromStr for SsdConfig {
    type Err = SsdError;

    fn from_str(text: &str) -> Result<Self, SsdError> {
        let fail = |why: String| SsdError { text: text.to_owned(), why };
        let (mut path, mut size, mut engine) = (None, None, Engine::Auto);
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(fail(format!("`{part}` has no `=`")));
            };
            match key.trim() {
                "path" => path = Some(PathBuf::from(value)),
                "size" => {
                    size = Some(
                        super::size(value)
                            .map_err(|error| fail(file::first_line(&error.to_string()).to_owned()))?,
                    )
                }
                "engine" => {
                    engine = match value {
                        "auto" => Engine::Auto,
                        "uring" => Engine::Uring,
                        "blocking" => Engine::Blocking,
                        _ => return Err(fail(format!("engine `{value}` is not auto, uring or blocking"))),
                    }
                }
                other => {
                    let near = nearest(other, ["path", "size", "engine"]);
                    let near = near.map(|it| format!("; did you mean `{it}`?")).unwrap_or_default();
                    return Err(fail(format!("unknown key `{other}`{near}")));
                }
            }
        }
        let path =
            path.filter(|it| !it.as_os_str().is_empty()).ok_or_else(|| fail("the path is missing".into()))?;
        let size = size.ok_or_else(|| fail("the size is missing".into()))?.as_u64();
        if size < SSD_BYTES_MIN {
            let least = ByteSize::b(SSD_BYTES_MIN).display().iec().to_string();
            return Err(fail(format!("the size must be at least {least}")));
        }
        Ok(Self { path, size, engine })
    }
}

/// Deserializes disks from a settings file: one text, or a list.
pub(super) fn disks<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<SsdConfig>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let texts = match OneOrMany::deserialize(value)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    };
    let parse = |text: String| {
        text.parse().map_err(|error: SsdError| serde::de::Error::custom(file::first_line(&error.to_string())))
    };
    texts.into_iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let found = match text.parse::<SsdConfig>() {
            Ok(it) => format!("{} {} {:?}", it.path.display(), it.size, it.engine),
            Err(error) => error.why,
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn disk_is_a_path_and_a_size() {
        check("path=/a,size=1GiB", "/a 1073741824 Auto");
        check("size=64MiB,path=b,engine=blocking", "b 67108864 Blocking");
        check("path=/a", "the size is missing");
        check("size=1GiB", "the path is missing");
        check("path=,size=1GiB", "the path is missing");
        check("path=/a,size=1MiB", "the size must be at least 64.0 MiB");
        check("path=/a,sise=1GiB", "unknown key `sise`; did you mean `size`?");
        check("/a", "`/a` has no `=`");
        check("path=/a,size=1GiB,engine=x", "engine `x` is not auto, uring or blocking");
    }
}
