//! Parses command lines as gflags does, and the settings file of Mooncake's master.
//!
//! A flag has one or two dashes. Its value follows an equals sign or is the next word. Flags apply in
//! order, and the last value counts. `--flagfile`, `--fromenv` and `--tryfromenv` are replaced by the flags
//! that they name.

use std::collections::BTreeMap;
use std::io::{self, Read as _};

use crate::config::nearest::nearest;

/// The maximum length of a settings file or flag file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum depth of flag files that name each other.
const DEPTH_MAX: usize = 8;
/// The maximum length of a line in a message.
const SHOWN_MAX: usize = 80;
/// The first and the last column of the descriptions in the help.
const HELP_COLUMNS: (usize, usize) = (6, 100);

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--nox`, `--x=true`.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A whole number of 32 bits that is not negative.
    Uint32,
    /// A whole number of 64 bits that is not negative.
    Uint64,
    /// A number with a fraction.
    Decimal,
    /// A number from 0 to 1.
    Fraction,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `5s`, `30m`, or a number of milliseconds.
    Time,
}

/// The effect of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has the same effect as in Mooncake.
    Honoured,
    /// It is accepted, and a warning names it.
    Ignored,
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name without dashes.
    pub name: &'static str,
    /// The form of its value.
    pub kind: Kind,
    /// Its effect.
    pub what: Use,
    /// A one-line description.
    pub about: &'static str,
}

/// The flags of a program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name of the program in a flag file.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// Its own flags.
    pub own: &'static [Flag],
    /// The flags that it shares with other programs.
    pub common: &'static [Flag],
    /// Names in the settings file that differ from the flag's name.
    pub file_aliases: &'static [(&'static str, &'static str)],
}

/// Values by the name of the flag.
pub type Values = BTreeMap<&'static str, String>;

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The values of its flags.
    pub values: Values,
    /// Words that are neither a flag nor a value.
    pub strays: Vec<String>,
}

/// Why a command line or settings file cannot be parsed. The first line of each message is that of gflags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// The flag is unknown.
    #[error("unknown command line flag '{name}'{place}\n\nhint: {hint}")]
    Unknown {
        /// The flag as given.
        name: String,
        /// The file or variable, if it is not on the command line.
        place: String,
        /// The most similar flag.
        hint: String,
    },
    /// The flag has no value.
    #[error("flag '--{name}' is missing its argument{place}; flag description: {about}\n\nhint: {hint}")]
    Missing {
        /// The flag.
        name: &'static str,
        /// The file or variable, if it is not on the command line.
        place: String,
        /// Its description.
        about: &'static str,
        /// A valid form.
        hint: &'static str,
    },
    /// The value has the wrong type.
    #[error("illegal value '{value}' specified for {kind} flag '{name}'{place}\n\nhint: {hint}")]
    Value {
        /// The flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// The expected type.
        kind: &'static str,
        /// The file or variable, if it is not on the command line.
        place: String,
        /// A valid form.
        hint: &'static str,
    },
    /// The value has the right type, but is out of range.
    #[error("failed validation of new value '{value}' for flag '{name}'{place}\n\nhint: {hint}")]
    Refused {
        /// The flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// The file or variable, if it is not on the command line.
        place: String,
        /// A valid form.
        hint: &'static str,
    },
    /// A variable that `--fromenv` names is not set.
    #[error("FLAGS_{0} not found in environment\n\nhint: set it, or name the flag in --tryfromenv")]
    NotSet(String),
    /// A file cannot be read or parsed.
    #[error("cannot read the {what} `{path}`: {why}\n\nhint: {hint}")]
    File {
        /// The kind of file.
        what: &'static str,
        /// Its path.
        path: String,
        /// The problem.
        why: String,
        /// A valid form.
        hint: &'static str,
    },
}

impl Program {
    /// All flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.own.iter().chain(self.common)
    }

    /// Parses a command line without the name of the program. `variables` are those with the prefix
    /// `FLAGS_`, without it.
    pub fn parse(&self, args: &[String], variables: &BTreeMap<String, String>) -> Result<Line, FlagError> {
        let mut reader = Reader { program: self, variables, line: Line::default(), undefined: Vec::new() };
        reader.undefined = undefok(args);
        reader.words(args, &Place::default())?;
        Ok(reader.line)
    }

    /// Reads a settings file: JSON if it begins with a brace, otherwise flat YAML.
    pub fn read_file(&self, path: &str) -> Result<Values, FlagError> {
        self.parse_file(&read_text("settings file", path, FILE_HINT)?, path)
    }

    /// Parses the text of a settings file.
    pub fn parse_file(&self, text: &str, path: &str) -> Result<Values, FlagError> {
        let pairs = if text.trim_start().starts_with('{') { json_pairs(text) } else { yaml_pairs(text) };
        let place = format!(" in `{path}`");
        let mut values = Values::new();
        for (name, value) in pairs.map_err(|why| file_error("settings file", path, why, FILE_HINT))? {
            let alias = self.file_aliases.iter().find(|(alias, _)| *alias == name).map(|(_, flag)| *flag);
            let flag = self.find(alias.unwrap_or(&name)).ok_or_else(|| self.unknown(&name, &place))?;
            values.insert(flag.name, checked(flag, &value, &place)?);
        }
        Ok(values)
    }

    /// A warning that names the given flags without effect, if there are any.
    #[must_use]
    pub fn without_effect(&self, values: &Values) -> Option<String> {
        let is_given = |flag: &&Flag| flag.what == Use::Ignored && values.contains_key(flag.name);
        let names: Vec<_> = self.flags().filter(is_given).map(|flag| format!("--{}", flag.name)).collect();
        (!names.is_empty()).then(|| format!("these flags have no effect here: {}", names.join(", ")))
    }

    /// The text of `--help`: each flag with its description.
    #[must_use]
    pub fn help(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.about);
        let groups = [
            ("Flags", self.own, Use::Honoured),
            ("Flags of every program", self.common, Use::Honoured),
            ("Accepted without effect", self.own, Use::Ignored),
            ("Accepted without effect, of every program", self.common, Use::Ignored),
        ];
        for (title, flags, wanted) in groups {
            text.push_str(&format!("\n{title}:\n"));
            for flag in flags.iter().filter(|flag| flag.what == wanted) {
                let value = match flag.kind {
                    Kind::Bool => "[=true|false]",
                    Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64 => "=NUMBER",
                    Kind::Decimal | Kind::Fraction => "=FRACTION",
                    Kind::Text | Kind::Choice(_) => "=TEXT",
                    Kind::Time => "=TIME",
                };
                text.push_str(&format!("  --{}{value}\n{}", flag.name, wrapped(flag.about)));
            }
        }
        text
    }

    fn find(&self, name: &str) -> Option<&'static Flag> {
        let name = name.replace('-', "_");
        self.flags().find(|flag| flag.name == name)
    }

    fn unknown(&self, name: &str, place: &str) -> FlagError {
        let hint = match nearest(name, self.flags().map(|flag| flag.name)) {
            Some(near) => format!("did you mean `--{near}`?"),
            None => "`--help` lists the flags".to_owned(),
        };
        FlagError::Unknown { name: shown(name), place: place.to_owned(), hint }
    }
}

const FILE_HINT: &str = "write flat YAML (`rpc_port: 50051`) or JSON";
const FLAG_FILE_HINT: &str = "write one flag per line, such as `--rpc_port=50051`";

/// The position of a word.
#[derive(Clone, Debug, Default)]
struct Place {
    /// For messages; empty on the command line.
    shown: String,
    /// The number of nested flag files.
    depth: usize,
}

/// Parses words into a [`Line`].
struct Reader<'a> {
    program: &'a Program,
    variables: &'a BTreeMap<String, String>,
    line: Line,
    /// Unknown flags that are accepted.
    undefined: Vec<String>,
}

impl Reader<'_> {
    fn words(&mut self, words: &[String], place: &Place) -> Result<(), FlagError> {
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let Some(flag) = flag.filter(|flag| !flag.is_empty() || word == "--") else {
                self.line.strays.push(shown(word));
                continue;
            };
            if flag.is_empty() {
                // All words after `--` are positional.
                self.line.strays.extend(rest.map(|word| shown(word)));
                break;
            }
            let (name, given) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let found = match self.program.find(name) {
                Some(found) => found,
                None => match name.strip_prefix("no").and_then(|name| self.program.find(name)) {
                    Some(found) if found.kind == Kind::Bool && given.is_none() => {
                        self.line.values.insert(found.name, "false".to_owned());
                        continue;
                    }
                    _ if place.depth > 0 || self.is_undefok(name) => continue,
                    _ => return Err(self.program.unknown(name, &place.shown)),
                },
            };
            let value = match (given, found.kind) {
                (Some(value), _) => value,
                (None, Kind::Bool) => "true".to_owned(),
                (None, _) => match rest.next() {
                    Some(value) => value.clone(),
                    None => return Err(missing(found, &place.shown)),
                },
            };
            self.set(found, &value, place)?;
        }
        Ok(())
    }

    fn set(&mut self, flag: &'static Flag, value: &str, place: &Place) -> Result<(), FlagError> {
        let value = checked(flag, value, &place.shown)?;
        match flag.name {
            "flagfile" => {
                for path in value.split(',').filter(|path| !path.is_empty()) {
                    self.flag_file(path, place)?;
                }
            }
            "fromenv" | "tryfromenv" => {
                for name in value.split(',').filter(|name| !name.is_empty()) {
                    self.variable(name, flag.name == "fromenv")?;
                }
            }
            _ => drop(self.line.values.insert(flag.name, value)),
        }
        Ok(())
    }

    fn flag_file(&mut self, path: &str, place: &Place) -> Result<(), FlagError> {
        if place.depth >= DEPTH_MAX {
            let why = format!("more than {DEPTH_MAX} flag files name each other");
            return Err(file_error("flag file", path, why, "put the flags in one file"));
        }
        let text = read_text("flag file", path, FLAG_FILE_HINT)?;
        let place = Place { shown: format!(" in `{path}`"), depth: place.depth + 1 };
        let mut is_meant = true;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !line.starts_with('-') {
                // Such a line names the programs to which the flags below apply.
                is_meant = line.split_whitespace().any(|name| name == self.program.name || name == "*");
            } else if is_meant {
                let words: Vec<_> = line.splitn(2, ' ').map(|word| word.trim().to_owned()).collect();
                self.words(&words, &place)?;
            }
        }
        Ok(())
    }

    fn variable(&mut self, name: &str, is_required: bool) -> Result<(), FlagError> {
        let flag = match self.program.find(name) {
            Some(flag) => flag,
            None if self.is_undefok(name) => return Ok(()),
            None => return Err(self.program.unknown(name, " of --fromenv")),
        };
        match self.variables.get(flag.name).cloned() {
            // A variable that names further variables could name itself.
            Some(_) if matches!(flag.name, "fromenv" | "tryfromenv" | "flagfile") => Ok(()),
            Some(value) => {
                self.set(flag, &value, &Place { shown: format!(" in FLAGS_{}", flag.name), depth: 0 })
            }
            None if is_required => Err(FlagError::NotSet(shown(name))),
            None => Ok(()),
        }
    }

    fn is_undefok(&self, name: &str) -> bool {
        let plain = name.strip_prefix("no").unwrap_or(name);
        self.undefined.iter().any(|it| it == name || it == plain)
    }
}

/// The flags that may be unknown, from anywhere on the command line.
fn undefok(args: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let word = word.trim_start_matches('-');
        let value = match word.strip_prefix("undefok=") {
            Some(value) => value,
            None if word == "undefok" => rest.next().map_or("", String::as_str),
            None => continue,
        };
        names.extend(value.split(',').map(str::to_owned));
    }
    names
}

/// Whether a checked value of kind [`Kind::Bool`] is true.
#[must_use]
pub fn is_true(value: &str) -> bool {
    value == "true"
}

/// A checked value of kind [`Kind::Time`] in milliseconds.
#[must_use]
pub fn milliseconds(value: &str) -> Option<u64> {
    if let Ok(number) = value.parse() {
        return Some(number);
    }
    u64::try_from(humantime::parse_duration(value).ok()?.as_millis()).ok()
}

/// A port, or `default` if the flag is not set.
pub fn port(values: &Values, name: &'static str, default: u16) -> Result<u16, FlagError> {
    let Some(value) = values.get(name) else { return Ok(default) };
    let hint = "write a number up to 65535";
    value.parse().map_err(|_| FlagError::Refused { name, value: shown(value), place: String::new(), hint })
}

/// The value in canonical form.
fn checked(flag: &'static Flag, value: &str, place: &str) -> Result<String, FlagError> {
    let is_right = match flag.kind {
        Kind::Bool => match value.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "1" => return Ok("true".to_owned()),
            "false" | "f" | "no" | "n" | "0" => return Ok("false".to_owned()),
            _ => false,
        },
        Kind::Int32 => value.parse::<i32>().is_ok(),
        Kind::Int64 => value.parse::<i64>().is_ok(),
        Kind::Uint32 => value.parse::<u32>().is_ok(),
        Kind::Uint64 => value.parse::<u64>().is_ok(),
        Kind::Decimal => value.parse::<f64>().is_ok_and(f64::is_finite),
        Kind::Fraction => value.parse::<f64>().is_ok_and(|value| (0.0..=1.0).contains(&value)),
        Kind::Time => milliseconds(value).is_some(),
        Kind::Text => true,
        Kind::Choice(words) => words.contains(&value),
    };
    if is_right {
        return Ok(value.to_owned());
    }
    let (name, value, place, hint) = (flag.name, shown(value), place.to_owned(), hint(flag.kind));
    let kind = match flag.kind {
        Kind::Bool => "bool",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Uint32 => "uint32",
        Kind::Uint64 => "uint64",
        Kind::Decimal => "double",
        Kind::Fraction if value.parse::<f64>().is_ok_and(f64::is_finite) => {
            return Err(FlagError::Refused { name, value, place, hint });
        }
        Kind::Fraction => "double",
        Kind::Text | Kind::Time | Kind::Choice(_) => {
            return Err(FlagError::Refused { name, value, place, hint });
        }
    };
    Err(FlagError::Value { name, value, kind, place, hint })
}

fn missing(flag: &'static Flag, place: &str) -> FlagError {
    let (name, about, hint) = (flag.name, flag.about, hint(flag.kind));
    FlagError::Missing { name, place: place.to_owned(), about, hint }
}

fn hint(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "write `true` or `false` after an equals sign",
        Kind::Int32 | Kind::Int64 => "write a whole number",
        Kind::Uint32 | Kind::Uint64 => "write a whole number that is not negative",
        Kind::Decimal => "write a number such as `0.9`",
        Kind::Fraction => "write a number from 0 to 1, such as `0.9`",
        Kind::Choice(_) => "`--help` lists its values",
        Kind::Time => "write a time such as `5s` or `30m`, or a number of milliseconds",
        Kind::Text => "write it after the flag or an equals sign",
    }
}

fn file_error(what: &'static str, path: &str, why: String, hint: &'static str) -> FlagError {
    FlagError::File { what, path: path.to_owned(), why, hint }
}

fn read_text(what: &'static str, path: &str, hint: &'static str) -> Result<String, FlagError> {
    let fail = |why: String| file_error(what, path, why, hint);
    let read = || -> io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn json_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let pairs = object.into_iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => Ok((name, text)),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Ok((name, value.to_string())),
        _ => Err(format!("the value of `{name}` is not a string, a number or a boolean")),
    });
    pairs.collect()
}

/// Parses lines of `name: value`; flags need no more of YAML.
fn yaml_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_comment = line.trim_start().starts_with('#');
        if line.trim().is_empty() || is_comment || line.trim_end() == "---" {
            continue;
        }
        let odd = || format!("line {number} is not of the form `name: value`: {}", shown(line));
        let (name, value) = line.split_once(':').ok_or_else(odd)?;
        if name.starts_with([' ', '\t', '-']) {
            return Err(odd());
        }
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|&quote| {
            let (inner, behind) = value.strip_prefix(quote)?.split_once(quote)?;
            let behind = behind.trim();
            (behind.is_empty() || behind.starts_with('#')).then_some(inner)
        });
        let plain = || value.split(" #").next().unwrap_or_default().trim();
        let value = match quoted {
            Some(inner) => inner,
            None if value.starts_with('#') => "",
            None => plain(),
        };
        pairs.push((name.trim().to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// A description in the columns of the help.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if HELP_COLUMNS.0 + line.len() + 1 + word.len() <= HELP_COLUMNS.1 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| format!("{:1$}{line}\n", "", HELP_COLUMNS.0)).collect()
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect::<String>().escape_debug().to_string()
}
