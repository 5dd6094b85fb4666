//! Two processes on one machine: one holds a store and puts, the other gets, and no byte crosses a socket.
//!
//! Run it with `cargo run --example two_processes`. It starts itself a second time, with the store's address.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Deadline, GetOptions, Key, Put};
use tiffin_embedded::Embedded;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        None => produce().await,
        Some(address) => consume(address).await,
    }
}

/// The first process: a store, and a client that puts.
async fn produce() -> Result<(), Box<dyn Error>> {
    let store = Embedded::start(64 << 20).await?;
    let hidden_states = vec![42_u8; 8 << 20];
    for stored in store.client.put(&[Put::new(Key::new(b"sample/1")?, &hidden_states)], soon()).await {
        stored?;
    }
    let address = store.client.options().address.clone();
    let consumer =
        tokio::task::spawn_blocking(move || Command::new(env::current_exe()?).arg(address).status());
    let status = consumer.await??;
    store.stop(soon()).await?;
    if status.success() { Ok(()) } else { Err(format!("the consumer failed: {status}").into()) }
}

/// The second process: a client that gets.
async fn consume(address: String) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(ConnectOptions::new(address)).await?;
    let mut out = io::stdout();
    for object in client.get(&[Key::new(b"sample/1")?], GetOptions::default(), soon()).await {
        writeln!(out, "got {} bytes", object?.bytes.len())?;
    }
    for route in client.routes() {
        let way = route.way.map_or("nothing".to_owned(), |way| way.to_string());
        writeln!(out, "from node {} through {way}", route.node)?;
    }
    let counters = client.counters();
    writeln!(
        out,
        "{} bytes through shared memory, {} through sockets",
        counters.shm.read(),
        counters.tcp.read()
    )?;
    client.close(soon()).await?;
    Ok(())
}
