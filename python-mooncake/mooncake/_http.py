"""A small HTTP server for the services of this package, on the standard library.

**Invariants:** at most `CONNECTIONS_MAX` connections are open, and one more is closed at once. The service
limits the size of a body. A connection without traffic for `IDLE_SECONDS_MAX` is closed. With a token set,
requests without it are refused.
"""

import hmac
import json
import logging
import os
import signal
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

CONNECTIONS_MAX = 256
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
    """The token that clients must send; empty for none."""
    return os.environ.get("TIFFIN_TOKEN", "")


def stop_on_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set from now on, instead of ending the process."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def exposure(host: str) -> str | None:
    """A warning if other machines reach this address without a token."""
    if token() or host in ("127.0.0.1", "::1", "localhost"):
        return None
    return (
        f"every client that reaches {host} can use this service: set TIFFIN_TOKEN and send it as "
        "`Authorization: Bearer <token>`, or listen with --host 127.0.0.1"
    )


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
        self.places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # The name of the host is not needed, and looking it up can take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS_MAX
    has_unread_body = False
    server: _Server

    def answer(self) -> None:
        response = self.make_response()
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

    def make_response(self) -> Response:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self.close_connection = self.has_unread_body = True
            return text(411, "the length of the body is missing\n\nhint: send Content-Length\n")
        if int(length) > self.server.body_bytes_max:
            self.close_connection = self.has_unread_body = True
            most = self.server.body_bytes_max
            return text(413, f"the body has more than {most} bytes\n\nhint: send less at once\n")
        body = self.rfile.read(int(length))
        if not self.shows_token():
            return text(401, "the token is missing or wrong\n\nhint: send `Authorization: Bearer <token>`\n")
        path, _, query = self.path.partition("?")
        pairs = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=64))
        try:
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
