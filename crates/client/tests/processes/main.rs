//! What needs processes of its own: memory that is really shared, and parties that are really killed.
//!
//! The binary starts itself again with a role as its first argument; a child says one line when it is
//! ready, and ends when its parent does.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of it is a test"
)]

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod disks;
mod masters;
mod nodes;
mod restarts;
mod roles;
mod support;

use std::env;

use tokio::runtime::Runtime;

type Test = (&'static str, fn(&Runtime));

const TESTS: [Test; 15] = [
    ("processes_of_one_host_share_memory", clients::processes_of_one_host_share_memory),
    ("a_client_killed_between_reserve_and_commit", clients::a_client_killed_between_reserve_and_commit),
    ("a_client_killed_with_room_reserved_ahead", clients::a_client_killed_with_room_reserved_ahead),
    ("clients_killed_under_load", clients::clients_killed_under_load),
    ("stopped_client_keeps_no_preallocated_memory", clients::stopped_client_keeps_no_preallocated_memory),
    ("a_client_killed_while_it_looks", clients::a_client_killed_while_it_looks),
    ("a_consumer_killed_with_its_lease", clients::a_consumer_killed_with_its_lease),
    ("a_node_killed_under_its_readers", nodes::a_node_killed_under_its_readers),
    ("a_node_that_is_stopped", nodes::a_node_that_is_stopped),
    ("reads_of_a_stopped_node_use_the_other_copy", nodes::reads_of_a_stopped_node_use_the_other_copy),
    ("a_node_killed_with_its_disk", disks::a_node_killed_with_its_disk),
    ("a_node_whose_disk_takes_no_more", disks::a_node_whose_disk_takes_no_more),
    ("a_master_killed_under_puts", masters::a_master_killed_under_puts),
    ("a_master_restarted_before_its_nodes", restarts::a_master_restarted_before_its_nodes),
    ("a_master_without_its_state_folder", restarts::a_master_without_its_state_folder),
];

fn main() {
    let runtime = Runtime::new().unwrap();
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["master", address] => runtime.block_on(roles::be_master(address)),
        ["stateful", address, folder] => runtime.block_on(roles::be_stateful_master(address, folder)),
        ["node", master, name] => runtime.block_on(roles::be_node(master, name)),
        ["disk", master, folder] => runtime.block_on(roles::be_node_with_disk(master, folder)),
        // Not a role but the long run of a test, by hand.
        ["kill", times] => disks::kill_with_disk(&runtime, times.parse().unwrap()),
        ["reserver", master] => runtime.block_on(roles::be_reserver(master)),
        ["hoarder", master] => runtime.block_on(roles::be_hoarder(master)),
        ["putter", master] => runtime.block_on(roles::be_putter(master)),
        ["small-putter", master] => runtime.block_on(roles::be_small_putter(master)),
        ["viewer", master, name] => runtime.block_on(roles::be_viewer(master, name)),
        ["consumer", master, name] => runtime.block_on(roles::be_consumer(master, name)),
        // What `cargo test` and its relatives may pass: a name to filter by, and flags.
        // No test is ignored. A runner that lists the ignored tests needs an empty list.
        ref rest if rest.contains(&"--list") && rest.contains(&"--ignored") => {}
        ref rest if rest.contains(&"--list") => list(),
        ref rest => run(rest.iter().find(|it| !it.starts_with('-')).copied().unwrap_or("")),
    }
}

fn list() {
    TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
}

fn run(filter: &str) {
    for (name, test) in TESTS.iter().filter(|(name, _)| name.contains(filter)) {
        // A runtime of its own for each, which takes everything down that the test started.
        let runtime = Runtime::new().unwrap();
        test(&runtime);
        println!("test {name} ... ok");
    }
}
