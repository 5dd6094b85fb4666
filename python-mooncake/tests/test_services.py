"""The modules besides the store: settings, coroutines, the metadata server, the REST service."""

import asyncio
import contextlib
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import mooncake
import pytest
from mooncake import _absent, _http, http_metadata_server, mooncake_store_service
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.http_metadata_server import KVBootstrapServer, KVPoll
from mooncake.mooncake_config import (
    DEFAULT_GLOBAL_SEGMENT_SIZE,
    DEFAULT_LOCAL_BUFFER_SIZE,
    MooncakeConfig,
)
from mooncake.mooncake_store_service import StoreApi

SECONDS_MAX = 60
BASE = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


def fetch(port, method, path, body=None, headers=None):
    """The status, content type and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()


@contextlib.contextmanager
def serving(handle, body_bytes_max=1 << 20):
    server = _http.Server("127.0.0.1", 0, handle, body_bytes_max)
    server.start()
    try:
        yield server.port
    finally:
        server.close()


# Settings


def from_json(tmp_path, **fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    return MooncakeConfig.from_file(str(path))


def test_file_with_the_required_fields_gives_the_defaults(tmp_path):
    config = from_json(tmp_path, **BASE, surprise=1)
    assert (config.global_segment_size, config.local_buffer_size) == (
        DEFAULT_GLOBAL_SEGMENT_SIZE,
        DEFAULT_LOCAL_BUFFER_SIZE,
    )
    assert (config.protocol, config.device_name, config.tenant_id) == ("tcp", "", "default")
    assert (config.enable_ssd_offload, config.client_http_port) == (False, 9300)
    assert config.to_setup()["master_server_addr"] == "m:1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1024, 1024),
        (True, 1),
        (1.9, 1),
        ("1.5 GB", 1610612736),
        ("4k", 4096),
        ("4KB", 4096),
        ("7b", 7),
        ("1e3", 1000),
        ("2TB", 2 << 40),
        ("", ValueError("Invalid segment size: empty string")),
        ("gb", ValueError("Invalid segment size: missing number before 'gb'")),
        ("abc", ValueError("could not convert")),
        ("-5", ValueError("Invalid global_segment_size: -5. Size must be non-negative.")),
        (None, TypeError("not 'NoneType'")),
        ([], TypeError("not 'list'")),
    ],
)
def test_sizes(tmp_path, given, expected):
    if isinstance(expected, int):
        assert from_json(tmp_path, **BASE, global_segment_size=given).global_segment_size == expected
        return
    with pytest.raises(type(expected), match=re.escape(str(expected))):
        from_json(tmp_path, **BASE, global_segment_size=given)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("protocol", " RDMA ", "rdma"),
        ("protocol", " ", ValueError("Invalid protocol: ' '")),
        ("protocol", 3, ValueError("Invalid protocol: 3")),
        (
            "local_hostname",
            " ",
            ValueError("Config field 'local_hostname' must be a non-empty string, got ' '."),
        ),
        ("local_hostname", ..., ValueError("Missing required config field: local_hostname")),
        ("metadata_server", ..., ValueError("Missing required config field: metadata_server")),
        ("master_server_address", ..., ValueError("Missing required config field: master_server_address")),
        ("device_name", None, None),
        ("tenant_id", None, "default"),
        ("client_http_port", "12", 12),
        ("client_http_port", "x", ValueError("invalid literal")),
        ("enable_ssd_offload", "Enable", True),
        ("enable_ssd_offload", "off", False),
        ("enable_ssd_offload", "", False),
        ("enable_ssd_offload", None, False),
        ("enable_ssd_offload", 2, True),
        ("enable_ssd_offload", "maybe", ValueError("Invalid boolean value: 'maybe'")),
    ],
)
def test_fields(tmp_path, field, value, expected):
    fields = {**BASE, field: value}
    if not isinstance(expected, Exception):
        assert getattr(from_json(tmp_path, **fields), field) == expected
        return
    with pytest.raises(type(expected), match=re.escape(str(expected))):
        from_json(tmp_path, **fields)


def test_environment_names_a_file_or_the_fields(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("MOONCAKE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:2")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1gb")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "yes")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server) == ("localhost", "P2PHANDSHAKE")
    assert (config.master_server_address, config.global_segment_size) == ("m:2", 1 << 30)
    assert config.enable_ssd_offload is True
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", "")
    with pytest.raises(FileNotFoundError):
        MooncakeConfig.load_from_env()
    path = tmp_path / "config.json"
    path.write_text("{")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    with pytest.raises(json.JSONDecodeError):
        MooncakeConfig.load_from_env()


# Coroutines


def test_every_method_has_a_coroutine():
    store = MooncakeDistributedStoreAsync()
    threads = []

    async def calls():
        threads.append(threading.current_thread())
        return [await store.async_health_check(), await store.async_is_exist("k"), store.is_exist("k")]

    assert asyncio.run(calls()) == [1, -600, -600]
    assert store.async_put is store.async_put and asyncio.iscoroutinefunction(store.async_put)
    with pytest.raises(TypeError):
        asyncio.run(store.async_put("k", "text"))
    with pytest.raises(
        AttributeError,
        match=re.escape("'MooncakeDistributedStoreAsync' object has no attribute 'async_x' (nor 'x')"),
    ):
        _ = store.async_x
    with pytest.raises(AttributeError, match="object has no attribute 'x'"):
        _ = store.x


# The metadata server


@pytest.fixture
def metadata():
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    yield server
    server.close()


def test_setup_without_its_metadata_server_has_a_hint(worker):
    worker.run("master = Master()")
    url = worker.eval("f'http://127.0.0.1:{free_port()}/metadata'")
    assert worker.eval(f"connect(master.address, metadata={url!r})") == -1
    assert "cannot use the metadata server" in worker.tail()
    assert "hint: start `mooncake_http_metadata_server`, or name `P2PHANDSHAKE`" in worker.tail()


def test_metadata_server_behaves_like_the_original(metadata):
    for method, path, body, expected in [
        ("GET", "/metadata?key=a", None, (404, b"metadata not found")),
        ("PUT", "/metadata?key=a%2Fb", b"1", (200, b"metadata updated")),
        ("PUT", "/metadata?key=a%2Fb", b"2", (200, b"metadata updated")),
        ("GET", "/metadata?key=a/b", None, (200, b"2")),
        ("DELETE", "/metadata?key=a/b", None, (200, b"metadata deleted")),
        ("DELETE", "/metadata?key=a/b", None, (404, b"metadata not found")),
        ("PUT", "/metadata?key=mooncake/rpc_meta/x", b"1", (200, b"metadata updated")),
        ("PUT", "/metadata?key=mooncake/rpc_meta/x", b"1", (400, b"Duplicate rpc_meta key not allowed")),
        ("GET", "/metadata", None, (400, b"metadata key is required")),
        ("GET", "/metadata?key=%20", None, (400, b"metadata key is required")),
        ("POST", "/metadata?key=a", b"1", (405, b"Method not allowed")),
        ("GET", "/health", None, (404, b"404: Not Found")),
    ]:
        status, _, answer = fetch(metadata.port, method, path, body)
        assert (status, answer) == expected, f"{method} {path}"
    assert fetch(metadata.port, "GET", "/metadata?key=mooncake/rpc_meta/x")[1] == "application/json"


def test_metadata_is_bounded(metadata, monkeypatch):
    limit = http_metadata_server.KEY_BYTES_MAX
    assert fetch(metadata.port, "PUT", f"/metadata?key={'k' * limit}", b"1")[0] == 200
    assert fetch(metadata.port, "PUT", f"/metadata?key={'k' * (limit + 1)}", b"1")[0] == 400
    limit = http_metadata_server.VALUE_BYTES_MAX
    assert fetch(metadata.port, "PUT", "/metadata?key=a", b"v" * limit)[0] == 200
    assert fetch(metadata.port, "PUT", "/metadata?key=a", b"v" * (limit + 1))[0] == 413
    monkeypatch.setattr(http_metadata_server, "ENTRIES_MAX", 3)
    assert fetch(metadata.port, "PUT", "/metadata?key=b", b"1")[0] == 200
    assert fetch(metadata.port, "PUT", "/metadata?key=c", b"1")[0] == 507
    assert fetch(metadata.port, "PUT", "/metadata?key=b", b"2")[0] == 200
    used = sum(len(key) + len(value) for key, value in metadata._entries.items())
    assert metadata._bytes == used
    monkeypatch.setattr(http_metadata_server, "TOTAL_BYTES_MAX", used + 1)
    assert fetch(metadata.port, "PUT", "/metadata?key=b", b"22")[0] == 200
    assert fetch(metadata.port, "PUT", "/metadata?key=b", b"222")[0] == 507


def test_metadata_server_reports_its_state():
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() == KVPoll.Bootstrapping
    thread = server.run()
    assert server.poll() == KVPoll.Success and thread.daemon
    server.close()
    thread.join(SECONDS_MAX)
    assert server.poll() == KVPoll.Failed


# The server behind both


def test_connections_are_bounded(monkeypatch):
    """Connections that wait for a request make room for others; those that are served do not."""
    monkeypatch.setattr(_http, "CONNECTIONS_MAX", 2)
    begun, may_end = threading.Semaphore(0), threading.Event()

    def handle(request):
        if request.path == "/slow":
            begun.release()
            may_end.wait(SECONDS_MAX)
        return _http.text(200, "fine")

    with serving(handle) as port, contextlib.ExitStack() as held:
        connect = lambda: held.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS_MAX))
        first, _second = connect(), connect()
        assert fetch(port, "GET", "/")[2] == b"fine", "beyond the limit the oldest is closed"
        assert first.recv(1) == b""
        slow = []
        for _ in range(2):
            slow.append(connect())
            slow[-1].sendall(b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert begun.acquire(timeout=SECONDS_MAX)
        assert connect().recv(1) == b"", "both places are served"
        may_end.set()
        for it in slow:
            assert it.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_head_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(_http, "HEAD_SECONDS_MAX", 1)
    with serving(lambda _request: _http.text(200, "fine")) as port:
        with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nX: ")
            assert slow.recv(1) == b""
        assert fetch(port, "GET", "/")[0] == 200


def test_pages_of_other_sites_use_no_service_without_a_token(monkeypatch):
    """A browser sends their requests to ports of this machine, which its machine alone could not reach."""
    with serving(lambda _request: _http.text(200, "fine")) as port:
        for headers, expected in [
            ({}, 200),
            ({"Origin": f"http://127.0.0.1:{port}"}, 200),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": "[::1]"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example"}, 403),
            ({"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}, 403),
        ]:
            assert fetch(port, "POST", "/", b"1", headers)[0] == expected, headers
    monkeypatch.setenv("TIFFIN_TOKEN", "secret")
    with serving(lambda _request: _http.text(200, "fine")) as port:
        headers = {"Host": "proxy.example", "Authorization": "Bearer secret"}
        assert fetch(port, "GET", "/", headers=headers)[0] == 200, "the token says enough"


def test_services_listen_on_loopback_without_a_token(monkeypatch, tmp_path):
    config = MooncakeConfig("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", "m:1")
    made = lambda: (_http.host_or_default(None), mooncake_store_service.MooncakeStoreService(config).host)
    assert made() == ("127.0.0.1", "127.0.0.1")
    assert _http.host_or_default("0.0.0.0") == "0.0.0.0" and "TIFFIN_TOKEN" in _http.exposure("0.0.0.0")
    file = tmp_path / "token"
    file.write_text("secret\n")
    monkeypatch.setenv("TIFFIN_TOKEN_FILE", str(file))
    assert made() == ("0.0.0.0", "0.0.0.0") and _http.exposure("0.0.0.0") is None
    with serving(lambda _request: _http.text(200, "fine")) as port:
        assert fetch(port, "GET", "/")[0] == 401
        assert fetch(port, "GET", "/", headers={"Authorization": "Bearer secret"})[0] == 200
    file.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        _http.token()


def test_requests_need_the_token_and_a_length(monkeypatch):
    monkeypatch.setenv("TIFFIN_TOKEN", "secret")
    with serving(lambda request: _http.text(200, f"{len(request.body)} bytes"), 3) as port:
        token = {"Authorization": "Bearer secret"}
        assert fetch(port, "GET", "/")[0] == 401
        assert fetch(port, "GET", "/", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert fetch(port, "PUT", "/", b"123", token)[2] == b"3 bytes"
        assert fetch(port, "PUT", "/", b"1234", token)[0] == 413
        assert fetch(port, "PUT", "/", iter([b"1"]), {**token, "Transfer-Encoding": "chunked"})[0] == 411


# The REST service


class FakeStore:
    """A store that records its segments and fails on request."""

    def __init__(self):
        self.code = 0
        self.mounted = []
        self.calls = []

    def allocate_and_mount_segment(self, size, protocol, location):
        self.calls.append((size, protocol, location))
        if self.code:
            return {"ret": self.code, "segment_ids": [], "allocated_size": 0}
        return {"ret": 0, "segment_ids": ["1-2"], "allocated_size": 16 << 20}

    def mount_segment(self, path, size, offset, protocol, location):
        self.calls.append((path, size, offset, protocol, location))
        if self.code:
            return {"ret": self.code, "segment_ids": []}
        self.mounted.append(f"1-{len(self.calls)}")
        return {"ret": 0, "segment_ids": self.mounted[-1:]}

    def unmount_segment(self, ids, grace=0):
        self.calls.append((ids, grace))
        return self.code

    def unmount_and_free_segment(self, ids, grace):
        self.calls.append((ids, grace))
        return self.code

    def unmount_local_disk_segment(self, grace):
        self.calls.append(grace)
        return self.code


def test_segments_are_mounted_and_unmounted():
    store = FakeStore()
    with serving(StoreApi(store).answer) as port:

        def post(path, body, code=0):
            store.code = code
            status, kind, answer = fetch(port, "POST", f"/api/{path}", json.dumps(body))
            assert kind == "application/json; charset=utf-8"
            return status, json.loads(answer)

        ok = {"status": "success"}
        assert post("mount", {"size": 5}) == (200, {**ok, "segment_ids": ["1-2"], "allocated_size": 16 << 20})
        assert store.calls.pop() == (5, "tcp", "")
        for size in (0, -1, True, "5", None):
            expected = (400, {"error": "Invalid size, must be a positive integer"})
            assert post("mount", {"size": size}) == expected
        assert post("mount", {"size": 5}, -1) == (500, {"error": "Allocate and mount failed, ret=-1"})
        assert post("unmount", {"segment_ids": "1-2", "grace_period_seconds": 3}) == (200, ok)
        assert store.calls.pop() == (["1-2"], 3)
        assert post("unmount", {}) == (400, {"error": "Missing segment_ids"})
        assert post("unmount", {"segment_ids": ["a"]}, -1) == (
            500,
            {"error": "Unmount and free failed, ret=-1"},
        )

        status, answer = post("mount_shm", {"name": "/x", "size": 7, "offset": 4096})
        assert (status, answer["status"]) == (200, "success")
        assert store.calls.pop() == ("/dev/shm/x", 7, 4096, "tcp", "")
        for name in ("a/b", "..", ".", "", None, 3):
            expected = (400, {"error": "Missing or invalid name or size"})
            assert post("mount_shm", {"name": name, "size": 7}) == expected
        assert post("mount_shm", {"name": "x", "size": 7}, -1) == (500, {"error": "Mount failed, ret=-1"})
        assert post("unmount_shm", {"segment_ids": ["a", "b"]}) == (200, ok)
        failed = {"error": "Unmount failed for one or more segments", "failed_segment_ids": ["a", "b"]}
        assert post("unmount_shm", {"segment_ids": ["a", "b"]}, -1) == (500, failed)

        assert post("unmount_local_disk", {"grace_period_seconds": 3600}) == (200, ok)
        for seconds in (3601, -1, True, "1"):
            status, answer = post("unmount_local_disk", {"grace_period_seconds": seconds})
            assert status == 400 and answer["error"].startswith("Invalid grace_period_seconds")
        assert post("unmount_local_disk", [])[1] == {"error": "Request body must be a JSON object"}
        assert fetch(port, "POST", "/api/unmount_local_disk", "{")[2] == b'{"error": "Malformed JSON body"}'


def test_node_changes_between_prefill_and_decode():
    store = FakeStore()
    with serving(StoreApi(store).answer) as port:

        def change(code=0, **body):
            store.code = code
            status, _, answer = fetch(port, "POST", "/api/reconfigure", json.dumps(body))
            return status, json.loads(answer)

        decode = {"mode": "Decode", "path": "/f", "size": 9}
        assert change(mode="other") == (400, {"error": "Invalid mode. Use 'decode' or 'prefill'"})
        assert change(mode="decode") == (400, {"error": "Missing path or size for decode mode"})
        failed = {"error": "Mount failed, ret=-1; rolled back to prefill", "mode": "prefill"}
        assert change(-1, **decode) == (500, failed)
        status, answer = change(**decode)
        assert (status, answer["mode"], answer["segment_ids"]) == (200, "decode", store.mounted[-1:])
        first = store.mounted[-1]
        kept = {"error": "Mount failed, ret=-1; keeping previous decode segments", "mode": "decode"}
        assert change(-1, **decode) == (500, kept)
        assert change(**decode)[0] == 200
        assert store.calls[-1] == ([first], 0), "the previous segment is unmounted after the next is there"
        assert change(-1, mode="prefill") == (500, {"error": "Unmount failed, ret=-1"})
        assert change(mode="prefill") == (200, {"status": "success", "mode": "prefill"})
        count = len(store.calls)
        assert change(mode="prefill")[0] == 200 and len(store.calls) == count


def start(module, *arguments, environment=()):
    """A service, and the port from its log."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | dict(environment),
    )
    guard = threading.Timer(SECONDS_MAX, process.kill)
    guard.start()
    try:
        for line in process.stderr:
            if found := re.search(r"listens on (?:ports |http://127\.0\.0\.1:)(\d+)", line):
                return process, int(found[1])
        raise AssertionError(f"{module} ended with {process.wait()}")
    finally:
        guard.cancel()


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(SECONDS_MAX)
    finally:
        process.stderr.close()


