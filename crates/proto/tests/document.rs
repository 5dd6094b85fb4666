//! `docs/protocol.md` lists exactly the kinds that the code knows.

use std::collections::BTreeSet;

#[test]
fn documented_kinds_are_those_of_the_code() {
    let text = include_str!("../../../docs/protocol.md");
    let mut written: Vec<String> = tiffin_proto::kinds()
        .map(|kind| format!("| {} | `{}` | {} |", kind.number, kind.name, kind.direction))
        .collect();
    written.sort_by_key(|row| row.split(' ').nth(1).and_then(|number| number.parse::<u16>().ok()));
    let listed: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "## Kinds")
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(listed, written, "the table in docs/protocol.md differs from `kinds!`");
}

#[test]
fn kind_numbers_are_unique() {
    let numbers: BTreeSet<u16> = tiffin_proto::kinds().map(|kind| kind.number).collect();
    assert_eq!(numbers.len(), tiffin_proto::kinds().count());
}
