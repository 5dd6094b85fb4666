//! Peers that send invalid data, misbehave, close the connection or send nothing: connections are closed and
//! errors typed.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may fail as tests do")]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tiffin_transport::behavior::{self, TestNode, pattern};
use tiffin_transport::checksum::checksum;
use tiffin_transport::faults::Rng;
use tiffin_transport::shm::{self, ATTACH_MAGIC, ATTACH_VERSION, AttachError};
use tiffin_transport::tcp::frame::{
    DATA_VERSION, HELLO_BYTES, HelloHead, REQUEST_BYTES, Rejection, ReplyHead, ReplyKind, RequestHead,
    RequestKind, Status, WelcomeHead,
};
use tiffin_transport::tcp::{self, Identity, Tcp};
use tiffin_transport::{Instant, Outcome, ReadOp, SourceBuf, TargetBuf, TransferError, Transport, WriteOp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;

const TOKEN: &str = "secret";

fn check_token(token: &str) -> Result<(), String> {
    if token == TOKEN { Ok(()) } else { Err("the token is wrong".to_owned()) }
}

/// A data socket of a test node.
async fn data_socket() -> (Arc<TestNode>, String) {
    let node = Arc::new(TestNode::new());
    let slots = Arc::clone(&node) as Arc<dyn tcp::SlotAccess>;
    let authorise = Box::new(|hello: &tcp::Hello| {
        check_token(&hello.token)?;
        Ok(Arc::new(tcp::Unlimited) as Arc<dyn tcp::Grant>)
    });
    let server = tcp::Server::new(Arc::clone(node.memory()), slots, authorise, Arc::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    tokio::spawn(server.run(listener));
    (node, address)
}

fn client(address: &str, segment: u64, token: &str) -> Tcp {
    let identity = Identity { client: 1, segment, token: token.to_owned() };
    Tcp::new(address.to_owned(), identity, Arc::default())
}

async fn read_some(tcp: &Tcp, slot: u32, stamp: u64, len: usize, deadline: Instant) -> Outcome {
    let mut bytes = vec![0; len];
    let op = ReadOp { slot, stamp, offset: 0, targets: vec![TargetBuf::from(&mut bytes[..])] };
    let outcome = tcp.read(&[op], deadline).await.pop().expect("one outcome");
    if outcome.is_ok() {
        behavior::assert_pattern(stamp, 0, &bytes);
    }
    outcome
}

/// Sends bytes, and reads until the peer closes the connection.
async fn exchange(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, bytes: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    let exchange = async {
        // The peer may close or reset the connection at any time.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut received).await;
    };
    tokio::time::timeout_at(behavior::soon(), exchange).await.expect("the connection is closed");
    received
}

fn random_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.below(256) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_data_on_the_data_socket_is_harmless() {
    let (node, address) = data_socket().await;
    let segment = node.memory().geometry().segment;
    let location = node.reserve(&[1000]);
    let good = client(&address, segment, TOKEN);
    let bytes = pattern(location.stamp, 1000);
    let op = WriteOp {
        slot: location.slot,
        stamp: location.stamp,
        offset: 0,
        sources: vec![SourceBuf::from(&bytes[..])],
    };
    assert_eq!(good.write(&[op], behavior::soon()).await, [Ok(())]);
    node.commit(location);

    let mut rng = Rng::new(11);
    let hello = HelloHead::encode(7, segment, TOKEN);
    let read = RequestHead {
        kind: RequestKind::Read,
        slot: location.slot,
        id: 1,
        stamp: location.stamp,
        offset: 0,
        len: 1000,
        cached_epoch: None,
    };
    for round in 0..200 {
        // Random bytes at the start, after a valid hello, after a valid request, and valid messages truncated
        // or with a bit flipped.
        let mut message = match round % 5 {
            0 => Vec::new(),
            1 => hello.clone(),
            2 => [hello.clone(), read.encode()].concat(),
            3 => [hello.clone(), RequestHead { kind: RequestKind::Write, ..read }.encode()].concat(),
            _ => {
                let mut damaged = [hello.clone(), read.encode()].concat();
                let at = rng.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << rng.below(8);
                damaged.truncate(rng.below(1 + damaged.len() as u64) as usize);
                damaged
            }
        };
        message.extend(random_bytes(&mut rng, 300));
        let stream = TcpStream::connect(&address).await.unwrap();
        exchange(stream, &message).await;
    }
    assert_eq!(read_some(&good, location.slot, location.stamp, 1000, behavior::soon()).await, Ok(()));
    while node.transfers() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_data_on_the_attach_socket_is_harmless() {
    let node = TestNode::new();
    let segment = node.memory().geometry().segment;
    let name = format!("tiffin-test-{}-{segment}", std::process::id());
    let (events, mut receiver) = mpsc::channel(16);
    let authorise = Box::new(|attach: &shm::AttachRequest| Ok(check_token(&attach.token)?));
    let server = shm::Server::new(Arc::clone(node.memory()), authorise, events);
    tokio::spawn(server.run(shm::listen(&name).unwrap()));

    let mut rng = Rng::new(12);
    for round in 0..100 {
        let mut message = if round % 2 == 0 { Vec::new() } else { b"TFA1\x01\0\0\0".to_vec() };
        message.extend(random_bytes(&mut rng, 200));
        let stream = UnixStream::connect(format!("\0{name}")).await.unwrap();
        let received = exchange(stream, &message).await;
        assert!(received.is_empty() || received[8] == 1, "every answer is a refusal");
    }
    assert!(receiver.try_recv().is_err(), "no client was attached");
    for (asked, token, expected) in [
        (segment, "guess", "refused: the token is wrong"),
        (segment + 1, TOKEN, ", not 0"),
        (segment, &*"x".repeat(2000), "the token is too long"),
    ] {
        let error = shm::attach(&name, asked, 1, token, behavior::soon()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(shm::attach(&name, segment, 1, TOKEN, behavior::soon()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_client_gets_the_reason() {
    let (node, address) = data_socket().await;
    let segment = node.memory().geometry().segment;
    let refused = client(&address, segment, "guess").probe(behavior::soon()).await;
    let expected = TransferError::Refused { peer: address.clone(), reason: "the token is wrong".to_owned() };
    assert_eq!(refused, Err(expected.clone()));
    let read = read_some(&client(&address, segment, "guess"), 0, 1, 10, behavior::soon()).await;
    assert_eq!(read, Err(expected), "a transfer returns the same error");

    let elsewhere = client(&address, segment + 1, TOKEN).probe(behavior::soon()).await;
    assert!(matches!(&elsewhere, Err(TransferError::Lost { why, .. }) if why.contains(", not 0")));
    let long = client(&address, segment, &"x".repeat(5000)).probe(behavior::soon()).await;
    assert!(matches!(long, Err(TransferError::Refused { .. })));
    assert_eq!(client(&address, segment, TOKEN).probe(behavior::soon()).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_writes_are_rejected() {
    let (node, address) = data_socket().await;
    let location = node.reserve(&[100]);
    let bytes = pattern(location.stamp, 100);
    let (slot, stamp) = (location.slot, location.stamp);
    let checksum = checksum([SourceBuf::from(&bytes[..])]);
    let kind = RequestKind::Write;
    let write = RequestHead { kind, slot, id: 5, stamp, offset: 0, len: 100, cached_epoch: None };
    let mut damaged = bytes.clone();
    damaged[50] ^= 1;
    let hello = HelloHead::encode(7, node.memory().geometry().segment, TOKEN);
    for (sent, expected) in [(&damaged, Status::BadChecksum), (&bytes, Status::Ok)] {
        let message = [&hello[..], &write.encode(), sent, &checksum.to_le_bytes()].concat();
        let received = exchange(TcpStream::connect(&address).await.unwrap(), &message).await;
        let reply = ReplyHead::decode(received.last_chunk().unwrap()).unwrap();
        let kind = ReplyKind::Written;
        assert_eq!(reply, ReplyHead { kind, status: expected, id: 5, len: 0, checksum: 0 });
    }
}

/// How a malicious node answers a read of ten bytes.
#[derive(Clone, Copy, Debug)]
enum Misbehaviour {
    ClosesAtOnce,
    SendsNothing,
    OtherProtocol,
    TruncatedRefusal,
    OtherRequest,
    WrongLength,
    ClosesWithinBytes,
    ClosesBeforeTrailer,
    StaleTrailer,
    WrongChecksum,
}

async fn misbehave(mut stream: TcpStream, how: Misbehaviour) -> std::io::Result<()> {
    let mut hello = [0; HELLO_BYTES + TOKEN.len()];
    match how {
        Misbehaviour::ClosesAtOnce => return Ok(()),
        Misbehaviour::OtherProtocol => return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
        _ => stream.read_exact(&mut hello).await?,
    };
    match how {
        // Until the client gives up and closes the connection.
        Misbehaviour::SendsNothing => return stream.read_exact(&mut [0]).await.map(drop),
        Misbehaviour::TruncatedRefusal => {
            let refusal = WelcomeHead::encode(DATA_VERSION, Err(Rejection::Refused), "long story");
            return stream.write_all(&refusal[..20]).await;
        }
        _ => stream.write_all(&WelcomeHead::encode(DATA_VERSION, Ok(()), "")).await?,
    }
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request).await?;
    let id = RequestHead::decode(&request).map(|request| request.id).unwrap_or_default();
    let bytes = pattern(1, 10);
    let sum = checksum([SourceBuf::from(&bytes[..])]);
    let data = ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id, len: 10, checksum: 0 };
    let trailer = ReplyHead { kind: ReplyKind::Trailer, status: Status::Ok, id, len: 10, checksum: sum };
    let message = match how {
        Misbehaviour::OtherRequest => ReplyHead { id: id + 1, ..data }.encode(),
        Misbehaviour::WrongLength => [ReplyHead { len: 11, ..data }.encode(), pattern(1, 11)].concat(),
        Misbehaviour::ClosesWithinBytes => [data.encode(), bytes[..4].to_vec()].concat(),
        Misbehaviour::ClosesBeforeTrailer => [data.encode(), bytes].concat(),
        Misbehaviour::StaleTrailer => {
            [data.encode(), bytes, ReplyHead { status: Status::Stale, ..trailer }.encode()].concat()
        }
        _ => [data.encode(), bytes, ReplyHead { checksum: sum + 1, ..trailer }.encode()].concat(),
    };
    stream.write_all(&message).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_of_a_node_are_detected() {
    for (what, expected) in [
        (Misbehaviour::ClosesAtOnce, "lost"),
        (Misbehaviour::SendsNothing, "the deadline passed"),
        (Misbehaviour::OtherProtocol, "the peer is not a data socket"),
        (Misbehaviour::TruncatedRefusal, "lost"),
        (Misbehaviour::OtherRequest, "it answered another request"),
        (Misbehaviour::WrongLength, "another length"),
        (Misbehaviour::ClosesWithinBytes, "lost"),
        (Misbehaviour::ClosesBeforeTrailer, "lost"),
        (Misbehaviour::StaleTrailer, "no longer holds the requested stamp"),
        (Misbehaviour::WrongChecksum, "damaged"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = tokio::spawn(async move {
            let (stream, _) = listener.accept().await?;
            misbehave(stream, what).await
        });
        let tcp = client(&address, 1, TOKEN);
        let time = if matches!(what, Misbehaviour::SendsNothing) {
            Duration::from_millis(50)
        } else {
            Duration::from_secs(60)
        };
        let error = read_some(&tcp, 0, 1, 10, Instant::now() + time).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{what:?}: {error}");
        // The node's task has ended in every case: the client keeps no incomplete stream.
        let _ = node.await.unwrap();
    }
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let lost = client(&unused, 1, TOKEN).probe(behavior::soon()).await;
    assert!(matches!(lost, Err(TransferError::Lost { peer, .. }) if peer == unused));
}

/// Answers one attach request with these bytes and descriptors.
async fn answer_attach(name: &str, bytes: Vec<u8>, files: &[BorrowedFd<'_>]) -> Result<(), AttachError> {
    let listener = shm::listen(name).unwrap();
    let node = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 32]).await.unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        stream
    };
    let (attached, _stream) = tokio::join!(shm::attach(name, 1, 1, "", behavior::soon()), node);
    attached.map(drop)
}

#[tokio::test]
async fn unsafe_memory_is_not_mapped() {
    let name = format!("tiffin-test-{}-liar", std::process::id());
    let words = |list: &[u64]| -> Vec<u8> { list.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let head = u64::from(ATTACH_MAGIC) | u64::from(ATTACH_VERSION) << 32;
    let file = |bytes: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("liar", flags).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let size = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let control = file(8192, size | SealFlags::FUTURE_WRITE);
    let loose = file(8192, SealFlags::empty());
    let data = file(4096, size);
    let plain = std::fs::File::open("/proc/self/exe").unwrap();
    let (control, loose, data, plain) = (control.as_fd(), loose.as_fd(), data.as_fd(), plain.as_fd());
    let answer = words(&[head, 0, 1, 8192, 4096]);
    let large = "control segment does not have the announced size";
    let cases: [(Vec<u8>, &[BorrowedFd<'_>], &str); 9] = [
        (answer.clone(), &[], "did not pass three descriptors"),
        (answer.clone(), &[control, data], "did not pass three descriptors"),
        (answer.clone(), &[plain, data, data], "control segment is not a memory file"),
        (answer.clone(), &[loose, data, data], "control segment is not sealed"),
        (answer.clone(), &[control, loose, data], "data segment is not sealed"),
        (words(&[head, 0, 1, 1 << 40, 4096]), &[control, data, data], large),
        (
            words(&[head, 0, 1, 8192, 1 << 40]),
            &[control, data, data],
            "data segment does not have the announced size",
        ),
        (answer, &[control, data, data], "no valid header"),
        (b"SSH-2.0-OpenSSH_9.9 and some more to fill the answer".to_vec(), &[], "not from a node"),
    ];
    for (bytes, files, expected) in cases {
        let error = answer_attach(&name, bytes, files).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&name), "{error}");
    }
}

#[tokio::test]
async fn attach_without_answer_times_out() {
    let name = format!("tiffin-test-{}-silent", std::process::id());
    let _listener = shm::listen(&name).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = shm::attach(&name, 1, 1, "", deadline).await.unwrap_err();
    assert!(matches!(error, AttachError::Timeout { .. }), "{error}");
    let error = shm::attach("tiffin-test-unused", 1, 1, "", behavior::soon()).await.unwrap_err();
    assert!(matches!(error, AttachError::Unreachable { .. }), "{error}");
}
