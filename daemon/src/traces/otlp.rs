//! Lives as OTLP messages, over gRPC in the clear: a collector stands beside the daemon and speaks TLS to the world.
//!
//! The messages are OpenTelemetry's own (opentelemetry-proto 1.x, `collector.trace.v1`). The SDK is not used: it makes
//! spans while things happen, and these are made afterwards.
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as Wire, Status, span, status,
};

use super::life::{Attributes, Life, Span, Value};

/// A collector answers within this, or is asked again later.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Why lives were not sent: worth another try.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The collector was not reached, or refused.
    #[error("the collector at {endpoint} did not take traces: {why}")]
    Refused {
        /// Where.
        endpoint: String,
        /// What it said.
        why: String,
    },
    /// No answer.
    #[error("the collector at {endpoint} did not answer within {within:?}")]
    Silent {
        /// Where.
        endpoint: String,
        /// For how long it was waited.
        within: Duration,
    },
}

/// An OpenTelemetry collector.
pub(super) struct Collector {
    endpoint: String,
    resource: Resource,
}

impl Collector {
    pub(super) fn new(endpoint: &str, node: &str) -> Self {
        let about: Attributes = vec![
            ("service.name", Value::Text("evenkeeld".into())),
            (
                "service.version",
                Value::Text(env!("CARGO_PKG_VERSION").into()),
            ),
            ("host.name", Value::Text(node.into())),
        ];
        Self {
            endpoint: endpoint.into(),
            resource: Resource {
                attributes: wired(&about),
                ..Resource::default()
            },
        }
    }

    fn message(&self, lives: &[Life]) -> ExportTraceServiceRequest {
        let spans = ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "evenkeel.lease".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                ..InstrumentationScope::default()
            }),
            spans: lives.iter().flat_map(spans).collect(),
            ..ScopeSpans::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![spans],
                ..ResourceSpans::default()
            }],
        }
    }

    /// Hands lives over; what it did not take may come again.
    pub(super) async fn send(&self, lives: &[Life]) -> Result<(), SendError> {
        let refused = |why: String| SendError::Refused {
            endpoint: self.endpoint.clone(),
            why,
        };
        let message = self.message(lives);
        let sent = async {
            let client = TraceServiceClient::connect(self.endpoint.clone()).await;
            let mut client = client.map_err(|e| refused(innermost(&e)))?;
            let answer = client.export(message).await;
            let answer = answer.map_err(|status| refused(status.message().into()))?;
            match answer.into_inner().partial_success {
                Some(part) if part.rejected_spans > 0 => {
                    // Sent again they would be refused again.
                    tracing::warn!(
                        spans = part.rejected_spans,
                        why = part.error_message,
                        "the collector refused some spans"
                    );
                    Ok(())
                }
                _ => Ok(()),
            }
        };
        let silent = || SendError::Silent {
            endpoint: self.endpoint.clone(),
            within: ANSWER_WITHIN,
        };
        tokio::time::timeout(ANSWER_WITHIN, sent)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The spans of a life, the root first.
fn spans(life: &Life) -> impl Iterator<Item = Wire> + '_ {
    let root = wire(life, 0, &life.root);
    let parts = life.parts.iter().enumerate();
    std::iter::once(root).chain(parts.map(|(i, part)| wire(life, i + 1, part)))
}

fn wire(life: &Life, index: usize, span: &Span) -> Wire {
    let parent = (index > 0).then(|| life.span_id(0).to_vec());
    let trouble = span.trouble.as_ref().map(|message| Status {
        message: message.clone(),
        code: status::StatusCode::Error.into(),
    });
    Wire {
        trace_id: life.trace.to_vec(),
        span_id: life.span_id(index).to_vec(),
        parent_span_id: parent.unwrap_or_default(),
        name: span.name.into(),
        kind: span::SpanKind::Internal.into(),
        start_time_unix_nano: nanos(span.from_ms),
        end_time_unix_nano: nanos(span.to_ms),
        attributes: wired(&span.attributes),
        events: span
            .marks
            .iter()
            .map(|mark| span::Event {
                time_unix_nano: nanos(mark.at_ms),
                name: mark.name.into(),
                attributes: wired(&mark.attributes),
                ..span::Event::default()
            })
            .collect(),
        status: trouble,
        ..Wire::default()
    }
}

const fn nanos(unix_ms: u64) -> u64 {
    unix_ms.saturating_mul(1_000_000)
}

fn wired(attributes: &Attributes) -> Vec<KeyValue> {
    let value = |value: &Value| match value {
        Value::Text(text) => any_value::Value::StringValue(text.clone()),
        // OpenTelemetry's integers are signed; no amount of ours is near their end.
        Value::Count(n) => any_value::Value::IntValue(i64::try_from(*n).unwrap_or(i64::MAX)),
        Value::Flag(flag) => any_value::Value::BoolValue(*flag),
    };
    attributes
        .iter()
        .map(|(key, found)| KeyValue {
            key: (*key).into(),
            value: Some(AnyValue {
                value: Some(value(found)),
            }),
            ..KeyValue::default()
        })
        .collect()
}
