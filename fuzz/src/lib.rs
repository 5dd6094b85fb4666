//! All decoders, by name.

/// A decoder and its seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub fn targets() -> impl Iterator<Item = Target> {
    tiffin_proto::fuzz::TARGETS
        .into_iter()
        .chain(tiffin_transport::fuzz::TARGETS)
        .chain(tiffin_ssd::fuzz::TARGETS)
        .chain(tiffin_client::fuzz::TARGETS)
        .chain(tiffin_server::fuzz::TARGETS)
}

/// Decodes bytes.
///
/// # Panics
/// If the decoder has a fault, or there is none of this name.
pub fn decode(name: &str, bytes: &[u8]) {
    let target = targets().find(|it| it.0 == name);
    let (_, decode, _) = target.unwrap_or_else(|| panic!("there is no decoder `{name}`"));
    decode(bytes);
}
