//! The access file: names, hashes, rights, namespaces and expiry of tokens, in TOML.
//!
//! ```toml
//! [[token]]
//! name = "trainer"
//! hash = "blake3:…"
//! rights = ["read", "write"]
//! namespaces = ["team-a", "shared-*"]
//! expires = "2027-01-01T00:00:00Z"
//! ```
//! `tiffin token` writes it. Tokens have 256 random bits, so a plain hash of them reveals nothing. The file
//! is replaced as a whole, so a server never reads a part of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use blake3::Hash;
use serde::{Deserialize, Serialize};
use tiffin_rpc::host;
use tiffin_types::NAMESPACE_BYTES_MAX;
use tiffin_types::access::{Credential, NAME_PATTERNS_MAX, NamePattern, Namespaces, Right, Rights};

/// The maximum number of tokens in a file.
pub const TOKENS_MAX: usize = 1024;
/// The maximum length of a token's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The maximum length of a file, in bytes: more than [`TOKENS_MAX`] tokens with long lists.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The last second of the year 9999, which is the last that a time can name.
const RFC3339_SECONDS_MAX: u64 = 253_402_300_799;
/// How a hash begins.
const HASH_PREFIX: &str = "blake3:";
/// How a token begins, so that programs that look for leaked secrets find it.
const TOKEN_PREFIX: &str = "tiffin_";

/// Why an access file cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read or written.
    #[error("cannot {what} the access file `{}`: {source}\n\nhint: {hint}", .path.display())]
    System {
        /// Which step failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// Its content is invalid.
    #[error("`{}`: {what}\n\nhint: `tiffin token` writes such a file", .path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// A token cannot be added or removed.
    #[error("{what}\n\nhint: {hint}")]
    Token {
        /// The problem.
        what: String,
        /// What to do.
        hint: String,
    },
}

/// The tokens of a file.
#[derive(Debug, Default)]
pub struct AccessFile {
    /// In the order of the file.
    pub tokens: Vec<TokenEntry>,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    pub(super) hash: Hash,
    /// What its holder may do.
    pub credential: Credential,
}

/// The properties of a token to create.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name.
    pub name: String,
    /// Its rights.
    pub rights: Rights,
    /// The patterns of its namespaces; none for all.
    pub namespaces: Vec<String>,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    token: Vec<Table>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    hash: String,
    rights: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

/// Which content a path has: it changes with every replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Version(u64, u64, u64, i64, i64);

