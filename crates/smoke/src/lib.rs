//! The short form of fuzzing, which every run of the tests includes.
//!
//! A crate with decoders lists them in a module `fuzz`. Its tests call [`run`], which gives each decoder its
//! seeds, and some thousand mutations of them. Nothing may panic, and memory must stay in proportion to the
//! input. `fuzz/` gives the same lists to cargo-fuzz, without an end.
//!
//! **Invariant:** the inputs are the same in every run.
//!
//! Whatever is linked with this crate counts what each thread allocates. Only tests are.

mod memory;
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use mutate::Mutator;

/// A decoder: its name, a function that decodes and asserts what must hold then, and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Mutated inputs for each decoder, where a decoder takes microseconds.
const INPUTS: usize = 6000;
/// Bytes of memory that any input may take.
const MEMORY_BYTES_MIN: usize = 256 << 10;
/// Bytes of memory for each byte of the input. Two bytes can encode an item of a list, which has some hundred
/// bytes in memory, and lists double as they grow.
const MEMORY_PER_BYTE_MAX: usize = 1024;

/// Gives each decoder its seeds and their mutations.
///
/// # Panics
/// If a decoder panics or takes too much memory, with the input.
pub fn run(targets: &[Target]) {
    run_times(targets, INPUTS);
}

/// The same with so many mutations for each decoder.
///
/// # Panics
/// As [`run`].
pub fn run_times(targets: &[Target], inputs: usize) {
    for (name, decode, seeds) in targets {
        let seeds = seeds();
        assert!(!seeds.is_empty(), "`{name}` has no valid input to begin with");
        seeds.iter().for_each(|seed| check(name, *decode, seed));
        let mut mutator = Mutator::new(name, &seeds);
        (0..inputs).for_each(|_| check(name, *decode, &mutator.next_input()));
    }
}

/// Decodes one input.
///
/// # Panics
/// As [`run`].
pub fn check(name: &str, decode: impl Fn(&[u8]), input: &[u8]) {
    let (outcome, used) = memory::peak_of(|| catch_unwind(AssertUnwindSafe(|| decode(input))));
    let most = MEMORY_BYTES_MIN + input.len() * MEMORY_PER_BYTE_MAX;
    let shown = input.escape_ascii();
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
        eprintln!("`{name}` panics ({text}) for {} bytes: b\"{shown}\"", input.len());
        resume_unwind(panic);
    }
    assert!(used <= most, "`{name}` allocates {used} bytes for {} bytes: b\"{shown}\"", input.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        vec![b"len=12;".to_vec(), vec![0; 16]]
    }

    fn fails(decode: fn(&[u8])) -> bool {
        catch_unwind(|| run(&[("test", decode, seeds)])).is_err()
    }

    #[test]
    fn panics_and_large_allocations_are_found() {
        assert!(!fails(|input| drop(input.to_vec())));
        assert!(fails(|input| assert!(!input.starts_with(&[0xff]))));
        assert!(fails(|input| assert!(input.len() != 3, "truncated")));
        // A length field that is believed.
        assert!(fails(|input| {
            let len = input.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
            drop(Vec::<u8>::with_capacity(len.min(1 << 30) as usize));
        }));
        assert!(fails(|input| {
            let text = String::from_utf8_lossy(input);
            let number = text.trim_start_matches("len=").trim_end_matches(';').parse::<u128>();
            assert!(number.is_ok_and(|it| it < 1 << 64) || text.contains('='), "a long number");
        }));
    }
}
