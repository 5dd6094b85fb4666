"""Tracing: the context of calls, and the spans that a real collector receives."""

import asyncio
import contextvars
import http.server
import json
import logging
import queue
import subprocess
import sys
import threading
import types

import pytest
import tiffin
import tiffin.aio

import helpers

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE, SPAN = PARENT.split("-")[1:3]
UNSAMPLED = PARENT[:-2] + "00"
SECRETS = "secret-key", "secret-value"


class Collector:
    """A collector of spans on a free port, which answers with a status, or never."""

    def __init__(self, status=200):
        self.bodies = bodies = queue.Queue()
        self.may_answer = may_answer = threading.Event()
        if status is not None:
            may_answer.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                bodies.put((self.path, self.headers["Content-Type"], self.rfile.read(length)))
                may_answer.wait()
                self.send_response(status or 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()

    def spans(self):
        """All spans that have arrived, as (service, span), and the text of them all."""
        spans, text = [], ""
        while not self.bodies.empty():
            path, kind, body = self.bodies.get()
            assert (path, kind) == ("/v1/traces", "application/json")
            text += body.decode()
            for resource in json.loads(body)["resourceSpans"]:
                service = values(resource["resource"])["service.name"]
                spans += [(service, span) for it in resource["scopeSpans"] for span in it["spans"]]
        return spans, text


def values(described):
    return {it["key"]: next(iter(it["value"].values())) for it in described["attributes"]}


@pytest.fixture
def collector(monkeypatch):
    collector = Collector()
    monkeypatch.setenv("TIFFIN_TRACE_ENDPOINT", collector.url)
    yield collector
    collector.close()


def only(spans, name, kind=None):
    found = [it for _, it in spans if it["name"] == name and kind in (None, it["kind"])]
    assert len(found) == 1, (name, [it["name"] for _, it in spans])
    return found[0]


def test_calls_continue_the_trace(collector):
    key, value = SECRETS
    with tiffin.connect(memory="64MiB") as store:
        store.put("untraced", b"1")
        with tiffin.trace(PARENT) as accepted:
            assert accepted == PARENT
            store.put(key, value.encode() * 100)
            assert store.get([key, "absent"], default=None)[1] is None
            store.prefetch(key).result()
            store.delete(key)
        store.get("untraced")
    spans, text = collector.spans()
    for call in ("put", "get", "prefetch", "delete"):
        span = only(spans, f"tiffin.{call}")
        assert (span["traceId"], span["parentSpanId"]) == (TRACE, SPAN)
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert span["status"] == {}
    get = values(only(spans, "tiffin.get"))
    assert (get["tiffin.items"], get["tiffin.missing"]) == ("2", "1")
    # A request of the client, and the span of the master below it.
    delete = only(spans, "tiffin.delete")
    asked, answered = (only(spans, "tiffin.Master/Delete", kind) for kind in (3, 2))
    assert (asked["parentSpanId"], answered["parentSpanId"]) == (delete["spanId"], asked["spanId"])
    services = {span["spanId"]: service for service, span in spans}
    assert (services[asked["spanId"]], services[answered["spanId"]]) == ("tiffin-client", "tiffin-master")
    # The transfer of the bytes, and nothing of the object itself.
    moved = values(only(spans, "tiffin.write"))
    assert moved["tiffin.bytes"] == str(100 * len(value))
    assert not any(secret in text for secret in SECRETS)


def test_unsampled_trace_exports_nothing(collector):
    with tiffin.connect(memory="64MiB") as store, tiffin.trace(UNSAMPLED):
        store.put("k", b"1")
        assert store.stats().spans == tiffin.Spans(0, 0)
    assert collector.spans()[0] == []


def test_failure_is_told_by_its_code(collector):
    with tiffin.connect(memory="64MiB") as store, tiffin.trace(PARENT), pytest.raises(tiffin.Full):
        store.put("k", bytes(65 << 20))
    span = only(collector.spans()[0], "tiffin.put")
    assert span["status"] == {"code": 2}
    assert values(span)["error.type"] == "full"


def test_each_task_has_its_own_trace(collector):
    parents = [PARENT.replace(SPAN, f"{number:016x}") for number in (1, 2, 3)]

    async def call(store, key, parent):
        with tiffin.trace(parent):
            await store.put(key, b"1")
            await asyncio.sleep(0)
            await store.delete(key)

    async def main():
        async with tiffin.aio.connect(memory="64MiB") as store:
            await asyncio.gather(*(call(store, str(at), it) for at, it in enumerate(parents)))
            await store.put("untraced", b"1")

    asyncio.run(main())
    spans, _ = collector.spans()
    for call_name in ("tiffin.put", "tiffin.delete"):
        found = sorted(it["parentSpanId"] for _, it in spans if it["name"] == call_name)
        assert found == [f"{number:016x}" for number in (1, 2, 3)]


def test_current_span_of_opentelemetry_is_continued(collector, monkeypatch):
    context = types.SimpleNamespace(
        is_valid=True, trace_id=int(TRACE, 16), span_id=int(SPAN, 16), trace_flags=1
    )
    span = types.SimpleNamespace(get_span_context=lambda: context)
    package = types.SimpleNamespace(get_current_span=lambda: span)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", package)
    other = PARENT.replace(SPAN, "00000000000000aa")
    with tiffin.connect(memory="64MiB") as store:
        store.put("k", b"1")
        with tiffin.trace(other):
            store.delete("k")
        context.is_valid = False
        store.exists("k")
        package.get_current_span = None
        store.exists("k")
    spans, _ = collector.spans()
    assert only(spans, "tiffin.put")["parentSpanId"] == SPAN
    assert only(spans, "tiffin.delete")["parentSpanId"] == "00000000000000aa"
    assert not [it for _, it in spans if it["name"] == "tiffin.exists"]


@pytest.mark.parametrize(
    "given", [None, "", "nonsense", b"\xff", PARENT.upper(), PARENT.replace(SPAN, "0" * 16)]
)
def test_invalid_traceparent_is_ignored(given):
    with tiffin.trace(given) as accepted:
        assert accepted is None
    with tiffin.trace(PARENT), tiffin.trace(given) as accepted:
        assert accepted == PARENT


def test_traceparent_must_be_text():
    with pytest.raises(TypeError, match="hint: "), tiffin.trace(5):
        pass
    with tiffin.trace(PARENT.encode()) as accepted:
        assert accepted == PARENT
    assert contextvars.copy_context().run(tiffin._trace.current) is None


def test_silent_collector_holds_up_no_call(monkeypatch):
    collector = Collector(status=None)
    monkeypatch.setenv("TIFFIN_TRACE_ENDPOINT", collector.url)
    store = tiffin.connect(memory="64MiB")
    with tiffin.trace(PARENT):
        # More spans than can wait.
        for _ in range(3000):
            store.put("k", b"1")
        spans = store.stats().spans
    assert spans.exported == 0 and spans.dropped > 0
    collector.close()
    store.close()


def test_failing_collector_is_told_once(monkeypatch, caplog):
    collector = Collector(status=400)
    monkeypatch.setenv("TIFFIN_TRACE_ENDPOINT", collector.url)
    told = threading.Event()
    monkeypatch.setattr(logging.getLogger("tiffin"), "filters", [lambda _: told.set() or True])
    with tiffin.connect(memory="64MiB") as store, tiffin.trace(PARENT):
        store.put("k", b"1")
        assert told.wait(60)
        for _ in range(5):
            store.put("k", b"1")
    collector.close()
    lines = [it.getMessage() for it in caplog.records if "collector" in it.getMessage()]
    # The client tells it to Python's logging; the servers of this process have a log of their own.
    assert len(lines) == 1, lines
    assert "it answers 400" in lines[0] and "\n\nhint: " in lines[0]


def test_endpoint_that_cannot_be_used(monkeypatch, caplog):
    monkeypatch.setenv("TIFFIN_TRACE_ENDPOINT", "collector:4318")
    with pytest.raises(tiffin.InvalidArgument, match=r"(?s)TIFFIN_TRACE_ENDPOINT=.*hint: "):
        tiffin.connect(memory="64MiB")
    # Variables of OpenTelemetry may be meant for other programs.
    monkeypatch.delenv("TIFFIN_TRACE_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example.org")
    with tiffin.connect(memory="64MiB") as store:
        assert store.put("k", b"1")
    assert [it.levelname for it in caplog.records] == ["WARNING"]


def test_variables_of_opentelemetry_are_defaults(monkeypatch):
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url + "/")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "engine")
    with tiffin.connect(memory="64MiB") as store, tiffin.trace(PARENT):
        store.put("k", b"1")
    assert {service for service, _ in collector.spans()[0]} >= {"engine", "tiffin-master"}
    monkeypatch.setenv("TIFFIN_TRACE_ENDPOINT", "off")
    with tiffin.connect(memory="64MiB") as store, tiffin.trace(PARENT):
        store.put("k", b"1")
    assert collector.spans()[0] == []
    collector.close()


