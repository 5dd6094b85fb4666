//! Command lines as gflags reads them, and the settings file of Mooncake's master.
//!
//! A flag has one or two dashes, and its value follows an equals sign or is the next word. Flags are read in
//! order and the last value counts; `--flagfile`, `--fromenv` and `--tryfromenv` stand for the flags that
//! they name, at their place in that order.

use std::collections::BTreeMap;
use std::io::{self, Read as _};

use crate::config::nearest::nearest;

/// The longest settings file or flag file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most flag files that name each other.
const DEPTH_MAX: usize = 8;
/// The longest line that is shown in a message.
const SHOWN_MAX: usize = 80;
/// The column in which the descriptions of the help begin, and where they end.
const HELP_COLUMNS: (usize, usize) = (6, 100);

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--nox`, `--x=true`.
    Bool,
    /// A whole number.
    Number,
    /// A number with a fraction.
    Decimal,
    /// Anything.
    Text,
    /// `5s`, `30m`, or a number of milliseconds.
    Time,
}

/// The effect of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has the effect that it has in Mooncake.
    Honoured,
    /// It is accepted, and a warning names it.
    Ignored,
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    /// The form of its value.
    pub kind: Kind,
    /// Its effect.
    pub what: Use,
    /// One line for people.
    pub about: &'static str,
}

/// The flags of a program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, as in a flag file.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Its own flags.
    pub own: &'static [Flag],
    /// Those that it shares with other programs.
    pub common: &'static [Flag],
    /// Names that its settings file has for flags of other names.
    pub file_aliases: &'static [(&'static str, &'static str)],
}

/// Values by the name of the flag.
pub type Values = BTreeMap<&'static str, String>;

/// A command line, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The flags that it sets.
    pub values: Values,
    /// Words that are neither a flag nor a value.
    pub strays: Vec<String>,
}

/// A command line or settings file that is not understood. The first line of each message is that of gflags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// There is no such flag.
    #[error("unknown command line flag '{name}'{place}\n\nhint: {hint}")]
    Unknown {
        /// As it was written.
        name: String,
        /// Where, if not on the command line.
        place: String,
        /// The nearest one that there is.
        hint: String,
    },
    /// It has no value.
    #[error("flag '--{name}' is missing its argument{place}; flag description: {about}\n\nhint: {hint}")]
    Missing {
        /// Which flag.
        name: &'static str,
        /// Where, if not on the command line.
        place: String,
        /// Its description.
        about: &'static str,
        /// What to write.
        hint: &'static str,
    },
    /// Its value is not one of its kind.
    #[error("illegal value '{value}' specified for {kind} flag '{name}'{place}\n\nhint: {hint}")]
    Value {
        /// Which flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// The kind of value that it has.
        kind: &'static str,
        /// Where, if not on the command line.
        place: String,
        /// What to write.
        hint: &'static str,
    },
    /// Its value has the right form and no meaning.
    #[error("failed validation of new value '{value}' for flag '{name}'{place}\n\nhint: {hint}")]
    Refused {
        /// Which flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// Where, if not on the command line.
        place: String,
        /// What to write.
        hint: &'static str,
    },
    /// A variable that `--fromenv` names is not set.
    #[error("FLAGS_{0} not found in environment\n\nhint: set it, or name the flag in --tryfromenv")]
    NotSet(String),
    /// A file cannot be read or understood.
    #[error("cannot read the {what} `{path}`: {why}\n\nhint: {hint}")]
    File {
        /// Which kind of file.
        what: &'static str,
        /// Where it is.
        path: String,
        /// What is wrong.
        why: String,
        /// What would be right.
        hint: &'static str,
    },
}

impl Program {
    /// Every flag.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.own.iter().chain(self.common)
    }

    /// Reads a command line, without the program's own name. `variables` are those whose names begin with
    /// `FLAGS_`, without that.
    pub fn parse(&self, args: &[String], variables: &BTreeMap<String, String>) -> Result<Line, FlagError> {
        let mut reader = Reader { program: self, variables, line: Line::default(), undefined: Vec::new() };
        reader.undefined = undefok(args);
        reader.words(args, &Place::default())?;
        Ok(reader.line)
    }

    /// Reads a settings file: JSON if it begins like it, else flat YAML.
    pub fn read_file(&self, path: &str) -> Result<Values, FlagError> {
        self.parse_file(&read_text("settings file", path, FILE_HINT)?, path)
    }

    /// Reads the text of a settings file.
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

    /// A line that names the given flags that have no effect, if there are any.
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
                    Kind::Number => "=NUMBER",
                    Kind::Decimal => "=FRACTION",
                    Kind::Text => "=TEXT",
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
            None => "`--help` lists them".to_owned(),
        };
        FlagError::Unknown { name: shown(name), place: place.to_owned(), hint }
    }
}

const FILE_HINT: &str = "it is flat YAML (`rpc_port: 50051`) or JSON";
const FLAG_FILE_HINT: &str = "it has one flag per line, such as `--rpc_port=50051`";

/// Where a word stands.
#[derive(Clone, Debug, Default)]
struct Place {
    /// For messages; empty on the command line.
    shown: String,
    /// How many flag files lead to it.
    depth: usize,
}

/// Reads words into a [`Line`].
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
                // Everything behind `--` is a positional word.
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
            return Err(file_error("flag file", path, why, "put the flags into one file"));
        }
        let text = read_text("flag file", path, FLAG_FILE_HINT)?;
        let place = Place { shown: format!(" in `{path}`"), depth: place.depth + 1 };
        let mut is_meant = true;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !line.starts_with('-') {
                // Such a line names the programs that the flags below it are meant for.
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

/// The flags that may be unknown, wherever that is said.
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
    let hint = "ports are numbers up to 65535";
    value.parse().map_err(|_| FlagError::Refused { name, value: shown(value), place: String::new(), hint })
}

/// The value as the rest of the program expects it.
fn checked(flag: &'static Flag, value: &str, place: &str) -> Result<String, FlagError> {
    let is_right = match flag.kind {
        Kind::Bool => match value.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "1" => return Ok("true".to_owned()),
            "false" | "f" | "no" | "n" | "0" => return Ok("false".to_owned()),
            _ => false,
        },
        Kind::Number => value.parse::<i64>().is_ok() || value.parse::<u64>().is_ok(),
        Kind::Decimal => value.parse::<f64>().is_ok_and(f64::is_finite),
        Kind::Time => milliseconds(value).is_some(),
        Kind::Text => true,
    };
    if is_right {
        return Ok(value.to_owned());
    }
    let (name, value, place, hint) = (flag.name, shown(value), place.to_owned(), hint(flag.kind));
    let kind = match flag.kind {
        Kind::Bool => "bool",
        Kind::Number => "integer",
        Kind::Decimal => "double",
        Kind::Text | Kind::Time => return Err(FlagError::Refused { name, value, place, hint }),
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
        Kind::Number => "write a whole number",
        Kind::Decimal => "write a number such as `0.9`",
        Kind::Time => "write a time such as `5s` or `30m`, or a number of milliseconds",
        Kind::Text => "write it behind the flag or an equals sign",
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
        _ => Err(format!("`{name}` is neither text nor number nor truth value")),
    });
    pairs.collect()
}

/// Lines of `name: value`; flags need nothing else of YAML.
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
