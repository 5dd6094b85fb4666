"""Mooncake's metadata server: a key-value endpoint `/metadata` in memory.

Our own clients store nothing there, and only check that it answers. Run it with
`python -m mooncake.http_metadata_server --port 8080` or `mooncake_http_metadata_server`.
"""

import argparse
import logging
import sys
import threading
from collections.abc import Sequence

from mooncake import _http

ENTRIES_MAX = 1 << 16
KEY_BYTES_MAX = 4 << 10
VALUE_BYTES_MAX = 1 << 20
TOTAL_BYTES_MAX = 256 << 20

_log = logging.getLogger(__name__)


class KVPoll:
    """The states that `KVBootstrapServer.poll` returns."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer:
    """The server. It listens from its creation, and answers after `run`."""

    def __init__(self, port: int, host: str | None = None):
        self.host = host = _http.host_or_default(host)
        self._entries: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._server = _http.Server(host, port, self._answer, VALUE_BYTES_MAX)
        self.port = self._server.port
        self._thread: threading.Thread | None = None

    def run(self) -> threading.Thread:
        """Serve on a thread that ends with the process."""
        if self._thread is None:
            self._thread = self._server.start()
        return self._thread

    def close(self) -> None:
        """Stop."""
        self._server.close()

    def poll(self) -> int:
        """`KVPoll.Success` while it serves, `KVPoll.Bootstrapping` before, and `KVPoll.Failed` after."""
        if self._thread is None:
            return KVPoll.Bootstrapping
        return KVPoll.Success if self._thread.is_alive() else KVPoll.Failed

    def _answer(self, request: _http.Request) -> _http.Response:
        if request.path != "/metadata":
            return _http.text(404, "404: Not Found")
        key = request.query.get("key", "")
        if request.method not in ("GET", "PUT", "DELETE"):
            return _http.text(405, "Method not allowed")
        if not key.strip():
            return _http.text(400, "metadata key is required")
        with self._lock:
            if request.method == "PUT":
                return self._put(key, request.body)
            value = self._entries.get(key)
            if value is None:
                return _http.text(404, "metadata not found")
            if request.method == "GET":
                return _http.Response(200, value, "application/json")
            del self._entries[key]
            self._bytes -= len(key.encode()) + len(value)
            return _http.text(200, "metadata deleted")

    def _put(self, key: str, value: bytes) -> _http.Response:
        key_bytes = len(key.encode())
        old = self._entries.get(key)
        if key_bytes > KEY_BYTES_MAX:
            return _http.text(400, f"a key must have at most {KEY_BYTES_MAX} bytes")
        if "rpc_meta" in key and old is not None:
            # Two clients must not have the same name.
            return _http.text(400, "Duplicate rpc_meta key not allowed")
        total = self._bytes + len(value) + (key_bytes if old is None else -len(old))
        if total > TOTAL_BYTES_MAX or (old is None and len(self._entries) >= ENTRIES_MAX):
            return _http.text(507, "the metadata limit is reached")
        self._entries[key] = value
        self._bytes = total
        return _http.text(200, "metadata updated")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(
        prog="mooncake_http_metadata_server", description="A metadata server for Mooncake's clients."
    )
    parser.add_argument("--port", type=int, default=8080, help="the port; 8080")
    parser.add_argument("--host", help="the address to listen on; 0.0.0.0, or 127.0.0.1 without a token")
    parser.add_argument("--log-level", default="INFO", help="the minimum level that is logged; INFO")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    stopped = _http.stop_on_signals()
    try:
        server = KVBootstrapServer(options.port, options.host)
    except OSError as error:
        host = _http.host_or_default(options.host)
        print(f"error: cannot listen on {host}:{options.port}: {error}", file=sys.stderr)
        return 1
    warning = _http.exposure(server.host)
    if warning:
        _log.warning(warning)
    server.run()
    _log.info("metadata server listens on http://%s:%s/metadata", server.host, server.port)
    stopped.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
