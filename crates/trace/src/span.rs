//! One timed step of a trace.

use std::time::Instant;

use crate::record::{Ended, Value};
use crate::{Current, Tracer};

/// A span that has begun. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(Box<Open>);

#[derive(Debug)]
struct Open {
    tracer: Tracer,
    clock: Instant,
    // Taken by the destructor.
    span: Option<Ended>,
}

impl Span {
    pub(crate) fn new(tracer: Tracer, span: Ended) -> Self {
        Self(Box::new(Open { tracer, clock: Instant::now(), span: Some(span) }))
    }

    /// The position of steps below this span.
    #[must_use]
    pub fn current(&self) -> Option<Current> {
        let context = self.0.span.as_ref()?.context;
        Some(Current { context, tracer: Some(self.0.tracer.clone()) })
    }

    /// Adds a number.
    pub fn number(&mut self, name: &'static str, value: u64) {
        self.attribute(name, Value::Number(value));
    }

    /// Adds a word, one of a few that the code has.
    pub fn word(&mut self, name: &'static str, value: &'static str) {
        self.attribute(name, Value::Word(value));
    }

    /// The step has failed. The first kind of failure is told.
    pub fn fail(&mut self, failure: &'static str) {
        if let Some(span) = &mut self.0.span {
            span.failed.get_or_insert(failure);
        }
    }

    fn attribute(&mut self, name: &'static str, value: Value) {
        if let Some(span) = &mut self.0.span {
            span.attributes.push((name, value));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.took = self.clock.elapsed();
            self.tracer.push(span);
        }
    }
}