def test_rest_service_serves_a_store(worker, tmp_path):
    worker.run("master = Master()")
    config = {**BASE, "master_server_address": worker.eval("master.address")}
    path = tmp_path / "rest.json"
    path.write_text(json.dumps({**config, "global_segment_size": "64mb", "local_buffer_size": "16mb"}))
    arguments = ("--config", str(path), "--host", "127.0.0.1", "--port", "0", "-D", "no equals sign")
    process, port = start("mooncake.mooncake_store_service", *arguments)
    put = json.dumps({"key": "a/b", "value": "grün"})
    success = b'{"status": "success"}'
    for method, where, body, expected in [
        ("PUT", "/api/put", put, (200, success)),
        ("PUT", "/api/put", put.replace("gr", "br"), (200, success)),
        ("GET", "/api/get/a%2Fb", None, (200, "grün".encode())),
        ("GET", "/api/exist/a%2Fb", None, (200, b'{"exists": true}')),
        ("GET", "/api/exist/x", None, (200, b'{"exists": false}')),
        ("GET", "/api/get/x", None, (404, b'{"error": "Key not found"}')),
        ("PUT", "/api/put", '{"key": "", "value": "v"}', (400, b'{"error": "Missing key or value"}')),
        ("PUT", "/api/put", '{"key": "k"}', (400, b'{"error": "Missing key or value"}')),
        ("PUT", "/api/put", '{"key": "k", "value": ""}', (500, b'{"error": "PUT operation failed"}')),
        ("DELETE", "/api/remove/a%2Fb", None, (200, success)),
        ("DELETE", "/api/remove/a%2Fb", None, (500, b'{"error": "Remove operation failed"}')),
        ("PUT", "/api/put", put, (200, success)),
        ("DELETE", "/api/remove_all", None, (200, b'{"status": "success removed 1 keys"}')),
        ("GET", "/api/put", None, (405, b"405: Method Not Allowed")),
        ("PUT", "/api/get/k", b"", (405, b"405: Method Not Allowed")),
        ("GET", "/nothing", None, (404, b"404: Not Found")),
        ("GET", "/api/get/", None, (404, b"404: Not Found")),
    ]:
        status, _, answer = fetch(
            port, method, where, body and body.encode() if isinstance(body, str) else body
        )
        assert (status, answer) == expected, f"{method} {where} {body}"
    status, kind, answer = fetch(port, "PUT", "/api/put", b"{")
    assert (status, kind) == (500, "application/json; charset=utf-8") and b"error" in answer
    assert stop(process) == 0
    assert worker.eval("master.segments()") == []


