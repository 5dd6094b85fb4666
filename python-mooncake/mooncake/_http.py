"""A small HTTP server for the services of this package, on the standard library.

A connection is *pending* until the head of a request has arrived and has shown the token, and again after
the response.

**Invariants:** at most `CONNECTIONS_MAX` connections are open. One more closes the pending one that has
waited longest, or is closed itself if none is pending: clients that send nothing, or no token, block no
others. A head must arrive within `HEAD_SECONDS_MAX`. The service limits the size of a body, which is read
only after its head was accepted. A connection without traffic for `IDLE_SECONDS_MAX` is closed. With a token
set, requests without it are refused. Without one, requests that a browser sends for a page of another site
are refused.
"""

import contextlib
import hmac
import ipaddress
import json
import logging
import signal
import socket
import socketserver
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from tiffin import _settings

CONNECTIONS_MAX = 256
HEAD_SECONDS_MAX = 10
IDLE_SECONDS_MAX = 30
# The number of bytes of an unwanted body that are read, so that its sender gets the answer and not a broken
# connection.
UNWANTED_BYTES_MAX = 64 << 20

_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """A client's request."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes


class Response(NamedTuple):
    """The answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def text(status: int, body: str) -> Response:
    """A text answer."""
    return Response(status, body.encode())


def as_json(status: int, value: Any) -> Response:
    """A JSON answer."""
    return Response(status, json.dumps(value).encode(), "application/json; charset=utf-8")


class Server:
    """Answers requests with `handle`, on threads, until it is closed. It listens from its creation."""

    def __init__(self, host: str, port: int, handle: Callable[[Request], Response], body_bytes_max: int):
        self._server = _Server((host, port), handle, body_bytes_max, token())
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The actual port, if 0 was requested."""
        return int(self._server.server_address[1])

    def start(self) -> threading.Thread:
        """Serve on a thread of its own."""
        thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        thread.start()
        self._thread = thread
        return thread

    def close(self) -> None:
        """Stop listening. Requests in progress are answered."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread = None
        self._server.server_close()


def token() -> str:
    """The token that clients must send, from TIFFIN_TOKEN or TIFFIN_TOKEN_FILE; empty for none."""
    return _settings.token(None) or ""


def host_or_default(given: str | None) -> str:
    """The address to listen on: all interfaces if it is not given, but loopback without a token."""
    if given is not None:
        return given
    return "0.0.0.0" if token() else "127.0.0.1"


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set from now on, instead of ending the process."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def exposure(host: str) -> str | None:
    """A warning if other machines reach this address without a token."""
    if token() or _is_loopback(host):
        return None
    return (
        f"every client that reaches {host} can use this service: set TIFFIN_TOKEN and send it as "
        "`Authorization: Bearer <token>`, or listen with --host 127.0.0.1"
    )


def _is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


class _Waiting(NamedTuple):
    """A pending connection."""

    since: float
    has_begun: bool


class _Connections:
    """The open connections, and which of them are pending, in the order in which they became so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Waiting | None] = {}

    def enter(self, connection: socket.socket) -> bool:
        """Add a pending connection. `False` if there is no place for it."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next((it for it, waiting in self._open.items() if waiting is not None), None)
                if oldest is None:
                    return False
                self._cut(oldest)
            self._open[connection] = _Waiting(time.monotonic(), False)
            return True

    def wait(self, connection: socket.socket, has_begun: bool) -> None:
        """It waits for a request, or for the rest of one."""
        with self._lock:
            # One that was cut stays so.
            if self._open.pop(connection, ...) is not ...:
                self._open[connection] = _Waiting(time.monotonic(), has_begun)

    def serve(self, connection: socket.socket) -> None:
        """Its request is accepted."""
        with self._lock:
            if connection in self._open:
                self._open[connection] = None

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)

    def cut_late(self) -> None:
        """Close those whose head has not arrived in time."""
        with self._lock:
            latest = time.monotonic() - HEAD_SECONDS_MAX
            for it, waiting in list(self._open.items()):
                if waiting is not None and waiting.has_begun and waiting.since < latest:
                    self._cut(it)

    def _cut(self, connection: socket.socket) -> None:
        del self._open[connection]
        # Its thread notices that, and closes it.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        handle: Callable[[Request], Response],
        body_bytes_max: int,
        expected_token: str,
    ):
        self.handle = handle
        self.body_bytes_max = body_bytes_max
        self.expected_token = expected_token
        self.connections = _Connections()
        self.is_local = _is_loopback(address[0])
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # The name of the host is not needed, and looking it up can take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.enter(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave(request)

    def service_actions(self) -> None:
        self.connections.cut_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS_MAX
    has_unread_body = False
    server: _Server

    def handle_one_request(self) -> None:
        self.server.connections.wait(self.connection, has_begun=False)
        try:
            self.rfile.peek(1)  # type: ignore[attr-defined]
        except TimeoutError:
            self.close_connection = True
            return
        self.server.connections.wait(self.connection, has_begun=True)
        super().handle_one_request()

    def answer(self) -> None:
        response = self.check() or self.make_response()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        if self.has_unread_body:
            self.discard_body()

    def discard_body(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        left = UNWANTED_BYTES_MAX
        while left > 0 and (read := len(self.rfile.read1(1 << 16))):
            left -= read

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = answer

    def check(self) -> Response | None:
        """The refusal of a request whose head is not acceptable. Its body is not read."""
        refusal = self.refusal()
        if refusal is not None:
            # Without a body the connection can serve another request.
            self.has_unread_body = self.headers.get("Content-Length", "0") != "0" or self.is_chunked()
            self.close_connection = self.close_connection or self.has_unread_body
        return refusal

    def refusal(self) -> Response | None:
        if not self.shows_token():
            return text(401, "the token is missing or wrong\n\nhint: send `Authorization: Bearer <token>`\n")
        if not self.server.expected_token and self.is_foreign():
            hint = "use the address of the server itself, or set TIFFIN_TOKEN"
            return text(403, f"the request comes from a page of another site\n\nhint: {hint}\n")
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()) or self.is_chunked():
            return text(411, "the length of the body is missing\n\nhint: send Content-Length\n")
        most = self.server.body_bytes_max
        if len(length) > len(str(most)) + 1 or int(length) > most:
            return text(413, f"the body has more than {most} bytes\n\nhint: send less at once\n")
        return None

    def is_chunked(self) -> bool:
        return "Transfer-Encoding" in self.headers

    def is_foreign(self) -> bool:
        """Whether a browser sends it for a page of another site, or under a name that is not this host's."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return self.server.is_local and name != "" and not _is_loopback(name)

    def make_response(self) -> Response:
        self.server.connections.serve(self.connection)
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the connection ended within a body")
        path, _, query = self.path.partition("?")
        try:
            pairs = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=64))
            return self.server.handle(Request(self.command, urllib.parse.unquote(path), pairs, body))
        except Exception as error:
            _log.warning("%s %s failed: %s", self.command, path, error)
            return as_json(500, {"error": str(error)})

    def shows_token(self) -> bool:
        expected = self.server.expected_token
        scheme, _, shown = self.headers.get("Authorization", "").partition(" ")
        return not expected or (
            scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), expected.encode())
        )

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
