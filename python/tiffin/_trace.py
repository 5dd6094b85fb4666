"""The trace context of the current task: that of `tiffin.trace`, or that of OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ._native import accept_traceparent

_traceparent: ContextVar[str | None] = ContextVar("tiffin_traceparent", default=None)


@contextmanager
def trace(traceparent: str | bytes | None) -> Iterator[str | None]:
    """Continue a trace: calls inside this block belong to the span that the W3C `traceparent` names.

    Gives the trace context that calls carry. An invalid `traceparent` is ignored, as the standard wants, and
    so is `None`: then it gives the context of the surroundings, or `None`. Tasks that the block starts
    inherit the context; threads do not.

    Without this, calls continue the current span of OpenTelemetry, if TIFFIN_TRACE_ENDPOINT names a collector
    and the package `opentelemetry` is in use.

    >>> import tiffin
    >>> with tiffin.trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") as accepted:
    ...     with tiffin.connect(memory="64MiB") as store:
    ...         store.put("k", b"hello")
    True
    >>> accepted
    '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    """
    accepted = None if traceparent is None else accept_traceparent(_text(traceparent))
    if accepted is None:
        yield current()
        return
    token = _traceparent.set(accepted)
    try:
        yield accepted
    finally:
        _traceparent.reset(token)


def _text(traceparent: str | bytes) -> str:
    if isinstance(traceparent, bytes):
        return traceparent.decode("latin-1")
    if isinstance(traceparent, str):
        return traceparent
    raise TypeError(
        f"a traceparent must be text, not {type(traceparent).__name__}\n\n"
        "hint: give the header of the request, as in `tiffin.trace(headers.get('traceparent'))`"
    )


def current() -> str | None:
    """The `traceparent` of the current task. It never raises: tracing must not make a call fail."""
    given = _traceparent.get()
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if given is not None or opentelemetry is None:
        return given
    try:
        span = opentelemetry.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags) & 0xFF:02x}"
    except Exception:
        return None
