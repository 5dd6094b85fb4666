//! Children that a client forks.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use tiffin_client::{Client, ConnectOptions, DeleteOptions, Put};
use tokio::runtime::Runtime;

use crate::pools::{Folder, start_master};
use crate::roles::ready_until_parent_ends;
use crate::support::{Process, connect, eventually, key, only, pattern, soon};

/// Length of the object that is in view.
const VIEWED: usize = 1 << 20;

/// A client with a view that forks a child. The child ends when the test closes its connection.
pub(crate) async fn be_forker(master: &str, name: &str, waits: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let view = only(client.view(&[key(name)], soon()).await).unwrap();
    // The memory is mapped for writing, too.
    only(client.put(&[Put::new(key("small"), b"small")], soon()).await).unwrap();
    assert!(view.is_borrowed());
    let mut connection = TcpStream::connect(waits).unwrap();
    // SAFETY: the child calls only `read` and `_exit`, which are safe in a forked child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: the pointer is to a local byte.
        unsafe {
            libc::read(connection.as_raw_fd(), (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    ready_until_parent_ends();
    drop(view);
    assert_eq!(connection.read(&mut [0]).unwrap(), 0);
}

/// The memory that a client viewed returns when the client is dead, although a child of it lives on: also if
/// the node was started again meanwhile, so that only the kernel knows which clients map its memory.
pub(crate) fn a_forked_child_of_a_dead_client(runtime: &Runtime) {
    for is_restarted in [false, true] {
        let folder = Folder::new("forked");
        let master = runtime.block_on(start_master());
        let mut node = folder.start(&master);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let waits = listener.local_addr().unwrap().to_string();
        let store = runtime.block_on(async {
            let store = connect(&master, false).await;
            only(store.put(&[Put::new(key("viewed"), &pattern(VIEWED))], soon()).await).unwrap();
            store
        });
        let forker = Process::start(&["forker", &master.address().to_string(), "viewed", &waits]);
        let (connection, _) = listener.accept().unwrap();
        if is_restarted {
            node.kill();
            node = folder.start(&master);
        }
        runtime.block_on(async {
            only(store.delete(&[key("viewed")], DeleteOptions::default(), soon()).await).unwrap();
            let held = || master.stat().nodes[0].usage.held;
            eventually("the node reports the view", || held() >= VIEWED as u64).await;
            forker.kill();
            eventually("the memory returns although the child lives", || held() == 0).await;
        });
        // The child was there all the time.
        drop(connection);
        node.kill();
    }
}
