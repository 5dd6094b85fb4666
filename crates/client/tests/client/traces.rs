//! Traced calls: the spans that a collector receives from the client, the master and the node.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tiffin_client::trace::{Current, Endpoint, TraceContext, TracerSettings, scoped};
use tiffin_client::{Client, ConnectOptions, DeleteOptions, GetOptions, Put};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::support::{Cluster, LONG, key, only, soon};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const CLIENT_KIND: u64 = 3;
const SERVER_KIND: u64 = 2;

/// A collector on a free port, and all that it received.
struct Collector {
    endpoint: Endpoint,
    requests: Arc<Mutex<Vec<Value>>>,
}

/// A span with the name of its process.
#[derive(Clone, Debug)]
struct Received {
    service: String,
    span: Value,
}

impl Received {
    fn id(&self) -> &Value {
        &self.span["spanId"]
    }

    fn attribute(&self, name: &str) -> Option<&Value> {
        let all = self.span["attributes"].as_array().unwrap();
        let found = all.iter().find(|it| it["key"] == name)?;
        found["value"].as_object().unwrap().values().next()
    }
}

impl Collector {
    /// Answers each request, or none at all.
    async fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read_request(&mut stream).await;
                received.lock().unwrap().push(request);
                if answers {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                } else {
                    silent.push(stream);
                }
            }
        });
        Self { endpoint, requests }
    }

    fn settings(&self) -> Option<TracerSettings> {
        Some(TracerSettings::new(self.endpoint.clone(), "test-client"))
    }

    fn spans(&self) -> Vec<Received> {
        let mut spans = Vec::new();
        for request in self.requests.lock().unwrap().iter() {
            let resource = &request["resourceSpans"][0];
            let service = &resource["resource"]["attributes"][0]["value"]["stringValue"];
            for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
                spans.push(Received { service: service.as_str().unwrap().to_owned(), span: span.clone() });
            }
        }
        spans
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
        let length = head.lines().find_map(|it| it.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return serde_json::from_str(body).unwrap();
        }
    }
}

/// The position in a caller's trace.
fn caller(traceparent: &str) -> Option<Current> {
    Some(Current { context: TraceContext::parse(traceparent).unwrap(), tracer: None })
}

/// A master and a node on which every byte crosses a socket, both of which export spans.
async fn traced_cluster(collector: &Collector) -> Cluster {
    let trace = Some(collector.endpoint.clone());
    let master = MasterConfig { trace: trace.clone(), ..MasterConfig::default() };
    let master = MasterServer::start(master).await.unwrap();
    let node = NodeConfig {
        master: master.address().clone().into(),
        memory: 64 << 20,
        shared_memory: false,
        trace,
        ..NodeConfig::default()
    };
    let node = NodeServer::start(node).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    Cluster { nodes: vec![node], master }
}

async fn traced_client(cluster: &Cluster, collector: &Collector) -> Client {
    let options = ConnectOptions { shared_memory: false, trace: collector.settings(), ..cluster.options() };
    Client::connect(options).await.unwrap()
}

