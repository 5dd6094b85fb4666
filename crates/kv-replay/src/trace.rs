//! Traces: requests with their arrival, their lengths and the pages of their prompts.
//!
//! The format is that of Mooncake's public traces, one JSON object per line: `timestamp` in milliseconds,
//! `input_length` and `output_length` in tokens, `hash_ids` of the blocks of the prompt, already chained:
//! equal ids are equal prefixes.

use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// A request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Arrival, in milliseconds.
    pub timestamp: u64,
    /// Tokens of its prompt.
    pub input_length: u32,
    /// Tokens that it generates.
    pub output_length: u32,
    /// The blocks of its prompt, the last of which may not be full.
    pub hash_ids: Vec<u64>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("line {line} cannot be read: {error}\n\nhint: check the file and the disk that it is on")]
    Read {
        /// The number of the line, from 1 on.
        line: u64,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line is not a request.
    #[error(
        "line {line} is not a request: {}\n\nhint: a line is a JSON object with `timestamp`, \
         `input_length`, `output_length` and `hash_ids`", parse_problem(.error)
    )]
    Parse {
        /// The number of the line, from 1 on.
        line: u64,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// The number of blocks does not match the length of the prompt.
    #[error(
        "line {line} has {blocks} blocks for {tokens} tokens\n\nhint: a block is {page_tokens} tokens; \
         `--page-tokens` changes that"
    )]
    Blocks {
        /// The number of the line, from 1 on.
        line: u64,
        /// Number of blocks.
        blocks: usize,
        /// Number of tokens.
        tokens: u32,
        /// Tokens of a block.
        page_tokens: u32,
    },
    /// A line is too long.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes\n\nhint: check that this is a trace")]
    TooLong {
        /// The number of the line, from 1 on.
        line: u64,
    },
}

/// The parser's message without the line number, which is always 1.
fn parse_problem(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// Reads a trace; requests are sorted by their times.
///
/// # Errors
/// The first line that is not a request, with its number.
pub fn read(mut from: impl BufRead, page_tokens: u32) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = std::io::Read::take(&mut from, most).read_until(b'\n', &mut bytes);
        if read.map_err(|error| TraceError::Read { line, error })? == 0 {
            break;
        }
        if bytes.len() > LINE_BYTES_MAX {
            return Err(TraceError::TooLong { line });
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let parsed = serde_json::from_slice(&bytes);
        let request: TraceRequest = parsed.map_err(|error| TraceError::Parse { line, error })?;
        let (blocks, tokens) = (request.hash_ids.len(), request.input_length);
        let page = page_tokens.max(1);
        // The last block may be partial.
        if !((tokens / page) as usize..=tokens.div_ceil(page) as usize).contains(&blocks) {
            return Err(TraceError::Blocks { line, blocks, tokens, page_tokens });
        }
        requests.push(request);
    }
    requests.sort_by_key(|request| request.timestamp);
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_is_not_a_request_is_reported() {
        let good = r#"{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}"#;
        let early = r#"{"timestamp": 1, "input_length": 3, "output_length": 2, "hash_ids": []}"#;
        let read = |text: &str| read(text.as_bytes(), 512);
        let requests = read(&format!("{good}\n\n{early}\n")).unwrap();
        assert_eq!(requests.iter().map(|it| it.timestamp).collect::<Vec<_>>(), [1, 5]);
        for (text, says) in [
            (format!("{good}\nnonsense"), "line 2 is not a request"),
            (format!("{good}\n{{\"timestamp\": 1}}"), "line 2 is not a request: missing field"),
            (good.replace("[1, 2]", "[1, 2, 3]"), "line 1 has 3 blocks for 600 tokens"),
            (good.replace("600", "-600"), "line 1 is not a request"),
            (good.replace("600", "1600"), "line 1 has 2 blocks for 1600 tokens"),
            (format!("{good}\nbad"), "line 2 is not a request: expected value at column 1"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.starts_with(says) && error.contains("\n\nhint: "), "{error}");
        }
    }
}
