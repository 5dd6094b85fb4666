//! What `bench/instructions.py` counts: the instructions between entering and leaving [`counted`].

#![expect(clippy::print_stdout, reason = "whoever counts reads the names")]

/// Prints the name of a case, and does what is counted for it.
pub(crate) fn measured(name: &str, work: impl FnOnce()) {
    println!("{name}");
    let mut work = Some(work);
    counted(&mut || {
        if let Some(work) = work.take() {
            work();
        }
    });
}

/// What is counted. Callgrind finds it by its name, so there must be one of it.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}
