//! A store inside one process: put, get, view without a copy, delete; and a sample that is consumed.
//!
//! Run it with `cargo run --example quickstart`.

use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use tiffin_client::{
    Client, Deadline, DeleteOptions, Dtype, GetOptions, Key, Pattern, Put, SamplePut, SpaceWait, TensorRef,
};
use tiffin_embedded::Embedded;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let soon = || Deadline::after(Duration::from_secs(10));

    // A master and a node of 64 MiB, in this process. `Client::connect` joins a cluster instead.
    let store = Embedded::start(64 << 20).await?;
    let client = &store.client;

    // Every call takes many items, and returns one outcome per item.
    let keys: Vec<Key> =
        ["layer/0", "layer/1"].map(|name| Key::new(name.as_bytes())).into_iter().collect::<Result<_, _>>()?;
    let values = [vec![1_u8; 1 << 20], vec![2_u8; 1 << 20]];
    let puts: Vec<_> = keys.iter().zip(&values).map(|(key, value)| Put::new(key.clone(), value)).collect();
    for (key, stored) in keys.iter().zip(client.put(&puts, soon()).await) {
        writeln!(out, "{key}: stored as generation {}", stored?.generation)?;
    }
    for (key, object) in keys.iter().zip(client.get(&keys, GetOptions::default(), soon()).await) {
        writeln!(out, "{key}: {} bytes", object?.bytes.len())?;
    }

    // A view is not a copy: it gives the bytes in place, and keeps them while it exists.
    for (key, view) in keys.iter().zip(client.view(&keys, soon()).await) {
        let view = view?;
        writeln!(out, "{key}: first byte {:?}, borrowed: {}", view.bytes()?.first(), view.is_borrowed())?;
    }

    for (key, existed) in keys.iter().zip(client.delete(&keys, DeleteOptions::default(), soon()).await) {
        writeln!(out, "{key}: deleted: {}", existed?)?;
    }
    writeln!(out, "objects left: {}", client.list(Pattern::All, soon()).await?.len())?;
    consume_a_sample(client, &mut out, soon()).await?;
    store.stop(soon()).await?;
    Ok(())
}

/// The calls of a producer and a consumer of hidden states.
async fn consume_a_sample(
    client: &Client,
    out: &mut impl Write,
    deadline: Deadline,
) -> Result<(), Box<dyn Error>> {
    let hidden = vec![0_u8; 2 * 16 * 64];
    let tensors = vec![TensorRef::new("hidden", Dtype::Bf16, &[16, 64], &hidden)];
    let sample = SamplePut { metadata: b"{\"step\": 1}", ..SamplePut::new(Key::new(b"sample/7")?, tensors) };
    let mut refs = Vec::new();
    for stored in client.put_samples(&[sample], SpaceWait::UntilDeadline, deadline).await {
        refs.push(stored.map(|it| (it.id, it.generation))?);
    }
    let wanted: Vec<_> = refs.iter().map(|(id, generation)| (id.clone(), Some(*generation))).collect();
    for lease in client.lease(&wanted, "trainer", deadline).await {
        let lease = lease?;
        for tensor in &lease.manifest().tensors {
            let bytes = lease.read(&[&tensor.name], deadline).await?.concat();
            writeln!(out, "{}: {} {:?}, {} bytes", tensor.name, tensor.dtype, tensor.shape, bytes.len())?;
        }
    }
    for acked in client.ack(&refs, "trainer", deadline).await {
        writeln!(out, "sample/7: {:?}", acked?)?;
    }
    Ok(())
}