impl Version {
    pub(super) fn of(path: &Path) -> Result<Self, AccessError> {
        let found = fs::metadata(path).map_err(|source| unreadable(path, source))?;
        Ok(Self(found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    }
}

impl AccessFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let mut text = String::new();
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|source| unreadable(path, source))?;
        let problem = |what| AccessError::Content { path: path.to_owned(), what };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(problem(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(problem)
    }

    /// Parses the text of a file. `Err` is the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        // The parser's message quotes the line, which may hold a token that was pasted by mistake.
        let tables: Tables = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(0, |span| text.get(..span.start).unwrap_or_default().lines().count().max(1));
            format!("line {line}: {}", error.message())
        })?;
        if tables.token.len() > TOKENS_MAX {
            return Err(format!("it has more than {TOKENS_MAX} tokens"));
        }
        let mut tokens: Vec<TokenEntry> = Vec::new();
        for table in &tables.token {
            let entry = table.entry()?;
            let name = &entry.credential.name;
            if tokens.iter().any(|it| it.credential.name == *name) {
                return Err(format!("two tokens have the name `{name}`"));
            }
            tokens.push(entry);
        }
        Ok(Self { tokens })
    }

    /// Creates a token in the file, which need not exist. Returns the token, which is stored nowhere.
    pub fn create(path: &Path, new: &NewToken) -> Result<String, AccessError> {
        let refuse = |what: String, hint: &str| AccessError::Token { what, hint: hint.to_owned() };
        let token = random_token().map_err(|source| AccessError::System {
            what: "draw a random number for",
            path: path.to_owned(),
            source,
            hint: "try again",
        })?;
        let table = Table {
            name: new.name.clone(),
            hash: format!("{HASH_PREFIX}{}", blake3::hash(token.as_bytes()).to_hex()),
            rights: new.rights.iter().map(|it| it.name().to_owned()).collect(),
            namespaces: Some(new.namespaces.clone()).filter(|it| !it.is_empty()),
            expires: new.expires_ms.map(rfc3339),
        };
        let entry = match table.entry() {
            Ok(entry) => entry,
            Err(what) => return Err(refuse(what, "see `tiffin token create --help`")),
        };
        Self::change(path, |file| {
            if file.tokens.iter().any(|it| it.credential.name == new.name) {
                let hint = "choose another name: both may be valid while clients change to the new token";
                return Err(refuse(format!("a token with the name `{}` exists", new.name), hint));
            }
            if file.tokens.len() >= TOKENS_MAX {
                let what = format!("the file has {TOKENS_MAX} tokens already");
                return Err(refuse(what, "remove old ones with `tiffin token revoke`"));
            }
            file.tokens.push(entry);
            Ok(())
        })?;
        Ok(token)
    }

    /// Removes the token of this name.
    pub fn revoke(path: &Path, name: &str) -> Result<(), AccessError> {
        Version::of(path)?;
        Self::change(path, |file| {
            let before = file.tokens.len();
            file.tokens.retain(|it| it.credential.name != name);
            if file.tokens.len() < before {
                return Ok(());
            }
            let (what, hint) = (format!("there is no token `{name}`"), "`tiffin token list` shows the names");
            Err(AccessError::Token { what, hint: hint.to_owned() })
        })
    }

    /// Changes a file, which need not exist. Of two changes at the same time one is refused.
    fn change(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let failed =
            |what, hint| move |source| AccessError::System { what, path: path.to_owned(), source, hint };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let draft = path.with_file_name(name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
        let hint = "check the folder; if no other `tiffin token` runs, remove the file that ends in `.new`";
        let mut file = opened.map_err(failed("change", hint))?;
        let written = (|| {
            let mut tokens = match path.exists() {
                true => Self::read(path)?,
                false => Self::default(),
            };
            change(&mut tokens)?;
            let write = file.write_all(tokens.text().as_bytes()).and_then(|()| file.sync_all());
            write.and_then(|()| fs::rename(&draft, path)).map_err(failed("write", "check the folder"))
        })();
        if written.is_err() {
            // The error that is returned says more than that of this removal.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    fn text(&self) -> String {
        let tables = Tables { token: self.tokens.iter().map(Table::of).collect() };
        let text = toml::to_string(&tables).unwrap_or_default();
        format!("# The tokens that servers accept. `tiffin token` writes this file.\n\n{text}")
    }
}

impl Table {
    fn of(entry: &TokenEntry) -> Self {
        let credential = &entry.credential;
        Self {
            name: credential.name.clone(),
            hash: format!("{HASH_PREFIX}{}", entry.hash.to_hex()),
            rights: credential.rights().iter().map(|it| it.name().to_owned()).collect(),
            namespaces: match credential.namespaces() {
                Namespaces::All => None,
                Namespaces::Some(names) => Some(names.iter().map(|it| it.as_str().to_owned()).collect()),
            },
            expires: credential.expires_ms().map(rfc3339),
        }
    }

    fn entry(&self) -> Result<TokenEntry, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            return Err(format!(
                "a token's name is 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_`, `.`, `@`"
            ));
        }
        let of = |what: String| format!("token `{}`: {what}", self.name);
        // A wrong hash is not shown: it may be a token.
        let hash = self.hash.strip_prefix(HASH_PREFIX).and_then(|it| Hash::from_hex(it).ok());
        let hash = hash.ok_or_else(|| of(format!("its hash is not `{HASH_PREFIX}` and 64 digits")))?;
        let right =
            |name: &String| Right::named(name).ok_or_else(|| of(format!("there is no right `{name}`")));
        let rights: Rights =
            self.rights.iter().map(right).collect::<Result<Vec<_>, _>>()?.into_iter().collect();
        if rights == Rights::NONE {
            return Err(of("it has no rights".to_owned()));
        }
        let namespaces = match &self.namespaces {
            None => Namespaces::All,
            Some(names) if names.len() > NAME_PATTERNS_MAX => {
                return Err(of(format!("it has more than {NAME_PATTERNS_MAX} namespaces")));
            }
            Some(names) => {
                let pattern = |name: &String| {
                    let pattern = NamePattern::new(name).filter(|_| name.len() <= NAMESPACE_BYTES_MAX + 1);
                    pattern
                        .ok_or_else(|| of(format!("`{name}` is neither a namespace nor its start and `*`")))
                };
                Namespaces::Some(names.iter().map(pattern).collect::<Result<_, _>>()?)
            }
        };
        if rights.has(Right::Node) && !namespaces.is_all() {
            return Err(of(
                "the right `node` is for all namespaces, because nodes store all of them".to_owned()
            ));
        }
        let expires_ms = match &self.expires {
            None => None,
            Some(text) => {
                let end = humantime::parse_rfc3339(text).map_err(|_| of(format!("invalid time `{text}`")))?;
                let since = end.duration_since(UNIX_EPOCH).unwrap_or_default();
                Some(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
            }
        };
        Ok(TokenEntry { hash, credential: Credential::new(&self.name, rights, namespaces, expires_ms) })
    }
}

/// A point in time as text, to the second.
fn rfc3339(ms: u64) -> String {
    let at = UNIX_EPOCH
        .checked_add(Duration::from_secs((ms / 1000).min(RFC3339_SECONDS_MAX)))
        .unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

fn random_token() -> io::Result<String> {
    let mut token = TOKEN_PREFIX.to_owned();
    for _ in 0..4 {
        token.push_str(&format!("{:016x}", host::draw()?));
    }
    Ok(token)
}

fn unreadable(path: &Path, source: io::Error) -> AccessError {
    let hint = "check the path, and that this user may read it; `tiffin token create` makes the file";
    AccessError::System { what: "read", path: path.to_owned(), source, hint }
}
