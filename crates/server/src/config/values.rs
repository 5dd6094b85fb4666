//! Values with a unit: sizes such as `8GiB`, durations such as `10s`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use tiffin_rpc::Address;

use super::ConfigError;

/// The maximum of every duration.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why a text is not a size or a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} `{text}`: {why}\n\nhint: {hint}")]
pub struct ValueError {
    what: &'static str,
    text: String,
    why: String,
    hint: &'static str,
}

/// The word `off`, or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffOr<T> {
    /// Disabled.
    Off,
    /// The value.
    Value(T),
}

impl<T> OffOr<T> {
    pub(super) fn into_option(self) -> Option<T> {
        match self {
            Self::Off => None,
            Self::Value(value) => Some(value),
        }
    }
}

impl<T: FromStr> FromStr for OffOr<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::Value) }
    }
}

/// Parses a size: a number of bytes, or a number and a unit.
pub fn size(text: &str) -> Result<ByteSize, ValueError> {
    text.trim().parse().map_err(|_| ValueError {
        what: "size",
        text: text.to_owned(),
        why: why_not_a_size(text.trim()),
        hint: "write a number and a unit, such as `512MiB`, `8GiB` or `100GB`",
    })
}

/// Parses a duration: a number and a unit.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    humantime::parse_duration(text).map_err(|error| ValueError {
        what: "duration",
        text: text.to_owned(),
        why: why_not_a_duration(text, &error),
        hint: "write a number and a unit, such as `500ms`, `10s` or `5m`",
    })
}

/// Rejects a duration below `least` or above the maximum of all settings.
pub(super) fn check_duration(
    name: &'static str,
    value: Duration,
    least: Duration,
    typical: &str,
) -> Result<(), ConfigError> {
    if value >= least && value <= DURATION_MAX {
        return Ok(());
    }
    let shown = humantime::format_duration;
    Err(ConfigError::Value {
        name,
        value: shown(value).to_string(),
        why: format!("it must be between {} and {}", shown(least), shown(DURATION_MAX)),
        hint: format!("a typical value is `{typical}`"),
    })
}

fn why_not_a_size(text: &str) -> String {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = text.strip_suffix(unit).unwrap_or(text);
    if number.is_empty() {
        return if text.starts_with('-') { "it is negative" } else { "it does not begin with a number" }
            .to_owned();
    }
    match number.parse::<f64>() {
        Err(_) => format!("`{number}` is not a number"),
        Ok(_) => format!("there is no unit `{}`", unit.trim()),
    }
}

fn why_not_a_duration(text: &str, error: &humantime::DurationError) -> String {
    use humantime::DurationError as Reason;
    match error {
        Reason::Empty => "it is empty".to_owned(),
        _ if text.trim_start().starts_with('-') => "it is negative".to_owned(),
        Reason::NumberExpected(0) => "it does not begin with a number".to_owned(),
        Reason::UnknownUnit { unit, .. } if unit.is_empty() => "the unit is missing".to_owned(),
        Reason::UnknownUnit { unit, .. } => format!("there is no unit `{unit}`"),
        Reason::NumberOverflow => "it is too long".to_owned(),
        other => other.to_string(),
    }
}

pub(super) fn check_exposure(
    name: &'static str,
    address: &Address,
    is_allowed: bool,
) -> Result<(), ConfigError> {
    if address.is_local() || is_allowed {
        return Ok(());
    }
    Err(ConfigError::Exposed { name, address: address.clone() })
}

pub(super) fn check_is_tcp(name: &'static str, address: &Address, wanted: bool) -> Result<(), ConfigError> {
    if !wanted || matches!(address, Address::Tcp { .. }) {
        return Ok(());
    }
    Err(ConfigError::Value {
        name,
        value: format!("`{address}`"),
        why: "it must be a host and a port".to_owned(),
        hint: "write `host:port`; port 0 takes a free one".to_owned(),
    })
}

/// Whether the system picks the port, another one at each start. Nodes and clients do not find a restarted
/// master there, and masters that share a folder exclude one another, so such a master keeps no state.
pub(super) fn takes_any_port(listen: &Address) -> bool {
    matches!(listen, Address::Tcp { port: 0, .. })
}

/// Each port has a folder of its own, so that several masters of one user need no setting.
pub(super) fn default_state_dir(xdg: Option<PathBuf>, listen: &Address) -> Result<PathBuf, ConfigError> {
    let name = match listen {
        Address::Tcp { port, .. } => port.to_string(),
        Address::Unix { name } => format!("@{}", name.replace(['/', '.'], "_")),
    };
    let base = xdg
        .filter(|folder| folder.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    base.filter(|folder| folder.is_absolute()).map(|folder| folder.join("tiffin").join(name)).ok_or(
        ConfigError::Missing {
            what: "there is no place for the master's state: neither XDG_STATE_HOME nor HOME is set",
            hint: "name a folder with `--state-dir`",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        for (text, bytes) in [("0", 0), ("8GiB", 8 << 30), (" 1.5 KiB", 1536), ("500MB", 500_000_000)] {
            assert_eq!(size(text).map(|it| it.as_u64()), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("lots", "it does not begin with a number"),
            ("", "it does not begin with a number"),
            ("-1GiB", "it is negative"),
            ("1.2.3GiB", "`1.2.3` is not a number"),
            ("1 elephant", "there is no unit `elephant`"),
        ] {
            let error = size(text).unwrap_err().to_string();
            let expected =
                format!("invalid size `{text}`: {why}\n\nhint: write a number and a unit, such as");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn durations_have_a_number_and_a_unit() {
        assert_eq!(duration("1m 500ms"), Ok(Duration::from_millis(60_500)));
        for (text, why) in [
            ("soon", "it does not begin with a number"),
            ("", "it is empty"),
            ("-5s", "it is negative"),
            ("5", "the unit is missing"),
            ("5x", "there is no unit `x`"),
            ("99999999999999999999s", "it is too long"),
        ] {
            let error = duration(text).unwrap_err().to_string();
            let expected =
                format!("invalid duration `{text}`: {why}\n\nhint: write a number and a unit, such as");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
