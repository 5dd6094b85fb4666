//! The settings of an engine, each declared once: name, type, default and meaning.
//!
//! A user interface (the Python package, the command line) changes a [`Settings`] by name, and makes a
//! [`Config`] of it. The page `docs/kv-settings.md` is generated from the declarations.
//!
//! Times are in seconds here, and in ticks in a [`Config`].

use std::fmt;

use crate::config::{Budgets, Config, IndexKind, StoreConfig};
use crate::mutant::Mutant;
use crate::policy::{Eviction, PrefetchStart, PrefetchStop, StopKind, WritePolicy};

/// The value of a setting, as callers give it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A number of seconds.
    Seconds(f64),
    /// Yes or no.
    Flag(bool),
    /// A word.
    Word(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Seconds(seconds) => write!(f, "{seconds}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// Why a setting cannot have a value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of that name.
    #[error("unknown setting `{0}`\n\nhint: the settings are {names}", names = Settings::NAMES.join(", "))]
    Unknown(String),
    /// The value is not one of the words.
    #[error("`{given}` is none of {words}\n\nhint: `{name}` is one of these words")]
    Word {
        /// The setting.
        name: &'static str,
        /// The value.
        given: Value,
        /// The words.
        words: String,
    },
    /// The value has another type, or is out of range.
    #[error("{name}={given}\n\nhint: it is {wanted}")]
    Type {
        /// The setting.
        name: &'static str,
        /// The value.
        given: Value,
        /// What the value must be.
        wanted: &'static str,
    },
}

/// What a setting may be.
trait Setting: Sized {
    /// What the value must be, for hints.
    const WANTED: &'static str;
    /// The words, where the value is one.
    const WORDS: &'static [&'static str] = &[];

    fn from_value(value: &Value) -> Option<Self>;

    fn to_value(&self) -> Value;
}

impl Setting for u32 {
    const WANTED: &'static str = "between 0 and 4294967295";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Count(count) => Self::try_from(*count).ok(),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        Value::Count(u64::from(*self))
    }
}

impl Setting for f64 {
    const WANTED: &'static str = "a number of seconds";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Count(count) => Some(*count as Self),
            Value::Seconds(seconds) if !seconds.is_nan() => Some(*seconds),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        Value::Seconds(*self)
    }
}

impl Setting for bool {
    const WANTED: &'static str = "true or false";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        Value::Flag(*self)
    }
}

/// Implements [`Setting`] for an enum, by the words of its values.
macro_rules! words {
    ($($type:ty { $($word:literal => $value:expr),+ $(,)? })+) => {$(
        impl Setting for $type {
            const WANTED: &'static str = "a word";
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Word(word) => match word.as_str() {
                        $($word => Some($value),)+
                        _ => None,
                    },
                    _ => None,
                }
            }

            fn to_value(&self) -> Value {
                let known = [$(($word, $value)),+];
                let word = known.iter().find(|(_, value)| value == self).map_or("", |(word, _)| *word);
                Value::Word(word.to_owned())
            }
        }
    )+};
}

words! {
    PrefetchStart { "hits" => Self::Hits, "missing" => Self::Missing }
    StopKind { "timeout" => Self::Timeout, "best-effort" => Self::BestEffort, "wait" => Self::Wait }
    IndexKind { "radix" => Self::Radix, "flat" => Self::Flat }
    Eviction { "lru" => Self::Lru, "s3-fifo" => Self::S3Fifo, "cost" => Self::BY_COST }
    WritePolicy {
        "through" => Self::Through, "selective" => Self::Selective { hits: 1 }, "back" => Self::Back,
    }
}

/// Declares [`Settings`]: every setting with its type, its default and its meaning.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// What a user may choose about an engine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Settings {
            /// The name of every setting.
            pub const NAMES: &[&'static str] = &[$(stringify!($name),)+];

            /// Gives a setting a value.
            ///
            /// # Errors
            /// If there is no such setting, or if it cannot have this value.
            pub fn set(&mut self, name: &str, value: Value) -> Result<(), SettingError> {
                match name {
                    $(stringify!($name) => self.$name = read(stringify!($name), value)?,)+
                    _ => return Err(SettingError::Unknown(name.to_owned())),
                }
                Ok(())
            }

            /// Every setting: its name, its value, the words that it may be, and its meaning.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, Value, &'static [&'static str], String)> {
                vec![$((
                    stringify!($name),
                    self.$name.to_value(),
                    <$type as Setting>::WORDS,
                    concat!($($doc),+).trim().to_owned(),
                ),)+]
            }
        }
    };
}

fn read<T: Setting>(name: &'static str, given: Value) -> Result<T, SettingError> {
    T::from_value(&given).ok_or_else(|| match (T::WORDS, &given) {
        ([first @ .., last], Value::Word(_)) => {
            SettingError::Word { name, given, words: format!("{} or {last}", first.join(", ")) }
        }
        _ => SettingError::Type { name, given, wanted: T::WANTED },
    })
}

