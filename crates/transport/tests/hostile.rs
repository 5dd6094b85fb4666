//! Peers that speak nonsense, lie, break off or say nothing: closed connections and typed errors.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may fail as tests do")]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tiffin_transport::behavior::{self, Shelf, pattern};
use tiffin_transport::checksum::checksum;
use tiffin_transport::faults::Dice;
use tiffin_transport::shm::{self, ATTACH_MAGIC, ATTACH_VERSION, AttachError};
use tiffin_transport::tcp::frame::{
    HELLO_BYTES, HelloHead, REQUEST_BYTES, ReplyHead, ReplyKind, RequestHead, RequestKind, Status, Unwelcome,
    WelcomeHead,
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

/// A data socket over a shelf.
async fn data_socket() -> (Arc<Shelf>, String) {
    let shelf = Arc::new(Shelf::new());
    let keeper = Arc::clone(&shelf) as Arc<dyn tcp::Keeper>;
    let authorise = Box::new(|hello: &tcp::Hello| check_token(&hello.token));
    let server = tcp::Server::new(Arc::clone(shelf.memory()), keeper, authorise, Arc::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    tokio::spawn(server.run(listener));
    (shelf, address)
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

/// Sends bytes, and reads until the other end closes.
async fn say_and_hear(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, bytes: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    let talk = async {
        // The other end may hang up in the middle, and a reset is as good an end as any.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut heard).await;
    };
    tokio::time::timeout_at(behavior::soon(), talk).await.expect("the connection is closed");
    heard
}

fn random_bytes(dice: &mut Dice, most: u64) -> Vec<u8> {
    (0..dice.below(most)).map(|_| dice.below(256) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_at_the_data_socket_harms_nobody() {
    let (shelf, address) = data_socket().await;
    let segment = shelf.memory().geometry().segment;
    let place = shelf.reserve(&[1000]);
    let good = client(&address, segment, TOKEN);
    let bytes = pattern(place.stamp, 1000);
    let op = WriteOp {
        slot: place.slot,
        stamp: place.stamp,
        offset: 0,
        sources: vec![SourceBuf::from(&bytes[..])],
    };
    assert_eq!(good.write(&[op], behavior::soon()).await, [Ok(())]);
    shelf.commit(place);

    let mut dice = Dice::new(11);
    let hello = HelloHead::encode(7, segment, TOKEN);
    let read = RequestHead {
        kind: RequestKind::Read,
        slot: place.slot,
        id: 1,
        stamp: place.stamp,
        offset: 0,
        len: 1000,
        unasked: None,
    };
    for round in 0..200 {
        // Nonsense from the start, behind a good hello, behind a good request, and good things cut short or
        // bent.
        let mut say = match round % 5 {
            0 => Vec::new(),
            1 => hello.clone(),
            2 => [hello.clone(), read.encode()].concat(),
            3 => [hello.clone(), RequestHead { kind: RequestKind::Write, ..read }.encode()].concat(),
            _ => {
                let mut bent = [hello.clone(), read.encode()].concat();
                let at = dice.below(bent.len() as u64) as usize;
                bent[at] ^= 1 << dice.below(8);
                bent.truncate(dice.below(1 + bent.len() as u64) as usize);
                bent
            }
        };
        say.extend(random_bytes(&mut dice, 300));
        let stream = TcpStream::connect(&address).await.unwrap();
        say_and_hear(stream, &say).await;
    }
    assert_eq!(read_some(&good, place.slot, place.stamp, 1000, behavior::soon()).await, Ok(()));
    while shelf.holds() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_at_the_attach_socket_harms_nobody() {
    let shelf = Shelf::new();
    let segment = shelf.memory().geometry().segment;
    let name = format!("tiffin-test-{}-{segment}", std::process::id());
    let (events, mut receiver) = mpsc::channel(16);
    let authorise = Box::new(|attach: &shm::Attach| check_token(&attach.token));
    let server = shm::Server::new(Arc::clone(shelf.memory()), authorise, events);
    tokio::spawn(server.run(shm::listen(&name).unwrap()));

    let mut dice = Dice::new(12);
    for round in 0..100 {
        let mut say = if round % 2 == 0 { Vec::new() } else { b"TFA1\x01\0\0\0".to_vec() };
        say.extend(random_bytes(&mut dice, 200));
        let stream = UnixStream::connect(format!("\0{name}")).await.unwrap();
        let heard = say_and_hear(stream, &say).await;
        assert!(heard.is_empty() || heard[8] == 1, "whatever is answered is a refusal");
    }
    assert!(receiver.try_recv().is_err(), "nobody was attached");
    for (asked, token, expected) in [
        (segment, "guess", "refused: the token is wrong"),
        (segment + 1, TOKEN, "and you asked for"),
        (segment, &*"x".repeat(2000), "the token is too long"),
    ] {
        let error = shm::attach(&name, asked, 1, token, behavior::soon()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(shm::attach(&name, segment, 1, TOKEN, behavior::soon()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_come_in_is_told_why() {
    let (shelf, address) = data_socket().await;
    let segment = shelf.memory().geometry().segment;
    let refused = client(&address, segment, "guess").probe(behavior::soon()).await;
    let expected = TransferError::Refused { peer: address.clone(), reason: "the token is wrong".to_owned() };
    assert_eq!(refused, Err(expected.clone()));
    let read = read_some(&client(&address, segment, "guess"), 0, 1, 10, behavior::soon()).await;
    assert_eq!(read, Err(expected), "a transfer says the same");

    let elsewhere = client(&address, segment + 1, TOKEN).probe(behavior::soon()).await;
    assert!(matches!(&elsewhere, Err(TransferError::Lost { why, .. }) if why.contains("asked for")));
    let long = client(&address, segment, &"x".repeat(5000)).probe(behavior::soon()).await;
    assert!(matches!(long, Err(TransferError::Refused { .. })));
    assert_eq!(client(&address, segment, TOKEN).probe(behavior::soon()).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_were_damaged_on_the_way_do_not_count() {
    let (shelf, address) = data_socket().await;
    let place = shelf.reserve(&[100]);
    let bytes = pattern(place.stamp, 100);
    let (slot, stamp) = (place.slot, place.stamp);
    let checksum = checksum([SourceBuf::from(&bytes[..])]);
    let kind = RequestKind::Write;
    let write = RequestHead { kind, slot, id: 5, stamp, offset: 0, len: 100, unasked: None };
    let mut bent = bytes.clone();
    bent[50] ^= 1;
    let hello = HelloHead::encode(7, shelf.memory().geometry().segment, TOKEN);
    for (sent, expected) in [(&bent, Status::BadChecksum), (&bytes, Status::Ok)] {
        let say = [&hello[..], &write.encode(), sent, &checksum.to_le_bytes()].concat();
        let heard = say_and_hear(TcpStream::connect(&address).await.unwrap(), &say).await;
        let reply = ReplyHead::decode(heard.last_chunk().unwrap()).unwrap();
        let kind = ReplyKind::Written;
        assert_eq!(reply, ReplyHead { kind, status: expected, id: 5, len: 0, checksum: 0 });
    }
}

/// What a node that means no good does with a read of ten bytes.
#[derive(Clone, Copy, Debug)]
enum Lie {
    ClosesAtOnce,
    SaysNothing,
    SpeaksAnotherProtocol,
    RefusesWithoutEnd,
    AnswersSomethingElse,
    AnswersTheWrongLength,
    BreaksOffInTheBytes,
    BreaksOffBeforeTheTrailer,
    SaysThatTheyDoNotCount,
    LiesAboutTheChecksum,
}

async fn lie(mut stream: TcpStream, lie: Lie) -> std::io::Result<()> {
    let mut hello = [0; HELLO_BYTES + TOKEN.len()];
    match lie {
        Lie::ClosesAtOnce => return Ok(()),
        Lie::SpeaksAnotherProtocol => return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
        _ => stream.read_exact(&mut hello).await?,
    };
    match lie {
        // Until the client gives up and closes.
        Lie::SaysNothing => return stream.read_exact(&mut [0]).await.map(drop),
        Lie::RefusesWithoutEnd => {
            let refusal = WelcomeHead::encode(Err(Unwelcome::Refused), "long story");
            return stream.write_all(&refusal[..20]).await;
        }
        _ => stream.write_all(&WelcomeHead::encode(Ok(()), "")).await?,
    }
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request).await?;
    let id = RequestHead::decode(&request).map(|request| request.id).unwrap_or_default();
    let bytes = pattern(1, 10);
    let sum = checksum([SourceBuf::from(&bytes[..])]);
    let data = ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id, len: 10, checksum: 0 };
    let trailer = ReplyHead { kind: ReplyKind::Trailer, status: Status::Ok, id, len: 10, checksum: sum };
    let say = match lie {
        Lie::AnswersSomethingElse => ReplyHead { id: id + 1, ..data }.encode(),
        Lie::AnswersTheWrongLength => [ReplyHead { len: 11, ..data }.encode(), pattern(1, 11)].concat(),
        Lie::BreaksOffInTheBytes => [data.encode(), bytes[..4].to_vec()].concat(),
        Lie::BreaksOffBeforeTheTrailer => [data.encode(), bytes].concat(),
        Lie::SaysThatTheyDoNotCount => {
            [data.encode(), bytes, ReplyHead { status: Status::Stale, ..trailer }.encode()].concat()
        }
        _ => [data.encode(), bytes, ReplyHead { checksum: sum + 1, ..trailer }.encode()].concat(),
    };
    stream.write_all(&say).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lies_or_breaks_off_is_found_out() {
    for (what, expected) in [
        (Lie::ClosesAtOnce, "lost"),
        (Lie::SaysNothing, "the deadline passed"),
        (Lie::SpeaksAnotherProtocol, "these are not the bytes of a data socket"),
        (Lie::RefusesWithoutEnd, "lost"),
        (Lie::AnswersSomethingElse, "it answered what was not asked"),
        (Lie::AnswersTheWrongLength, "another length"),
        (Lie::BreaksOffInTheBytes, "lost"),
        (Lie::BreaksOffBeforeTheTrailer, "lost"),
        (Lie::SaysThatTheyDoNotCount, "no longer carries the stamp"),
        (Lie::LiesAboutTheChecksum, "damaged"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = tokio::spawn(async move {
            let (stream, _) = listener.accept().await?;
            lie(stream, what).await
        });
        let tcp = client(&address, 1, TOKEN);
        let patience = if matches!(what, Lie::SaysNothing) {
            Duration::from_millis(50)
        } else {
            Duration::from_secs(60)
        };
        let error = read_some(&tcp, 0, 1, 10, Instant::now() + patience).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{what:?}: {error}");
        // However it ended for the node, it has ended: the client holds no stream that is half done.
        let _ = node.await.unwrap();
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let lost = client(&nobody, 1, TOKEN).probe(behavior::soon()).await;
    assert!(matches!(lost, Err(TransferError::Lost { peer, .. }) if peer == nobody));
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
async fn memory_that_could_harm_is_not_mapped() {
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
    let large = "control segment has not the size it says";
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
            "data segment has not the size it says",
        ),
        (answer, &[control, data, data], "no valid header"),
        (b"SSH-2.0-OpenSSH_9.9 and some more to fill the answer".to_vec(), &[], "not that of a node"),
    ];
    for (bytes, files, expected) in cases {
        let error = answer_attach(&name, bytes, files).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&name), "{error}");
    }
}

#[tokio::test]
async fn an_attach_socket_that_never_answers_is_given_up() {
    let name = format!("tiffin-test-{}-silent", std::process::id());
    let _listener = shm::listen(&name).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = shm::attach(&name, 1, 1, "", deadline).await.unwrap_err();
    assert!(matches!(error, AttachError::Timeout { .. }), "{error}");
    let error = shm::attach("tiffin-test-nobody", 1, 1, "", behavior::soon()).await.unwrap_err();
    assert!(matches!(error, AttachError::Unreachable { .. }), "{error}");
}
