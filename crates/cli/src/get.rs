//! `tiffin get`: reads values.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use tiffin_client::{Error, Generation, Part, ResolveOptions, View};
use tiffin_server::config::{ClientArgs, size};
use tiffin_types::Key;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK, STATUS_USAGE};
use crate::progress::Progress;
use crate::show;
use crate::store_client::{StoreClient, key};

/// Bytes written at a time.
const PIECE_BYTES: usize = 8 << 20;

/// Reads the values of keys: their raw bytes, one after the other, to standard output or into files.
///
/// With `--json`, it writes the properties of each value; and the value itself if it is not written into a
/// file, as text or, if it is not text, in base64.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// The file for the value of a single key; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The folder for one file per key: the key `a/b` becomes the file `b` in the folder `a` there.
    #[arg(short = 'd', long, value_name = "FOLDER", conflicts_with = "output")]
    output_dir: Option<PathBuf>,

    /// Only these bytes of each value, such as `4KiB,512`: the offset, and the length.
    #[arg(long, value_name = "OFFSET,LENGTH", value_parser = range)]
    range: Option<Range<u64>>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Reads the values. Writes nothing of a value before it is complete and verified.
pub(crate) async fn run(get: Get, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let output = get.output.filter(|path| path != Path::new("-"));
    if get.keys.len() > 1 && output.is_some() {
        let failure = Failure::new("usage", format!("one file for the values of {} keys", get.keys.len()));
        let failure = failure.hint("use `--output-dir FOLDER` for one file per key");
        return Err(Failure { status: STATUS_USAGE, ..failure });
    }
    let mut wanted = Vec::with_capacity(get.keys.len());
    for text in &get.keys {
        let key = key(text)?;
        let file = match &get.output_dir {
            Some(folder) => Some(folder.join(path_of(&key)?)),
            None => output.clone(),
        };
        wanted.push((key, file));
    }
    let store = StoreClient::connect(get.client, context).await?;
    for (key, file) in wanted {
        let part = Part { key: key.clone(), range: get.range.clone() };
        let view = match store.client.view_parts(&[part], store.deadline()).await.pop() {
            Some(view) => view.map_err(|error| explain(&key, &error, &store))?,
            None => return Err(Failure::new("internal", "the get has no outcome")),
        };
        let bytes = view.bytes().map_err(|error| store.explain(&error))?;
        match &file {
            Some(path) => write_file(bytes, path, get.output_dir.is_some(), console)?,
            None if !console.json => write_out(bytes, console)?,
            None => {}
        }
        let expires_in_ms = if console.json { expires_in_ms(&key, &view, &store).await } else { None };
        report(&key, bytes, (view.generation(), expires_in_ms), file.as_deref(), console)?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// Explains an error of a get. The length of an object is shown by another command.
fn explain(key: &Key, error: &Error, store: &StoreClient) -> Failure {
    let failure = store.explain(error);
    match error {
        Error::OutOfRange { .. } => {
            let advice = format!("`tiffin stat '{}'` shows how many bytes it has", show::key(key.as_bytes()));
            Failure { hint: Some(advice), ..failure }
        }
        _ => failure,
    }
}

/// The time until the value expires, if it has a TTL and has not been replaced since.
async fn expires_in_ms(key: &Key, view: &View, store: &StoreClient) -> Option<u64> {
    let options = ResolveOptions::default();
    let found = store.client.resolve(std::slice::from_ref(key), options, store.deadline()).await.pop();
    let info = found?.ok()??;
    let left = info.expires_in.filter(|_| info.generation == view.generation());
    left.map(|it| it.as_millis() as u64)
}

/// Parses a range from offset and length.
fn range(text: &str) -> Result<Range<u64>, String> {
    let hint = "write offset and length, such as `--range 4KiB,512`";
    let (offset, length) =
        text.split_once(',').ok_or_else(|| format!("invalid range `{text}`\n\nhint: {hint}"))?;
    let size = |part: &str| size(part.trim()).map(|it| it.as_u64()).map_err(|error| error.to_string());
    let (offset, length) = (size(offset)?, size(length)?);
    let end = offset.checked_add(length);
    end.map(|end| offset..end).ok_or_else(|| format!("range `{text}` is too large\n\nhint: {hint}"))
}

/// The path of a key's file inside a folder. Keys come from other clients, and must not lead outside.
fn path_of(key: &Key) -> Result<PathBuf, Failure> {
    let path = Path::new(OsStr::from_bytes(key.as_bytes()));
    let is_inside = path.components().all(|it| matches!(it, Component::Normal(_)));
    // Paths such as `a/` or `a//b` have other names than their key.
    let is_same = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if is_inside && is_same && !key.as_bytes().contains(&0) {
        return Ok(path.to_owned());
    }
    let failure = Failure::new("invalid", format!("`{}` is not a file name", show::key(key.as_bytes())));
    Err(failure.hint("read this key by itself, with `--output FILE`"))
}

fn write_file(bytes: &[u8], path: &Path, makes_folders: bool, console: &mut Console) -> Result<(), Failure> {
    let fail = |error| Failure::file("write", path, &error);
    if let Some(folder) = path.parent().filter(|_| makes_folders) {
        let fail = |error| Failure::file("create the folder", folder, &error);
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    let mut file = File::create(path).map_err(fail)?;
    let mut progress = Progress::of(bytes.len() as u64);
    for piece in bytes.chunks(PIECE_BYTES) {
        file.write_all(piece).map_err(fail)?;
        progress.advance(console, piece.len() as u64);
    }
    progress.finish(console);
    Ok(())
}

fn write_out(bytes: &[u8], console: &mut Console) -> Result<(), Failure> {
    let mut progress = Progress::of(bytes.len() as u64);
    for piece in bytes.chunks(PIECE_BYTES) {
        console.bytes(piece)?;
        progress.advance(console, piece.len() as u64);
    }
    progress.finish(console);
    console.flush()
}

fn report(
    key: &Key,
    bytes: &[u8],
    (generation, expires_in_ms): (Generation, Option<u64>),
    file: Option<&Path>,
    console: &mut Console,
) -> Result<(), Failure> {
    let len = bytes.len() as u64;
    if console.json {
        let mut value = show::keyed(key.as_bytes());
        value.insert("bytes".into(), len.into());
        value.insert("generation".into(), generation.to_string().into());
        if let Some(left) = expires_in_ms {
            value.insert("expires_in_ms".into(), left.into());
        }
        match file {
            Some(path) => value.insert("file".into(), path.display().to_string().into()),
            None => {
                show::insert(&mut value, "value", bytes);
                None
            }
        };
        return console.value(&Value::from(value));
    }
    if let Some(path) = file {
        let (key, size) = (show::key(key.as_bytes()), show::size(len));
        console.note(format!("wrote `{key}`, {size}, into `{}`", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_offset_and_length() {
        assert_eq!(range("0,5"), Ok(0..5));
        assert_eq!(range("4KiB, 512"), Ok(4096..4608));
        for text in ["", "5", "5,", ",5", "-1,5", "1,2,3", "16EiB,16EiB", "18446744073709551615,1"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_that_lead_elsewhere_are_no_file_names() {
        for name in ["a", "a/b.bin", "..a", "ключ"] {
            assert_eq!(path_of(&Key::new(name.as_bytes()).unwrap()).unwrap(), Path::new(name));
        }
        for name in ["..", "../a", "a/../../b", "/etc/passwd", "./a", "a/./b", "a//b", "a/", "a\0b"] {
            assert!(path_of(&Key::new(name.as_bytes()).unwrap()).is_err(), "{name}");
        }
    }
}
