//! Spans as OTLP in JSON, and the answer of a collector.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::record::{Ended, Value};
use crate::{Kind, Name};

/// The request that exports a batch.
pub(crate) fn encode(service: &str, spans: &[Ended]) -> Vec<u8> {
    let resource = [
        attribute("service.name", json!({ "stringValue": service })),
        attribute("service.version", json!({ "stringValue": env!("CARGO_PKG_VERSION") })),
        attribute("process.pid", json!({ "intValue": std::process::id().to_string() })),
    ];
    let scope = json!({ "name": "tiffin", "version": env!("CARGO_PKG_VERSION") });
    let spans: Vec<_> = spans.iter().map(span).collect();
    let scope_spans = json!([{ "scope": scope, "spans": spans }]);
    let request =
        json!({ "resourceSpans": [{ "resource": { "attributes": resource }, "scopeSpans": scope_spans }] });
    request.to_string().into_bytes()
}

/// The number of spans that a collector did not accept, by its answer to a batch.
pub(crate) fn rejected(answer: &[u8]) -> u64 {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Answer {
        partial_success: Option<Partial>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Partial {
        // A number or a text: the encoding allows both.
        rejected_spans: Json,
    }
    let answer: Answer = serde_json::from_slice(answer).unwrap_or_default();
    match answer.partial_success.unwrap_or_default().rejected_spans {
        Json::String(text) => text.parse().unwrap_or_default(),
        other => other.as_u64().unwrap_or_default(),
    }
}

fn span(span: &Ended) -> Json {
    let Ended { name, kind, context, parent, began, took, attributes, failed } = span;
    let (name, request) = match name {
        Name::Step(name) => (format!("tiffin.{name}"), Vec::new()),
        Name::Request(service, method) => {
            let parts = [("rpc.system", "tiffin"), ("rpc.service", *service), ("rpc.method", *method)];
            (format!("{service}/{method}"), parts.map(|(key, it)| word(key, it)).to_vec())
        }
    };
    let own = attributes.iter().map(|(key, value)| match value {
        Value::Number(it) => attribute(key, json!({ "intValue": it.to_string() })),
        Value::Word(it) => word(key, it),
    });
    let error = failed.map(|it| word("error.type", it));
    let attributes: Vec<_> = request.into_iter().chain(own).chain(error).collect();
    let kind = match kind {
        Kind::Internal => 1,
        Kind::Server => 2,
        Kind::Client => 3,
    };
    json!({
        "traceId": context.trace_id(),
        "spanId": context.span_id(),
        "parentSpanId": parent.span_id(),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(*began, Duration::ZERO),
        "endTimeUnixNano": nanoseconds(*began, *took),
        "attributes": attributes,
        "status": if failed.is_some() { json!({ "code": 2 }) } else { json!({}) },
    })
}

fn word(key: &str, value: &str) -> Json {
    attribute(key, json!({ "stringValue": value }))
}

fn attribute(key: &str, value: Json) -> Json {
    json!({ "key": key, "value": value })
}

/// 64-bit numbers are text in this encoding.
fn nanoseconds(began: SystemTime, after: Duration) -> String {
    let since = began.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.saturating_add(after).as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceContext;

    #[test]
    fn span_has_the_names_of_the_standard() {
        let parent = TraceContext::new([0xab; 16], [1; 8], 1).unwrap();
        let ended = Ended {
            name: Name::Request("tiffin.Master", "Reserve"),
            kind: Kind::Client,
            context: parent.at([2; 8]).unwrap(),
            parent,
            began: UNIX_EPOCH + Duration::from_secs(1),
            took: Duration::from_nanos(5),
            attributes: vec![("tiffin.items", Value::Number(u64::MAX))],
            failed: Some("timeout"),
        };
        let body: Json = serde_json::from_slice(&encode("tiffin-client", &[ended])).unwrap();
        let resource = &body["resourceSpans"][0];
        let service = json!({ "key": "service.name", "value": { "stringValue": "tiffin-client" } });
        assert_eq!(resource["resource"]["attributes"][0], service);
        let found = &resource["scopeSpans"][0]["spans"][0];
        let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let expected = json!({
            "traceId": "ab".repeat(16),
            "spanId": "02".repeat(8),
            "parentSpanId": "01".repeat(8),
            "name": "tiffin.Master/Reserve",
            "kind": 3,
            "startTimeUnixNano": "1000000000",
            "endTimeUnixNano": "1000000005",
            "attributes": [
                text("rpc.system", "tiffin"),
                text("rpc.service", "tiffin.Master"),
                text("rpc.method", "Reserve"),
                { "key": "tiffin.items", "value": { "intValue": u64::MAX.to_string() } },
                text("error.type", "timeout"),
            ],
            "status": { "code": 2 },
        });
        assert_eq!(*found, expected);
    }

    #[test]
    fn answer_says_how_many_spans_were_rejected() {
        for (answer, expected) in [
            (&b"{}"[..], 0),
            (b"", 0),
            (b"not JSON", 0),
            (br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}"#, 3),
            (br#"{"partialSuccess":{"rejectedSpans":4}}"#, 4),
            (br#"{"partialSuccess":{"rejectedSpans":-4}}"#, 0),
            (br#"{"partialSuccess":{}}"#, 0),
        ] {
            assert_eq!(rejected(answer), expected, "{}", answer.escape_ascii());
        }
    }
}