async fn stop(cluster: Cluster) {
    for node in cluster.nodes {
        node.leave(soon().instant()).await;
    }
    cluster.master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_all_processes_form_one_trace() {
    let collector = Collector::start(true).await;
    let cluster = traced_cluster(&collector).await;
    let writer = traced_client(&cluster, &collector).await;
    let reader = traced_client(&cluster, &collector).await;
    let value = b"secret-value".repeat(10_000);
    let puts = [Put::new(key("secret-key"), &value)];
    only(scoped(caller(PARENT), writer.put(&puts, soon())).await).unwrap();
    let keys = [key("secret-key"), key("secret-absent")];
    let read = scoped(caller(PARENT), reader.get(&keys, GetOptions::default(), soon())).await;
    assert_eq!((read[0].is_ok(), read[1].is_ok()), (true, false));
    // A call without a trace context has no spans.
    only(reader.delete(&keys[..1], DeleteOptions::default(), soon()).await).unwrap();
    writer.close(soon()).await.unwrap();
    reader.close(soon()).await.unwrap();
    stop(cluster).await;

    let spans = collector.spans();
    let named = |name: &str, kind: Option<u64>| {
        let is_it =
            |it: &&Received| it.span["name"] == name && kind.is_none_or(|kind| it.span["kind"] == kind);
        spans.iter().find(is_it).cloned().unwrap_or_else(|| panic!("no {name} in {spans:?}"))
    };
    let (put, get) = (named("tiffin.put", None), named("tiffin.get", None));
    for call in [&put, &get] {
        assert_eq!(call.span["parentSpanId"], "00f067aa0ba902b7");
        assert_eq!(call.service, "test-client");
    }
    assert_eq!(get.attribute("tiffin.items").unwrap(), "2");
    assert_eq!(get.attribute("tiffin.missing").unwrap(), "1");
    assert_eq!(get.span["status"], serde_json::json!({}), "an absent object is no failure");
    for (name, service, call) in [
        ("tiffin.Master/Reserve", "tiffin-master", &put),
        ("tiffin.Node/Commit", "tiffin-node", &put),
        ("tiffin.Master/Resolve", "tiffin-master", &get),
    ] {
        let (asked, answered) = (named(name, Some(CLIENT_KIND)), named(name, Some(SERVER_KIND)));
        assert_eq!(asked.span["parentSpanId"], *call.id(), "{name}");
        assert_eq!(answered.span["parentSpanId"], *asked.id(), "{name}");
        assert_eq!((asked.service.as_str(), answered.service.as_str()), ("test-client", service));
    }
    for (name, call) in [("tiffin.write", &put), ("tiffin.read", &get)] {
        let moved = named(name, None);
        assert_eq!(moved.span["parentSpanId"], *call.id(), "{name}");
        assert_eq!(moved.attribute("tiffin.bytes").unwrap(), &value.len().to_string());
        assert_eq!(moved.attribute("tiffin.path").unwrap(), "tcp");
    }
    check_times(&spans);
    assert!(!spans.iter().any(|it| it.span["name"].as_str().unwrap().contains("elete")), "{spans:?}");
    let all = format!("{:?}", collector.requests.lock().unwrap());
    assert!(!all.contains("secret"), "a span tells a key or a value: {all}");
}

/// A span begins and ends within that of its parent in the same process.
fn check_times(spans: &[Received]) {
    let time = |it: &Received, name: &str| it.span[name].as_str().unwrap().parse::<u128>().unwrap();
    for span in spans {
        assert_eq!(span.span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        let (began, ended) = (time(span, "startTimeUnixNano"), time(span, "endTimeUnixNano"));
        assert!(began <= ended);
        let parent = spans.iter().find(|it| *it.id() == span.span["parentSpanId"]);
        if let Some(parent) = parent.filter(|it| it.service == span.service) {
            assert!(time(parent, "startTimeUnixNano") <= began, "{span:?} in {parent:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_that_is_not_sampled_exports_nothing() {
    let collector = Collector::start(true).await;
    let cluster = traced_cluster(&collector).await;
    let client = traced_client(&cluster, &collector).await;
    let unsampled = PARENT.replace("-01", "-00");
    let puts = [Put::new(key("k"), b"value")];
    only(scoped(caller(&unsampled), client.put(&puts, soon())).await).unwrap();
    client.close(soon()).await.unwrap();
    stop(cluster).await;
    assert_eq!(collector.requests.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_a_collector_passes_the_trace_on() {
    let collector = Collector::start(true).await;
    let cluster = traced_cluster(&collector).await;
    let client = cluster.tcp_client().await;
    let puts = [Put::new(key("k"), b"value")];
    only(scoped(caller(PARENT), client.put(&puts, soon())).await).unwrap();
    client.close(soon()).await.unwrap();
    stop(cluster).await;
    let spans = collector.spans();
    assert!(!spans.is_empty());
    for it in spans {
        assert_eq!(it.span["parentSpanId"], "00f067aa0ba902b7", "{it:?}");
        assert_ne!(it.service, "test-client");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_collector_does_not_hold_up_calls() {
    let collector = Collector::start(false).await;
    let cluster = traced_cluster(&collector).await;
    let client = traced_client(&cluster, &collector).await;
    for at in 0..3000 {
        let puts = [Put::new(key(format!("k{at}")), b"value")];
        only(scoped(caller(PARENT), client.put(&puts, soon())).await).unwrap();
    }
    let tracer = client.tracer().unwrap();
    assert_eq!(tracer.exported(), 0);
    // A put has at least two spans. 4096 of them wait, and 512 are being sent.
    assert!(tracer.dropped() >= 2 * 3000 - 4096 - 512, "{} were dropped", tracer.dropped());
}
