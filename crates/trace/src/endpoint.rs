//! The collector, as a URL.

use std::fmt;
use std::str::FromStr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The path of a collector, if the URL names none.
const PATH: &str = "/v1/traces";
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port.
    authority: String,
    path: String,
}

/// A URL that cannot be the collector's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError(&'static str);

impl fmt::Display for EndpointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl std::error::Error for EndpointError {}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.parse().map_err(|_| EndpointError("it is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(EndpointError(
                    "TLS is not supported; send to a collector on this host, which can forward by TLS",
                ));
            }
            _ => return Err(EndpointError("it does not begin with `http://`")),
        }
        let authority = uri.authority().filter(|it| !it.host().is_empty());
        let authority = authority.ok_or(EndpointError("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(EndpointError("it contains a user name, which is not supported"));
        }
        let authority = match authority.port() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:80"),
        };
        let path = uri.path_and_query().map_or("/", |it| it.as_str());
        let path = if path == "/" { PATH } else { path };
        Ok(Self { authority, path: path.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "http://{}{}", self.authority, self.path)
    }
}

/// Why a batch was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The same batch may be accepted later.
    Again(String),
    /// It never will be.
    Final(String),
}

impl Endpoint {
    /// The endpoint below a base URL, as `OTEL_EXPORTER_OTLP_ENDPOINT` names one: it ends with the path of
    /// traces.
    pub fn below(base: &str) -> Result<Self, EndpointError> {
        format!("{}{PATH}", base.trim_end_matches('/')).parse()
    }

    /// Posts a batch on a connection of its own, and returns the body of the answer. It has no time limit.
    pub(crate) async fn post(&self, body: Vec<u8>) -> Result<Bytes, Refused> {
        let again = |error: &dyn fmt::Display| Refused::Again(error.to_string());
        let stream = TcpStream::connect(&self.authority).await.map_err(|it| again(&it))?;
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(|it| again(&it))?;
        // It ends with this function.
        let mut task = JoinSet::new();
        task.spawn(connection);
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("tiffin/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|it| Refused::Final(it.to_string()))?;
        let response = sender.send_request(request).await.map_err(|it| again(&it))?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        match status {
            it if it.is_success() => Ok(answer.map(|it| it.to_bytes()).unwrap_or_default()),
            // Those after which OTLP wants another try.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(Refused::Again(format!("it answers {status}"))),
            _ => Err(Refused::Final(format!("it answers {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_a_url_with_defaults() {
        for (text, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector/", "http://collector:80/v1/traces"),
            ("http://[::1]:4318/otlp?x=1", "http://[::1]:4318/otlp?x=1"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), expected);
        }
        let below = Endpoint::below("http://collector:4318/base/").unwrap();
        assert_eq!(below.to_string(), "http://collector:4318/base/v1/traces");
        for text in
            ["", "collector:4318", "https://collector", "http://", "ftp://c", "http://u:p@c", "http:// c"]
        {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
