//! The settings file: common settings on top, then one table for each kind of process.
//!
//! ```toml
//! token = "…"
//! [master]
//! lease_ttl = "5s"
//! [node]
//! memory = "8GiB"
//! ```
//!
//! One file serves every process of a site; each process reads its own table. Unknown keys are rejected in
//! all tables, because an ignored typo would be noticed too late.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Command};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use toml::de::{DeTable, DeValue};

use super::nearest::nearest;
use super::values;
use super::{
    ClientArgs, CommonArgs, ConfigError, EtcdArgs, HaArgs, MasterArgs, NodeArgs, StorageArgs, TierArgs,
    TlsArgs,
};

/// The maximum length of a settings file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The contents of a settings file.
#[derive(Clone, Debug, Default)]
pub struct SettingsFile {
    /// The top of the file.
    pub common: CommonArgs,
    /// On top too: the files for TLS.
    pub tls: TlsArgs,
    /// On top too: the files for etcd.
    pub etcd: EtcdArgs,
    /// Under `[master]`.
    pub master: MasterArgs,
    /// Under `[master]` too: several masters.
    pub ha: HaArgs,
    /// Under `[master]` too: the disks.
    pub tier: TierArgs,
    /// Under `[node]`.
    pub node: NodeArgs,
    /// Under `[node]` too: the memory settings, which `tiffin up` also reads.
    pub storage: StorageArgs,
    /// Under `[client]`.
    pub client: ClientArgs,
}

/// Deserializes one table of the file, or its default if the file has none.
macro_rules! table {
    ($name:ident, $text:expr, $path:expr) => {{
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned + Default")]
        struct Only<T> {
            #[serde(default)]
            $name: T,
        }
        deserialize::<Only<_>>($text, $path)?.$name
    }};
}

impl SettingsFile {
    /// Reads and checks the file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        let fail = |source| ConfigError::Unreadable { path: shown.clone(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(fail)?;
        Self::parse(&text, &shown)
    }

    /// Parses and checks the text. `path` is for messages only.
    pub fn parse(text: &str, path: &str) -> Result<Self, ConfigError> {
        check_keys(text, path)?;
        Ok(Self {
            common: deserialize(text, path)?,
            tls: deserialize(text, path)?,
            etcd: deserialize(text, path)?,
            master: table!(master, text, path),
            ha: table!(master, text, path),
            tier: table!(master, text, path),
            node: table!(node, text, path),
            storage: table!(node, text, path),
            client: table!(client, text, path),
        })
    }
}

/// Deserializes a setting from the text that its flag accepts.
pub(super) fn text<'de, D: Deserializer<'de>, T>(value: D) -> Result<Option<T>, D::Error>
where
    T: FromStr,
    T::Err: Display,
{
    let text = String::deserialize(value)?;
    text.parse().map(Some).map_err(|error: T::Err| D::Error::custom(first_line(&error.to_string())))
}

/// Deserializes a duration from the text that its flag accepts.
pub(super) fn duration<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(value)?;
    values::duration(&text).map(Some).map_err(|error| D::Error::custom(first_line(&error.to_string())))
}

/// Deserializes a size from the text that its flag accepts, or from a bare number of bytes.
pub(super) fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<ByteSize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum BytesOrText {
        Bytes(u64),
        Text(String),
    }
    match BytesOrText::deserialize(value)? {
        BytesOrText::Bytes(bytes) => Ok(Some(ByteSize::b(bytes))),
        BytesOrText::Text(text) => {
            values::size(&text).map(Some).map_err(|error| D::Error::custom(first_line(&error.to_string())))
        }
    }
}

/// The keys of such settings in a file.
pub(super) fn keys<A: Args>() -> Vec<String> {
    let command = A::augment_args(Command::new("keys"));
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    arguments.map(|argument| argument.get_id().to_string()).filter(|key| key != "config").collect()
}

fn deserialize<T: DeserializeOwned>(text: &str, path: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| file_error(text, path, &error))
}

fn file_error(text: &str, path: &str, error: &toml::de::Error) -> ConfigError {
    let line = line_of(text, error.span().map_or(0, |span| span.start));
    ConfigError::File { path: path.to_owned(), line, what: first_line(error.message()).to_owned() }
}

fn check_keys(text: &str, path: &str) -> Result<(), ConfigError> {
    let table = DeTable::parse(text).map_err(|error| file_error(text, path, &error))?;
    let sections: [(&str, Vec<String>); 3] =
        [("master", keys::<MasterArgs>()), ("node", keys::<NodeArgs>()), ("client", keys::<ClientArgs>())];
    let mut known = keys::<CommonArgs>();
    known.extend(sections.iter().map(|(name, _)| (*name).to_owned()));
    let unknown = |at: usize, key: &str, section: Option<&str>, known: &[String]| {
        let prefix = section.map(|name| format!(" in `[{name}]`")).unwrap_or_default();
        let elsewhere = sections.iter().find(|(_, keys)| keys.iter().any(|it| it == key));
        let hint = match (nearest(key, known.iter().map(String::as_str)), elsewhere) {
            (_, Some((home, _))) => format!("`{key}` belongs in the table `[{home}]`"),
            (Some(near), None) => format!("did you mean `{near}`?"),
            (None, None) => format!("the settings there are {}", known.join(", ")),
        };
        let line = line_of(text, at);
        ConfigError::Unknown { path: path.to_owned(), line, key: key.to_owned(), section: prefix, hint }
    };
    for (key, value) in table.get_ref() {
        let name: &str = key.get_ref();
        if !known.iter().any(|it| it == name) {
            return Err(unknown(key.span().start, name, None, &known));
        }
        let Some((section, inner_known)) = sections.iter().find(|(section, _)| *section == name) else {
            continue;
        };
        let DeValue::Table(inner) = value.get_ref() else { continue };
        for inner_key in inner.keys() {
            let name: &str = inner_key.get_ref();
            if !inner_known.iter().any(|it| it == name) {
                return Err(unknown(inner_key.span().start, name, Some(section), inner_known));
            }
        }
    }
    Ok(())
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
