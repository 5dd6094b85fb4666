//! The export to a collector: what it receives, and a collector that fails, rejects or never answers.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tiffin_trace::{Kind, Name, TraceContext, Tracer, TracerSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// More spans than can wait and be sent at the same time.
const MANY: usize = 4096 + 512 + 10;

/// What a collector answers to each request: a status and a body; nothing if it is silent.
type Answers = Box<dyn FnMut() -> Option<(u16, &'static str)> + Send>;

/// A collector on a free port. The requests arrive at the receiver.
async fn collector(mut answers: Answers) -> (TracerSettings, mpsc::UnboundedReceiver<Value>, Told) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let request = read_request(&mut stream).await;
            let _ended = sender.send(request);
            match answers() {
                Some((status, body)) => {
                    let head = format!("HTTP/1.1 {status} OK\r\ncontent-length: {}\r\n\r\n", body.len());
                    stream.write_all((head + body).as_bytes()).await.unwrap();
                }
                None => silent.push(stream),
            }
        }
    });
    let told = Told::default();
    let teller = told.clone();
    let settings = TracerSettings {
        tell: Arc::new(move |message| teller.0.lock().unwrap().push(message.to_owned())),
        ..TracerSettings::new(endpoint, "test-service")
    };
    (settings, received, told)
}

/// The messages about the collector.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn read_request(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let length = head.lines().find_map(|it| it.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return serde_json::from_str(body).unwrap();
        }
    }
}

fn parent() -> TraceContext {
    TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap()
}

fn spans(request: &Value) -> &Vec<Value> {
    request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn record(tracer: &Tracer, count: usize) {
    for _ in 0..count {
        tracer.record(Name::Step("step"), parent(), Duration::from_millis(3), None);
    }
}

#[tokio::test]
async fn spans_reach_the_collector() {
    let (settings, mut received, told) = collector(Box::new(|| Some((200, "{}")))).await;
    let tracer = Tracer::start_export(settings);
    let outer = tracer.start(Name::Step("outer"), Kind::Internal, parent()).unwrap();
    let below = outer.current().unwrap().context;
    drop(tracer.start(Name::Request("tiffin.Master", "Reserve"), Kind::Client, below));
    drop(outer);
    tracer.flush(soon()).await;
    assert_eq!((tracer.exported(), tracer.dropped()), (2, 0));
    let request = received.recv().await.unwrap();
    let found = spans(&request);
    assert_eq!(found[0]["name"], "tiffin.Master/Reserve");
    assert_eq!(found[1]["name"], "tiffin.outer");
    assert_eq!(found[0]["parentSpanId"], found[1]["spanId"]);
    assert_eq!(found[1]["parentSpanId"], "00f067aa0ba902b7");
    for span in found {
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        let time = |name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    }
    assert_eq!(told.all(), [""; 0]);
}

#[tokio::test]
async fn spans_of_a_dropped_tracer_are_sent() {
    let (settings, mut received, _) = collector(Box::new(|| Some((200, "")))).await;
    let tracer = Tracer::start_export(settings);
    record(&tracer, 3);
    drop(tracer);
    assert_eq!(spans(&received.recv().await.unwrap()).len(), 3);
}

#[tokio::test]
async fn silent_collector_blocks_no_call() {
    let (settings, mut received, _) = collector(Box::new(|| None)).await;
    let tracer = Tracer::start_export(settings);
    record(&tracer, 1);
    received.recv().await.unwrap();
    record(&tracer, MANY);
    assert!(tracer.dropped() >= 10, "{} of {MANY} spans were dropped", tracer.dropped());
    assert!(tracer.dropped() <= 10 + 512, "{} of {MANY} spans were dropped", tracer.dropped());
    // The deadline of a caller that closes holds.
    tracer.flush(Instant::now() + Duration::from_millis(20)).await;
    assert_eq!(tracer.exported(), 0);
}

#[tokio::test]
async fn rejected_spans_are_counted() {
    let body = r#"{"partialSuccess":{"rejectedSpans":"2"}}"#;
    let (settings, _received, told) = collector(Box::new(move || Some((200, body)))).await;
    let tracer = Tracer::start_export(settings);
    record(&tracer, 5);
    tracer.flush(soon()).await;
    assert_eq!((tracer.exported(), tracer.dropped()), (3, 2));
    assert_eq!(told.all(), [""; 0]);
}

#[tokio::test]
async fn batch_that_is_refused_is_dropped_and_told() {
    let (settings, _received, told) = collector(Box::new(|| Some((400, "")))).await;
    let tracer = Tracer::start_export(settings);
    for _ in 0..3 {
        record(&tracer, 1);
        tracer.flush(soon()).await;
    }
    assert_eq!((tracer.exported(), tracer.dropped()), (0, 3));
    let told = told.all();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("it answers 400") && told[0].contains("\n\nhint: "), "{told:?}");
}

#[tokio::test]
async fn batch_is_sent_again_while_the_collector_is_busy() {
    let mut statuses = [503, 429, 200].into_iter();
    let answers = move || Some((statuses.next().unwrap_or(503), ""));
    let (settings, mut received, told) = collector(Box::new(answers)).await;
    let tracer = Tracer::start_export(settings);
    record(&tracer, 2);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(received.recv().await.unwrap());
    }
    assert!(seen.iter().all(|it| *it == seen[0]));
    tracer.flush(soon()).await;
    assert_eq!((tracer.exported(), tracer.dropped()), (2, 0));
    assert_eq!(told.all().len(), 1, "{:?}", told.all());
    // It fails once more, which is told once more. The caller does not wait for another try.
    record(&tracer, 1);
    tracer.flush(soon()).await;
    assert_eq!((tracer.exported(), tracer.dropped()), (2, 1));
    assert_eq!(told.all().len(), 2, "{:?}", told.all());
}
