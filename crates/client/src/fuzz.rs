//! The decoder of samples, for `tiffin-smoke` and cargo-fuzz.

use crate::manifest::{DecodeError, Dtype, Manifest, Tensor};

/// Name, decoder and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub const TARGETS: [Target; 1] = [("sample", sample, samples)];

fn sample(bytes: &[u8]) {
    let _whole = Manifest::of(bytes);
    // The first bytes of a sample that is as long as it says.
    let len = bytes.get(24..32).and_then(|it| it.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it));
    match Manifest::decode(bytes, len) {
        Ok(manifest) => {
            let ends = manifest.tensors.iter().map(|it| it.offset.checked_add(it.bytes));
            assert!(ends.into_iter().all(|end| end.is_some_and(|end| end <= len)));
            assert_eq!(Manifest::decode(&manifest.encode(), len), Ok(manifest));
        }
        Err(DecodeError::Short(wanted)) => assert!(wanted > bytes.len()),
        Err(DecodeError::Bad(_)) => (),
    }
}

fn samples() -> Vec<Vec<u8>> {
    let tensor = |name: &str, dtype: Dtype, shape: &[u64]| Tensor {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        offset: 0,
        bytes: dtype.bytes(shape).unwrap_or_default(),
    };
    let tensors = [
        vec![tensor("t", Dtype::U8, &[])],
        vec![tensor("hidden", Dtype::Bool, &[3, 5]), tensor("loss", Dtype::I16, &[0, 9])],
    ];
    let header = |tensors| Manifest::lay_out(tensors, b"{\"step\": 7}").map(|it| it.encode());
    tensors.into_iter().filter_map(|it| header(it).ok()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_input_harms_no_decoder() {
        tiffin_smoke::run(&super::TARGETS);
    }
}
