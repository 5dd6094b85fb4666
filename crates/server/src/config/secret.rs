//! The token that a process shows to servers, and, where it is a server itself, accepts with all rights.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use tiffin_transport::TOKEN_BYTES_MAX;

use super::{CommonArgs, ConfigError, UpConfig};
use crate::host;

impl CommonArgs {
    /// The checked token; empty for none.
    pub fn token(&self) -> Result<String, ConfigError> {
        let token = match (&self.token, &self.token_file) {
            (Some(_), Some(_)) => {
                let what = "there are two tokens: `token` and the content of `token_file`";
                return Err(ConfigError::Missing { what, hint: "give one of them" });
            }
            (Some(token), None) => token.clone(),
            (None, Some(path)) => read(path)?,
            (None, None) => String::new(),
        };
        let problem = if token.len() > TOKEN_BYTES_MAX {
            Some(format!("it has more than {TOKEN_BYTES_MAX} bytes"))
        } else if token.chars().any(|c| c.is_whitespace() || c.is_control()) {
            Some("it contains white space, which an HTTP header cannot carry".to_owned())
        } else {
            None
        };
        match problem {
            None => Ok(token),
            Some(why) => Err(ConfigError::Value {
                name: if self.token_file.is_some() { "token_file" } else { "token" },
                value: "not usable".to_owned(),
                why,
                hint: "use 32 random letters and digits".to_owned(),
            }),
        }
    }
}

impl UpConfig {
    /// Where only an access file says who may connect, master and node of one process share a random token.
    pub(super) fn know_each_other(&mut self) -> Result<(), ConfigError> {
        if self.master.access_file.is_none() || !self.master.token.is_empty() {
            return Ok(());
        }
        let mut token = String::new();
        for _ in 0..4 {
            let drawn = host::draw().map_err(|_| ConfigError::Missing {
                what: "cannot draw a random number",
                hint: "try again",
            })?;
            token.push_str(&format!("{drawn:016x}"));
        }
        (self.master.token, self.node.token) = (token.clone(), token);
        Ok(())
    }
}

/// The token in a file: its content without white space at the end.
fn read(path: &Path) -> Result<String, ConfigError> {
    let refuse = |why: String| ConfigError::Value {
        name: "token_file",
        value: format!("`{}`", path.display()),
        why,
        hint: "write the token, and nothing else, into a file that this user may read".to_owned(),
    };
    let file = File::open(path).map_err(|error| refuse(format!("it cannot be read: {error}")))?;
    let mut text = String::new();
    let read = file.take(TOKEN_BYTES_MAX as u64 + 3).read_to_string(&mut text);
    read.map_err(|error| refuse(format!("it cannot be read: {error}")))?;
    match text.trim_end() {
        "" => Err(refuse("it is empty".to_owned())),
        token => Ok(token.to_owned()),
    }
}
