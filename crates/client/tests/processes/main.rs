//! Tests that need separate processes: memory that is really shared, and peers that are really killed.
//!
//! The binary starts itself again with a role as its first argument. A child prints one line when it is
//! ready, and ends with its parent.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, reason = "test code")]

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod disks;
mod forks;
mod masters;
mod nodes;
mod pools;
mod restarts;
mod roles;
mod support;

use std::env;

use tokio::runtime::Runtime;

use support::MEMORY;

type Test = (&'static str, fn(&Runtime));

const TESTS: [Test; 24] = [
    ("processes_of_one_host_share_memory", clients::processes_of_one_host_share_memory),
    ("client_killed_between_reserve_and_commit", clients::client_killed_between_reserve_and_commit),
    ("client_killed_with_reserved_space", clients::client_killed_with_reserved_space),
    ("clients_killed_under_load", clients::clients_killed_under_load),
    ("stopped_client_keeps_no_preallocated_memory", clients::stopped_client_keeps_no_preallocated_memory),
    ("client_killed_with_a_view", clients::client_killed_with_a_view),
    ("consumer_killed_with_its_lease", clients::consumer_killed_with_its_lease),
    ("node_killed_under_its_readers", nodes::node_killed_under_its_readers),
    ("stopped_node_fails_calls_in_time", nodes::stopped_node_fails_calls_in_time),
    ("reads_of_a_stopped_node_use_the_other_copy", nodes::reads_of_a_stopped_node_use_the_other_copy),
    ("a_stopped_node_that_owes_many_retires", nodes::a_stopped_node_that_owes_many_retires),
    ("lost_copies_are_made_again", nodes::lost_copies_are_made_again),
    ("node_killed_with_its_disk", disks::node_killed_with_its_disk),
    ("disk_that_rejects_writes_leaves", disks::disk_that_rejects_writes_leaves),
    ("a_node_killed_with_its_pool", pools::a_node_killed_with_its_pool),
    ("a_node_with_a_pool_killed_under_load", pools::a_node_killed_with_its_pool_under_load),
    ("a_node_restarted_after_its_clients_gave_up", pools::a_node_restarted_after_its_clients_gave_up),
    ("a_forked_child_of_a_dead_client", forks::a_forked_child_of_a_dead_client),
    ("a_node_stopped_with_its_pool", pools::a_node_stopped_with_its_pool),
    (
        "a_node_and_its_master_killed_before_the_ledger_is_read",
        pools::a_node_and_its_master_killed_before_the_ledger_is_read,
    ),
    ("master_killed_under_puts", masters::master_killed_under_puts),
    ("master_restarted_before_its_nodes", restarts::master_restarted_before_its_nodes),
    ("master_restarted_without_its_state_folder", restarts::master_restarted_without_its_state_folder),
    ("a_master_with_an_old_state_folder", restarts::a_master_with_an_old_state_folder),
];

fn main() {
    let runtime = Runtime::new().unwrap();
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["master", address] => runtime.block_on(roles::be_master(address)),
        ["stateful", address, folder] => runtime.block_on(roles::be_stateful_master(address, folder)),
        ["node", master, name] => runtime.block_on(roles::be_node(master, name, MEMORY)),
        ["large", master, name] => runtime.block_on(roles::be_node(master, name, 8 * MEMORY)),
        ["disk", master, folder] => runtime.block_on(roles::be_node_with_disk(master, folder)),
        ["pool", master, folder] => runtime.block_on(roles::be_node_with_pool(master, folder)),
        // Not a role: the long run of a test, by hand.
        ["kill", times] => disks::kill_with_disk(&runtime, times.parse().unwrap()),
        ["reserver", master] => runtime.block_on(roles::be_reserver(master)),
        ["hoarder", master] => runtime.block_on(roles::be_hoarder(master)),
        ["putter", master] => runtime.block_on(roles::be_putter(master)),
        ["small-putter", master] => runtime.block_on(roles::be_small_putter(master)),
        ["forker", master, name, waits] => runtime.block_on(forks::be_forker(master, name, waits)),
        ["viewer", master, name] => runtime.block_on(roles::be_viewer(master, name)),
        ["consumer", master, name] => runtime.block_on(roles::be_consumer(master, name)),
        // Arguments of `cargo test` and other runners: a name to filter by, and flags.
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
        // Each test has its own runtime, which ends everything that the test started.
        let runtime = Runtime::new().unwrap();
        test(&runtime);
        println!("test {name} ... ok");
    }
}
