//! `tiffin get`: reads one value.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tiffin_client::{GetOptions, Object};
use tiffin_server::config::ClientArgs;
use tiffin_types::Key;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::progress::Progress;
use crate::show;
use crate::store_client::{StoreClient, key};

/// Bytes written at a time.
const PIECE_BYTES: usize = 8 << 20;

/// Reads the value of a key: its raw bytes, to standard output or into a file.
///
/// With `--json`, it writes the properties of the value; and the value itself if no file is named, as text
/// or, if it is not text, in base64.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The key.
    key: OsString,

    /// The file for the value; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Reads the value. Writes nothing before it is complete and verified.
pub(crate) async fn run(get: Get, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let key = key(&get.key)?;
    let output = get.output.filter(|path| path != Path::new("-"));
    let store = StoreClient::connect(get.client, context).await?;
    let keys = [key];
    let outcome = store.client.get(&keys, GetOptions::default(), store.deadline()).await.pop();
    let object = match outcome {
        Some(object) => object.map_err(|error| store.explain(&error))?,
        None => return Err(Failure::new("internal", "the get has no outcome")),
    };
    let [key] = keys;
    store.close().await;
    match &output {
        Some(path) => write_file(&object.bytes, path, console)?,
        None if !console.json => write_out(&object.bytes, console)?,
        None => {}
    }
    report(&key, &object, output.as_deref(), console)?;
    Ok(STATUS_OK)
}

fn write_file(bytes: &[u8], path: &Path, console: &mut Console) -> Result<(), Failure> {
    let fail = |error| Failure::file("write", path, &error);
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

fn report(key: &Key, object: &Object, file: Option<&Path>, console: &mut Console) -> Result<(), Failure> {
    let bytes = object.bytes.len() as u64;
    if console.json {
        let mut value = show::keyed(key.as_bytes());
        value.insert("bytes".into(), bytes.into());
        value.insert("generation".into(), object.generation.to_string().into());
        match file {
            Some(path) => value.insert("file".into(), path.display().to_string().into()),
            None => {
                show::insert(&mut value, "value", &object.bytes);
                None
            }
        };
        return console.value(&Value::from(value));
    }
    if let Some(path) = file {
        let (key, size) = (show::key(key.as_bytes()), show::size(bytes));
        console.note(format!("wrote `{key}`, {size}, into `{}`", path.display()));
    }
    Ok(())
}