def test_rest_service_ends_at_its_time_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    path = tmp_path / "rest.json"
    path.write_text(json.dumps({**BASE, "master_server_address": address}))
    command = [sys.executable, "-m", "mooncake.mooncake_store_service", "--port", "0", "--max-wait-time", "0"]
    done = subprocess.run([*command, "--config", str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "Failed to start store service" in done.stderr
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MOONCAKE_")}
    done = subprocess.run(command, capture_output=True, text=True, env=clean)
    assert done.returncode == 1 and "Neither the environment variable" in done.stderr


def test_metadata_server_runs_as_a_program():
    process, port = start("mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", "0")
    assert fetch(port, "PUT", "/metadata?key=a", b"1")[0] == 200
    assert stop(process) == 0


# The package


@pytest.mark.parametrize("name", _absent.MODULES)
def test_absent_module_names_the_package_that_has_it(name):
    with pytest.raises(ImportError, match="mooncake-transfer-engine") as caught:
        importlib.import_module(name)
    assert "hint: " in str(caught.value)


def test_body_limit_of_the_rest_service_is_the_originals():
    assert mooncake_store_service.BODY_BYTES_MAX == 100 << 20
    assert mooncake.MooncakeDistributedStore is MooncakeDistributedStoreAsync.__mro__[1]


def test_a_client_serves_pages(worker):
    worker.run("from mooncake.store import MooncakeDistributedStore; master = Master()")
    worker.run("store, port = MooncakeDistributedStore(), free_port()")
    worker.run("first = ('localhost', 'P2PHANDSHAKE', 16 * MIB, 4 * MIB, 'tcp', '', master.address)")
    worker.run("pages = dict(enable_client_http_server=True, client_http_port=port)")
    assert worker.eval("(store.setup(*first, **pages), store.put('k', b'12345'), store.get('k'))") == (
        0,
        0,
        b"12345",
    )
    assert worker.eval("fetch(port, '/health')") == (200, '{"status":"healthy","code":0}')
    page = worker.eval("fetch(port, '/metrics')[1]")
    assert "tiffin_client_avoided_nodes 0\n" in page
    assert "mooncake_transfer_write_bytes 5\n" in page and "mooncake_transfer_read_bytes 5\n" in page
    assert worker.eval("fetch(port, '/metrics/summary')[1]").startswith("Client Metrics Summary")
    assert worker.eval("fetch(port, '/other')") == (404, "404 Not Found")
    # Another store on the same port works without pages.
    worker.run("other = MooncakeDistributedStore()")
    named = "dict(zip(('local_hostname', 'metadata_server', 'master_server_addr'), (*first[:2], first[6])))"
    assert worker.eval(f"other.setup({named} | pages)") == 0
    assert "the pages of this client are not served" in worker.tail()
    worker.run("master.kill()")
    assert worker.eval("fetch(port, '/health')") == (503, '{"status":"unhealthy","code":2}')
    assert worker.eval("(store.close(), listens(port))") == (0, False)
    assert worker.eval(f"other.setup({named} | pages | dict(client_http_port=70000))") == -600