settings! {
    /// Tokens of a page.
    page_tokens: u32 = 64;
    /// A fetch begins with more pages than this in the store (`hits`), or with so many missing (`missing`).
    threshold_pages: u32 = 4;
    /// What is compared with the threshold: pages that the store has, or pages that are missing here.
    start: PrefetchStart = PrefetchStart::Hits;
    /// When a request stops waiting for the store.
    stop: StopKind = StopKind::Timeout;
    /// With `timeout`: seconds to wait for the probe.
    stop_base: f64 = 2.0;
    /// With `timeout`: seconds to wait for each page.
    stop_per_page: f64 = 0.01;
    /// With `timeout`: seconds to wait at most.
    stop_most: f64 = 30.0;
    /// How pages are looked up.
    index: IndexKind = IndexKind::Radix;
    /// Which copy leaves a tier first.
    eviction: Eviction = Eviction::Lru;
    /// Which pages go down the hierarchy, and when.
    write: WritePolicy = WritePolicy::Through;
    /// Probes of the store in flight at most.
    probes: u32 = 64;
    /// Pages in flight from the store to the host at most.
    fetch_pages: u32 = 1024;
    /// Pages in flight from the device to the host at most.
    save_pages: u32 = 1024;
    /// Pages in flight from the host to the store at most.
    backup_pages: u32 = 1024;
    /// Requests on the device at most.
    running_max: u32 = 256;
    /// Pages of one operation at most.
    op_pages_max: u32 = 128;
    /// Seconds after which no request waits for an operation any more.
    op_timeout: f64 = 30.0;
    /// Seconds between two hints to stop an operation.
    hint_interval: f64 = 1.0;
    /// Seconds without probes after the store failed or missed a deadline; 0 for none.
    cooldown: f64 = 1.0;
    /// Report every copy that becomes available or is removed.
    events: bool = false;
}

impl Settings {
    /// The engine of these settings. The caller adds the sizes of the tiers and its rank; `has_store` says
    /// whether there is a store behind the host.
    #[must_use]
    pub fn config(&self, ticks_per_second: u32, has_store: bool) -> Config {
        let ticks = |seconds: f64| (seconds.max(0.0) * f64::from(ticks_per_second)).ceil() as u64;
        let stop = match self.stop {
            StopKind::BestEffort => PrefetchStop::BestEffort,
            StopKind::Wait => PrefetchStop::WaitComplete,
            StopKind::Timeout => PrefetchStop::Timeout {
                base: ticks(self.stop_base),
                per_page: ticks(self.stop_per_page),
                most: ticks(self.stop_most),
            },
        };
        let (start, threshold_pages) = (self.start, self.threshold_pages);
        Config {
            page_tokens: self.page_tokens,
            device_pages: 0,
            host_pages: 0,
            store: has_store.then_some(StoreConfig { start, threshold_pages, stop }),
            index: self.index,
            eviction: self.eviction,
            write: self.write,
            budgets: Budgets {
                probes: self.probes,
                fetch_pages: self.fetch_pages,
                save_pages: self.save_pages,
                backup_pages: self.backup_pages,
            },
            running_max: self.running_max,
            op_pages_max: self.op_pages_max,
            op_timeout: ticks(self.op_timeout),
            hint_interval: ticks(self.hint_interval),
            cooldown: ticks(self.cooldown),
            ranks: 1,
            rank: 0,
            events: self.events,
            mutant: Mutant::None,
        }
    }
}

impl Default for Config {
    /// The default settings in ticks of a millisecond, for tests and replays: a small engine with a store,
    /// with events and without a cooldown.
    fn default() -> Self {
        let config = Settings::default().config(1000, true);
        Self { device_pages: 1024, host_pages: 4096, cooldown: 0, events: true, ..config }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use expect_test::expect_file;

    use super::*;

    #[test]
    fn reference_page_of_kv_settings_is_as_committed() {
        let mut page =
            "# Settings of a KV engine\nGenerated by `make docs` from `crates/kv/src/settings.rs`. \
                        `tiffin.kv.Engine` takes them by name; [kv.md](kv.md) says what they are for.\n\n\
                        | setting | default | |\n|---|---|---|\n"
                .to_owned();
        for (name, default, words, meaning) in Settings::default().list() {
            let words = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            let words = if words.is_empty() { words } else { format!(" One of {words}.") };
            writeln!(page, "| `{name}` | `{default}` | {meaning}{words} |").unwrap();
        }
        expect_file!["../../../docs/kv-settings.md"].assert_eq(&page);
    }

    #[test]
    fn every_setting_can_be_set_to_its_own_value() {
        let mut settings = Settings::default();
        for (name, value, ..) in Settings::default().list() {
            settings.set(name, value).unwrap();
        }
        assert_eq!(settings, Settings::default());
        assert_eq!(Settings::NAMES.len(), settings.list().len());
    }

    #[test]
    fn wrong_values_are_refused_with_a_hint() {
        let mut settings = Settings::default();
        let word = |word: &str| Value::Word(word.to_owned());
        for (name, value, text) in [
            ("start", word("whenever"), "`whenever` is none of hits or missing\n\nhint: "),
            ("eviction", word("fifo"), "`fifo` is none of lru, s3-fifo or cost\n\nhint: "),
            ("probes", Value::Count(1 << 32), "probes=4294967296\n\nhint: it is between 0 and 4294967295"),
            ("stop_base", Value::Seconds(f64::NAN), "stop_base=NaN\n\nhint: it is a number of seconds"),
            (
                "page_size",
                Value::Count(1),
                "unknown setting `page_size`\n\nhint: the settings are page_tokens, ",
            ),
        ] {
            let error = settings.set(name, value).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn times_are_rounded_up_to_ticks() {
        let settings = Settings { stop_per_page: 0.0101, cooldown: -1.0, ..Settings::default() };
        let config = settings.config(1000, true);
        let stop = PrefetchStop::Timeout { base: 2_000, per_page: 11, most: 30_000 };
        assert_eq!(config.store.map(|store| store.stop), Some(stop));
        assert_eq!((config.op_timeout, config.cooldown), (30_000, 0));
        assert_eq!(settings.config(1_000_000, false).hint_interval, 1_000_000);
    }
}
