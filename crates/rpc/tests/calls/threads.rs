//! Calls of threads that read the stream themselves, beside tasks.

use std::task::Poll;

use tiffin_rpc::{Waiting, while_waiting_is};
use tokio::{runtime::Handle, sync::watch};

use super::*;

/// Waits for a call in this thread, as the Python package does.
fn block_on<T>(runtime: &Handle, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    runtime.block_on(std::future::poll_fn(|context| {
        while_waiting_is(Waiting::Now, || call.as_mut().poll(context))
    }))
}

/// The same in a thread of its own.
fn call_in_thread(
    connection: &Connection,
    request: Request,
    deadline: Instant,
) -> JoinHandle<Result<Reply, CallError>> {
    let (connection, runtime) = (connection.clone(), Handle::current());
    tokio::task::spawn_blocking(move || block_on(&runtime, connection.call(&request, deadline)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_and_tasks_call_over_one_connection_and_each_gets_its_own_answer() {
    for address in [any_port(), unix_name()] {
        let address = server(address, echo).await;
        let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (connection, runtime) = (connection.clone(), Handle::current());
                tokio::task::spawn_blocking(move || {
                    for round in 0..200 {
                        let number = (thread * 200 + round) % 97;
                        let reply =
                            block_on(&runtime, connection.call(&numbered(number), patient())).unwrap();
                        assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
                    }
                })
            })
            .collect();
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    for round in 0..200 {
                        let number = (task * 200 + round) % 89;
                        let reply = connection.call(&numbered(number), patient()).await.unwrap();
                        assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
                    }
                })
            })
            .collect();
        for worker in threads.into_iter().chain(tasks) {
            worker.await.unwrap();
        }
        // With the threads gone, the task notices the end.
        connection.close();
        connection.closed().await;
        let gone = call_in_thread(&connection, Request::Goodbye, patient());
        assert!(matches!(gone.await.unwrap(), Err(CallError::Lost { .. })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_gives_up_at_its_deadline_and_its_late_answer_is_told() {
    // The first request is answered after the second.
    let address = server(any_port(), |outbox, mut inbox| async move {
        let mut kept = None;
        while let Some(Incoming::Request(id, request)) = inbox.next().await {
            match (request, kept) {
                (Request::Goodbye, None) => kept = Some(id),
                (_, Some(first)) => {
                    outbox.reply(first, &Reply::ViewsBegun(vec![true]));
                    outbox.reply(id, &Reply::Done);
                    kept = None;
                }
                (_, None) => outbox.reply(id, &Reply::Done),
            }
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
    let (again, runtime) = (connection.clone(), Handle::current());
    let (told, mut tells) = mpsc::channel(1);
    let late = move |reply| told.try_send(reply).unwrap();
    let late = tokio::task::spawn_blocking(move || {
        let soon = Instant::now() + Duration::from_millis(20);
        block_on(&runtime, again.call_or(&Request::Goodbye, soon, late))
    });
    assert!(matches!(late.await.unwrap(), Err(CallError::Timeout { .. })));
    assert_eq!(connection.call(&numbered(0), patient()).await.unwrap(), Reply::Done);
    assert_eq!(tells.recv().await, Some(Reply::ViewsBegun(vec![true])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_wait_hear_of_the_end_and_of_others_answers_being_late() {
    // Nobody is answered; then the stream dies.
    let (ready, mut is_ready) = mpsc::channel(4);
    let address = server(any_port(), move |outbox, mut inbox| {
        let ready = ready.clone();
        async move {
            for _ in 0..3 {
                inbox.next().await.unwrap();
                ready.send(()).await.unwrap();
            }
            outbox.close();
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
    let call = |deadline| call_in_thread(&connection, Request::Goodbye, deadline);
    // The first reads the stream and gives up. The second must then be told by another reader.
    let (first, second) = (call(Instant::now() + Duration::from_millis(20)), call(patient()));
    is_ready.recv().await.unwrap();
    is_ready.recv().await.unwrap();
    assert!(matches!(first.await.unwrap(), Err(CallError::Timeout { .. })));
    let third = connection.call(&Request::Goodbye, patient()).await;
    assert!(matches!(third, Err(CallError::Lost { .. })));
    assert!(matches!(second.await.unwrap(), Err(CallError::Lost { .. })));
}

/// A peer that answers and is gone: a thread reads the answer while the task hears of the end.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_that_comes_with_an_answer_is_noticed() {
    for address in [any_port(), unix_name()] {
        let address = server(address, |outbox, mut inbox| async move {
            if let Some(Incoming::Request(id, _)) = inbox.next().await {
                outbox.reply(id, &Reply::Done);
            }
        })
        .await;
        for _ in 0..300 {
            let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
            call_in_thread(&connection, Request::Goodbye, patient()).await.unwrap().unwrap();
            let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed()).await;
            closed.expect("its end is noticed");
        }
    }
}

/// Where a thread was answered and nobody waits for anything, nobody looks at the stream; whoever asks or
/// says something next is heard all the same, and so is the end.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_thread_was_answered_others_are_answered_too() {
    for address in [any_port(), unix_name()] {
        let (say_end, ends) = tokio::sync::watch::channel(false);
        let (answered, mut answers) = mpsc::unbounded_channel();
        let address = server(address, move |outbox, mut inbox| {
            let (mut ends, answered) = (ends.clone(), answered.clone());
            async move {
                loop {
                    let message = tokio::select! {
                        message = inbox.next() => message,
                        _ = ends.wait_for(|it| *it) => None,
                    };
                    let Some(Incoming::Request(id, Request::MasterToMember(MasterToMember::Allocate(it)))) =
                        message
                    else {
                        return;
                    };
                    outbox.reply(id, &Reply::ViewsBegun(vec![true; it.client.0 as usize]));
                    let _gone = answered.send(());
                }
            }
        })
        .await;
        let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
        for _ in 0..20 {
            call_in_thread(&connection, numbered(1), patient()).await.unwrap().unwrap();
            connection.call(&numbered(3), patient()).await.unwrap();
            call_in_thread(&connection, numbered(2), patient()).await.unwrap().unwrap();
            connection.call(&numbered(4), patient()).await.unwrap();
        }
        // More answers than are kept for a peer that takes none out.
        call_in_thread(&connection, numbered(2), patient()).await.unwrap().unwrap();
        while answers.try_recv().is_ok() {}
        for _ in 0..400 {
            connection.tell(&numbered(BATCH_ITEMS_MAX as u64)).unwrap();
        }
        for _ in 0..400 {
            let heard = tokio::time::timeout(Duration::from_secs(60), answers.recv()).await;
            assert!(heard.expect("nobody took the answers out").is_some());
        }
        call_in_thread(&connection, numbered(2), patient()).await.unwrap().unwrap();
        say_end.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(60), connection.closed()).await.expect("its end is noticed");
    }
}

/// As `echo`, but the answer to `numbered(3)` waits.
async fn echo_late(outbox: Outbox, mut inbox: Inbox, mut gate: watch::Receiver<bool>) {
    while let Some(message) = inbox.next().await {
        if let Incoming::Request(id, Request::MasterToMember(MasterToMember::Allocate(allocate))) = message {
            let views = allocate.client.0 as usize;
            if views == 3 {
                gate.wait_for(|is_open| *is_open).await.unwrap();
            }
            outbox.reply(id, &Reply::ViewsBegun(vec![true; views]));
        }
    }
}

/// A thread that means to come back for an answer has nobody watch for it. Whatever it does then, the answer
/// is read.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_a_thread_meant_to_come_back_for_is_read_whatever_it_does() {
    for address in [any_port(), unix_name()] {
        let (let_go, gate) = watch::channel(false);
        let address = server(address, move |outbox, inbox| echo_late(outbox, inbox, gate.clone())).await;
        let (connection, _) = Connection::open(&address, hello(), patient()).await.unwrap();
        let runtime = Handle::current();
        let (late, mut heard) = mpsc::unbounded_channel();
        let thread = move || {
            for then in [Waiting::Never, Waiting::Now] {
                // From now on nobody watches, until somebody is to.
                block_on(&runtime, connection.call(&numbered(1), patient())).unwrap();
                let request = numbered(2);
                let mut call = std::pin::pin!(connection.call(&request, patient()));
                let mut how = Waiting::Soon;
                let reply = runtime.block_on(std::future::poll_fn(|context| {
                    let polled = while_waiting_is(how, || call.as_mut().poll(context));
                    if std::mem::replace(&mut how, then) == Waiting::Soon {
                        context.waker().wake_by_ref();
                    }
                    polled
                }));
                assert_eq!(reply.unwrap(), Reply::ViewsBegun(vec![true; 2]));
            }
            block_on(&runtime, connection.call(&numbered(1), patient())).unwrap();
            let request = numbered(3);
            let mut call = Box::pin(connection.call_or(&request, patient(), move |reply| {
                late.send(reply).unwrap();
            }));
            runtime.block_on(std::future::poll_fn(|context| {
                assert!(while_waiting_is(Waiting::Soon, || call.as_mut().poll(context)).is_pending());
                Poll::Ready(())
            }));
            drop(call);
            let_go.send(true).unwrap();
            connection
        };
        let _connection = tokio::task::spawn_blocking(thread).await.unwrap();
        let told = tokio::time::timeout(Duration::from_secs(60), heard.recv()).await;
        assert_eq!(told.expect("nobody read it"), Some(Reply::ViewsBegun(vec![true; 3])));
    }
}
