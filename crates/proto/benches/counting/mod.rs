//! The function that `bench/instructions.py` counts: the instructions between entering and leaving
//! [`counted`].

#![expect(clippy::print_stdout, reason = "the script that counts reads the names")]

/// Prints the name of a case, and runs the counted work.
pub(crate) fn measured(name: &str, work: impl FnOnce()) {
    println!("{name}");
    let mut work = Some(work);
    counted(&mut || {
        if let Some(work) = work.take() {
            work();
        }
    });
}

/// The counted function. Callgrind finds it by its name, so there must be only one.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}
