"""The command `mooncake_client`: a storage node for the programs of this host, with Mooncake's flags.

A program calls `setup_dummy` with the address of this daemon, and gets the address of the master. Its bytes
then go through the memory of the daemon's segment, which it maps, and not through the daemon.
"""

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tiffin._native import mooncake as _native

from mooncake import _http, _stores
from mooncake.store import MooncakeDistributedStore

DEFAULTS = {
    "enable_http_server": "false",
    "enable_offload": "false",
    "global_segment_size": "4 GB",
    "host": "0.0.0.0",
    "http_port": "9300",
    "local_buffer_size": "0",
    "master_server_address": "127.0.0.1:50051",
    "metadata_server": "http://127.0.0.1:8080/metadata",
    "port": "50052",
    "protocol": "tcp",
    "tenant_id": "default",
}

_MASTER_SECONDS_MAX = 90.0
_GREETING = "mooncake_client 1"

_log = logging.getLogger(__name__)


class NodeDaemon:
    """A store with a segment, and the pages for programs of this host and for monitoring."""

    def __init__(self, flags: Mapping[str, str]):
        self._flags = {**DEFAULTS, **flags}
        self.store = MooncakeDistributedStore()
        self.host = _http.host_or_default(_host_of(flags["host"]) if "host" in flags else None)
        self._server = _http.Server(self.host, int(self._flags["port"]), self._answer, 0)

    @property
    def ports(self) -> list[int]:
        """The port for programs of this host, and that of the pages if there are any."""
        pages = self.store._pages_port()
        return [self._server.port] + ([] if pages is None else [pages])

    def start(self, stopped: threading.Event) -> bool:
        """Join the cluster, waiting for its master, and serve. Returns `False` if that failed."""
        if not _stores.set_up(self.store, self._settings(), _MASTER_SECONDS_MAX, stopped):
            return False
        if self._has_pages() and self.store._pages_port() is None:
            # The store has said why.
            return False
        self._server.start()
        return True

    def close(self) -> None:
        """Leave the cluster: the objects of the segment are lost."""
        self._server.close()
        self.store.close()

    def _has_pages(self) -> bool:
        return self._flags["enable_http_server"] == "true"

    def _settings(self) -> dict[str, Any]:
        return {
            "local_hostname": self._flags["host"],
            "metadata_server": self._flags["metadata_server"],
            "global_segment_size": self._flags["global_segment_size"],
            "local_buffer_size": self._flags["local_buffer_size"],
            "protocol": self._flags["protocol"],
            "master_server_addr": self._flags["master_server_address"],
            "enable_ssd_offload": self._flags["enable_offload"],
            "tenant_id": self._flags["tenant_id"],
            "enable_client_http_server": self._has_pages(),
            "client_http_port": self._flags["http_port"],
        }

    def _answer(self, request: _http.Request) -> _http.Response:
        if request.path == "/standalone" and request.method == "GET":
            lines = [_GREETING, f"master {self.store._master_address()}"]
            lines += [f"tenant {self._flags['tenant_id']}", f"segment {self.store.get_hostname()}"]
            return _http.text(200, "\n".join(lines) + "\n")
        return _http.text(404, "404 Not Found")


def _host_of(text: str) -> str:
    """The host of a flag that may name a port."""
    if text.count(":") > 1:
        return text.strip("[]")
    return text.rpartition(":")[0] or text


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives. The flags are Mooncake's: see `mooncake_client --help`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    status, flags, warnings = _native.mooncake_client_flags(given)
    if status is not None:
        return int(status)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stopped = _http.stop_on_signals()
    for warning in warnings:
        _log.warning(warning)
    problem = _native.protocol_problem(flags.get("protocol", DEFAULTS["protocol"]))
    if problem is not None:
        print(f"ERROR: {problem}\n\nhint: start it with --protocol=tcp", file=sys.stderr)
        return 1
    try:
        daemon = NodeDaemon(flags)
    except OSError as error:
        print(
            f"ERROR: cannot listen: {error}\n\nhint: choose ports with --port and --http_port",
            file=sys.stderr,
        )
        return 1
    exposure = _http.exposure(daemon.host)
    if exposure:
        _log.warning(exposure)
    if not daemon.start(stopped):
        daemon.close()
        return 0 if stopped.is_set() else 1
    _log.info("mooncake_client listens on ports %s", " ".join(map(str, daemon.ports)))
    stopped.wait()
    daemon.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
