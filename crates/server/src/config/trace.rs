//! The collector of spans.
//!
//! The variables of OpenTelemetry are defaults. They may be meant for other programs of the same environment,
//! so a value that cannot be used is ignored with a warning. A value of our own setting is refused instead.

use tiffin_trace::{Endpoint, EndpointError};

use super::{CommonArgs, ConfigError};

/// The word that switches a setting off.
const OFF: &str = "off";

impl CommonArgs {
    /// Where spans are sent; `None` for nowhere.
    pub fn trace(&self) -> Result<Option<Endpoint>, ConfigError> {
        match self.trace_endpoint.as_deref() {
            Some(OFF) => return Ok(None),
            Some(text) => {
                return text.parse().map(Some).map_err(|error: EndpointError| ConfigError::Value {
                    name: "trace_endpoint",
                    value: format!("`{text}`"),
                    why: error.to_string(),
                    hint: "write `http://127.0.0.1:4318`, or `off`".to_owned(),
                });
            }
            None => {}
        }
        let said = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
        let (text, endpoint) = match (said(&self.otel_traces_endpoint), said(&self.otel_endpoint)) {
            (Some(whole), _) => (whole.clone(), whole.parse()),
            (None, Some(base)) => (base.clone(), Endpoint::below(&base)),
            (None, None) => return Ok(None),
        };
        match endpoint {
            Ok(endpoint) => Ok(Some(endpoint)),
            Err(error) => {
                let hint = "set TIFFIN_TRACE_ENDPOINT to a collector, or to `off`";
                tracing::warn!("no spans are sent to `{text}`: {error}\n\nhint: {hint}");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(own: Option<&str>, traces: Option<&str>, base: Option<&str>) -> Result<Option<String>, String> {
        let text = |it: Option<&str>| it.map(str::to_owned);
        let args = CommonArgs {
            trace_endpoint: text(own),
            otel_traces_endpoint: text(traces),
            otel_endpoint: text(base),
            ..CommonArgs::default()
        };
        let endpoint = args.trace().map_err(|error| error.to_string())?;
        Ok(endpoint.map(|it| it.to_string()))
    }

    #[test]
    fn own_setting_precedes_those_of_opentelemetry() {
        let (a, b, c) = (Some("http://a:1"), Some("http://b:2/x"), Some("http://c:3"));
        for (given, expected) in [
            ((a, b, c), Some("http://a:1/v1/traces")),
            ((None, b, c), Some("http://b:2/x")),
            ((None, None, c), Some("http://c:3/v1/traces")),
            ((None, Some(""), c), Some("http://c:3/v1/traces")),
            ((Some("off"), b, c), None),
            ((None, None, None), None),
        ] {
            assert_eq!(trace(given.0, given.1, given.2).unwrap().as_deref(), expected, "{given:?}");
        }
    }

    #[test]
    fn unusable_endpoint_is_refused_or_ignored() {
        let error = trace(Some("collector:4318"), None, None).unwrap_err();
        assert!(error.contains("trace_endpoint is `collector:4318`") && error.contains("hint: "), "{error}");
        assert_eq!(trace(None, None, Some("https://collector")), Ok(None));
    }
}