def test_program_without_traces_asks_for_none():
    """The hot path of other programs: no context is looked up, even if OpenTelemetry is loaded."""
    code = """
import sys, types
class Package(types.ModuleType):
    def get_current_span(self):
        raise SystemExit("it was asked")
sys.modules["opentelemetry.trace"] = Package("opentelemetry.trace")
import tiffin, tiffin._trace
tiffin._trace.current = lambda: sys.exit("it was asked")
with tiffin.connect(memory="64MiB") as store:
    store.put("k", b"1")
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


def test_slow_requests_name_namespace_and_trace(tmp_path):
    """And the servers of another process export spans, too."""
    collector, log = Collector(), tmp_path / "log"
    environment = {"TIFFIN_TRACE_ENDPOINT": collector.url}
    flags = ("--slow", "1ns", "--log-format", "json", "--memory", "64MiB")
    with (
        log.open("w") as file,
        helpers.up(*flags, stderr=file, **environment) as (address, _),
        tiffin.connect(address, namespace="tenant-7") as store,
        tiffin.trace(PARENT),
    ):

        def is_told():
            store.delete(SECRETS[0])
            return TRACE in log.read_text()

        helpers.eventually(is_told)
    lines = [json.loads(line)["fields"] for line in log.read_text().splitlines() if "slow request" in line]
    told = next(it for it in lines if it["trace"] == TRACE)
    assert (told["operation"], told["namespace"]) == ("delete", "tenant-7")
    assert SECRETS[0] not in log.read_text()
    spans, _ = collector.spans()
    assert spans and all(service == "tiffin-master" for service, _ in spans)
    # This client exports nothing, so that the master's spans are children of the caller's.
    assert {span["parentSpanId"] for _, span in spans} == {SPAN}
    collector.close()
