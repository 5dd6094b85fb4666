//! The source of the bytes of a put.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use crate::console::{Console, Failure};
use crate::progress::Progress;
use crate::show;

/// Bytes read at a time. A value is kept in pieces of this size, so that it is never copied into a larger
/// buffer.
const PIECE_BYTES: u64 = 8 << 20;
/// Number of pieces that are read ahead.
const PIECES_AHEAD: usize = 4;

/// The source of a value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// An argument.
    Value(OsString),
    /// Standard input.
    Standard,
    /// A file.
    File(PathBuf),
}

impl Input {
    /// The source that the arguments of a put name.
    pub(crate) fn choose(value: Option<OsString>, file: Option<PathBuf>) -> Self {
        match (value, file) {
            (Some(value), _) => Self::Value(value),
            (None, Some(path)) if path != Path::new("-") => Self::File(path),
            (None, _) => Self::Standard,
        }
    }

    /// All bytes, in pieces; fails as soon as they exceed `most`.
    pub(crate) async fn read(self, most: u64, console: &mut Console) -> Result<Vec<Vec<u8>>, Failure> {
        let (total, source) = match self {
            Self::Value(text) => return limited(OsStr::as_bytes(&text).to_vec(), most),
            Self::Standard => (0, Source { reader: Box::new(io::stdin()), path: None }),
            Self::File(path) => open(path)?,
        };
        if total > most {
            return Err(too_large(most));
        }
        let (sender, mut receiver) = mpsc::channel(PIECES_AHEAD);
        // A read from a terminal or a pipe may never end; the process does not wait for this thread.
        tokio::task::spawn_blocking(move || source.send_to(&sender));
        let mut progress = Progress::of(total);
        let (mut pieces, mut sum) = (Vec::new(), 0_u64);
        while let Some(piece) = receiver.recv().await {
            let piece: Vec<u8> = piece?;
            sum = sum.saturating_add(piece.len() as u64);
            if sum > most {
                return Err(too_large(most));
            }
            progress.advance(console, piece.len() as u64);
            pieces.push(piece);
        }
        progress.finish(console);
        Ok(pieces)
    }
}

struct Source {
    reader: Box<dyn Read + Send>,
    path: Option<PathBuf>,
}

impl Source {
    fn send_to(mut self, sender: &mpsc::Sender<Result<Vec<u8>, Failure>>) {
        loop {
            let mut piece = Vec::new();
            let read = (&mut self.reader).take(PIECE_BYTES).read_to_end(&mut piece);
            let is_last = matches!(read, Ok(0) | Err(_));
            let piece = read.map(|_| piece).map_err(|error| match &self.path {
                Some(path) => Failure::file("read", path, &error),
                None => Failure::from(error),
            });
            if matches!(&piece, Ok(bytes) if bytes.is_empty())
                || sender.blocking_send(piece).is_err()
                || is_last
            {
                return;
            }
        }
    }
}

fn open(path: PathBuf) -> Result<(u64, Source), Failure> {
    let fail = |error: io::Error| Failure::file("read", &path, &error);
    let file = File::open(&path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(fail(io::ErrorKind::IsADirectory.into()));
    }
    Ok((metadata.len(), Source { reader: Box::new(file), path: Some(path) }))
}

fn limited(bytes: Vec<u8>, most: u64) -> Result<Vec<Vec<u8>>, Failure> {
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(vec![bytes]) }
}

fn too_large(most: u64) -> Failure {
    let message = format!("the value is larger than the largest node, which has {}", show::size(most));
    Failure::new("full", message).hint("start a node with more memory, or split the value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_wins_over_file_and_dash_is_standard_input() {
        for (value, file, expected) in [
            (Some("v"), None, Input::Value("v".into())),
            (None, Some("f"), Input::File("f".into())),
            (None, Some("-"), Input::Standard),
            (None, None, Input::Standard),
        ] {
            assert_eq!(Input::choose(value.map(Into::into), file.map(Into::into)), expected);
        }
    }

    #[tokio::test]
    async fn file_is_read_in_pieces_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        let content: Vec<u8> = (0..PIECE_BYTES + 5).map(|byte| byte as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let mut console = Console::standard(true);
        let pieces = Input::File(path.clone()).read(u64::MAX, &mut console).await.unwrap();
        assert_eq!(pieces.len(), 2);
        assert!(pieces.concat() == content);
        let refused = Input::File(path).read(PIECE_BYTES, &mut console).await.unwrap_err();
        assert_eq!(refused.code, "full");
        let refused = Input::Value("abc".into()).read(2, &mut console).await.unwrap_err();
        assert_eq!(refused.code, "full");
    }

    #[tokio::test]
    async fn unreadable_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut console = Console::standard(true);
        for path in [folder.path().join("missing"), folder.path().to_owned()] {
            let failure = Input::File(path.clone()).read(u64::MAX, &mut console).await.unwrap_err();
            assert!(failure.message.contains(&path.display().to_string()), "{failure:?}");
            assert!(failure.hint.is_some(), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn endless_file_fails_at_the_limit() {
        let mut console = Console::standard(true);
        let failure = Input::File("/dev/zero".into()).read(PIECE_BYTES, &mut console).await.unwrap_err();
        assert_eq!(failure.code, "full");
    }
}
