"""Mooncake's REST service: a store with a segment, and its operations over HTTP.

Run it with `python -m mooncake.mooncake_store_service --config FILE --port 8080` or `mc_store_rest_server`.
"""

import argparse
import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mooncake import _http, _stores
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

BODY_BYTES_MAX = 100 << 20
GRACE_SECONDS_MAX = 3600

_SHM_FOLDER = "/dev/shm"
_BAD_GRACE = (
    f"Invalid grace_period_seconds, must be a non-negative integer no greater than {GRACE_SECONDS_MAX}"
)

_log = logging.getLogger(__name__)

Json = dict[str, Any]


class _Refused(Exception):
    """An error response."""

    def __init__(self, status: int, error: str, **more: Any):
        super().__init__(error)
        self.response = _http.as_json(status, {"error": error, **more})


class StoreApi:
    """The operations of a store, by method and path. Any object with the methods of a store works."""

    def __init__(self, store: Any):
        self._store = store
        self._decode_ids: list[str] = []
        self._reconfiguring = threading.Lock()
        self._exact: dict[str, tuple[str, Callable[[bytes], Json]]] = {
            "/api/put": ("PUT", self._put),
            "/api/remove_all": ("DELETE", self._remove_all),
            "/api/mount": ("POST", self._mount),
            "/api/unmount": ("POST", self._unmount),
            "/api/mount_shm": ("POST", self._mount_shm),
            "/api/unmount_shm": ("POST", self._unmount_shm),
            "/api/unmount_local_disk": ("POST", self._unmount_local_disk),
            "/api/reconfigure": ("POST", self._reconfigure),
        }
        self._by_key: dict[str, tuple[str, Callable[[str], _http.Response]]] = {
            "/api/get/": ("GET", self._get),
            "/api/exist/": ("GET", self._exist),
            "/api/remove/": ("DELETE", self._remove),
        }

    def answer(self, request: _http.Request) -> _http.Response:
        """Answer a request."""
        try:
            if request.path in self._exact:
                method, operation = self._exact[request.path]
                if request.method != method:
                    return _http.text(405, "405: Method Not Allowed")
                return _http.as_json(200, operation(request.body))
            for prefix, (method, lookup) in self._by_key.items():
                key = request.path.removeprefix(prefix)
                if key and key != request.path:
                    if request.method != method:
                        return _http.text(405, "405: Method Not Allowed")
                    return lookup(key)
            return _http.text(404, "404: Not Found")
        except _Refused as refused:
            return refused.response

    def _put(self, body: bytes) -> Json:
        given = json.loads(body)
        key, value = given.get("key"), given.get("value")
        if not key or value is None:
            raise _Refused(400, "Missing key or value")
        if self._store.put(key, value.encode()) != 0:
            raise _Refused(500, "PUT operation failed")
        return {"status": "success"}

    def _exists(self, key: str) -> bool:
        found = self._store.is_exist(key)
        if found < 0:
            raise _Refused(500, "Exist check failed")
        return bool(found)

    def _get(self, key: str) -> _http.Response:
        if not self._exists(key):
            raise _Refused(404, "Key not found")
        value = self._store.get(key)
        if not value:
            raise _Refused(500, "GET operation failed")
        return _http.Response(200, value, "application/octet-stream")

    def _exist(self, key: str) -> _http.Response:
        return _http.as_json(200, {"exists": self._exists(key)})

    def _remove(self, key: str) -> _http.Response:
        if self._store.remove(key) != 0:
            raise _Refused(500, "Remove operation failed")
        return _http.as_json(200, {"status": "success"})

    def _remove_all(self, _body: bytes) -> Json:
        count = self._store.remove_all()
        if count < 0:
            raise _Refused(500, "RemoveAll operation failed")
        return {"status": f"success removed {count} keys"}

    def _mount(self, body: bytes) -> Json:
        given = json.loads(body)
        size = given.get("size")
        if not _is_count(size) or size == 0:
            raise _Refused(400, "Invalid size, must be a positive integer")
        made = self._store.allocate_and_mount_segment(size, *_where(given))
        if made["ret"] != 0:
            raise _Refused(500, f"Allocate and mount failed, ret={made['ret']}")
        return {
            "status": "success",
            "segment_ids": made["segment_ids"],
            "allocated_size": made["allocated_size"],
        }

    def _unmount(self, body: bytes) -> Json:
        given = json.loads(body)
        code = self._store.unmount_and_free_segment(_segment_ids(given), _grace(given))
        if code != 0:
            raise _Refused(500, f"Unmount and free failed, ret={code}")
        return {"status": "success"}

    def _mount_shm(self, body: bytes) -> Json:
        given = json.loads(body)
        name, size = given.get("name"), given.get("size")
        name = name.removeprefix("/") if isinstance(name, str) else ""
        if not name or "/" in name or name in (".", "..") or not _is_count(size) or size == 0:
            raise _Refused(400, "Missing or invalid name or size")
        made = self._mount_file(f"{_SHM_FOLDER}/{name}", given)
        if made["ret"] != 0:
            raise _Refused(500, f"Mount failed, ret={made['ret']}")
        return {"status": "success", "segment_ids": made["segment_ids"]}

    def _unmount_shm(self, body: bytes) -> Json:
        given = json.loads(body)
        grace = _grace(given)
        failed = [it for it in _segment_ids(given) if self._store.unmount_segment([it], grace) != 0]
        if failed:
            raise _Refused(500, "Unmount failed for one or more segments", failed_segment_ids=failed)
        return {"status": "success"}

    def _unmount_local_disk(self, body: bytes) -> Json:
        try:
            given = json.loads(body) if body else {}
        except ValueError:
            raise _Refused(400, "Malformed JSON body") from None
        if not isinstance(given, dict):
            raise _Refused(400, "Request body must be a JSON object")
        code = self._store.unmount_local_disk_segment(_grace(given))
        if code != 0:
            raise _Refused(500, f"Unmount local disk failed, ret={code}")
        return {"status": "success"}

    def _reconfigure(self, body: bytes) -> Json:
        given = json.loads(body)
        mode = str(given.get("mode", "")).lower()
        with self._reconfiguring:
            if mode == "decode":
                return self._become_decode(given)
            if mode == "prefill":
                return self._become_prefill()
        raise _Refused(400, "Invalid mode. Use 'decode' or 'prefill'")

    def _become_decode(self, given: Json) -> Json:
        path, size = given.get("path"), given.get("size")
        if not path or not size:
            raise _Refused(400, "Missing path or size for decode mode")
        made = self._mount_file(path, given)
        if made["ret"] != 0:
            what = "keeping previous decode segments" if self._decode_ids else "rolled back to prefill"
            mode = "decode" if self._decode_ids else "prefill"
            raise _Refused(500, f"Mount failed, ret={made['ret']}; {what}", mode=mode)
        ids = list(made["segment_ids"])
        # A segment that could not be unmounted is retried with the next change.
        left = [it for it in self._decode_ids if self._store.unmount_segment([it]) != 0]
        self._decode_ids = ids + left
        return {"status": "success", "mode": "decode", "segment_ids": ids}

    def _become_prefill(self) -> Json:
        codes = {it: self._store.unmount_segment([it]) for it in self._decode_ids}
        self._decode_ids = [it for it, code in codes.items() if code != 0]
        if self._decode_ids:
            raise _Refused(500, f"Unmount failed, ret={codes[self._decode_ids[0]]}")
        return {"status": "success", "mode": "prefill"}

    def _mount_file(self, path: str, given: Json) -> Any:
        return self._store.mount_segment(path, given["size"], given.get("offset", 0), *_where(given))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _where(given: Json) -> tuple[str, str]:
    return given.get("protocol", "tcp"), given.get("location", "")


def _segment_ids(given: Json) -> list[str]:
    ids = given.get("segment_ids")
    if not ids:
        raise _Refused(400, "Missing segment_ids")
    return [ids] if isinstance(ids, str) else list(ids)


def _grace(given: Json) -> int:
    seconds = given.get("grace_period_seconds", 0)
    if not _is_count(seconds) or seconds > GRACE_SECONDS_MAX:
        raise _Refused(400, _BAD_GRACE)
    return int(seconds)


class MooncakeStoreService:
    """A store and the server of its operations."""

    def __init__(self, config: MooncakeConfig, host: str | None = None, port: int = 8080):
        self.config = config
        self.store = MooncakeDistributedStore()
        self._address = (_http.host_or_default(host), port)
        self._server: _http.Server | None = None

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._address[0]

    @property
    def port(self) -> int:
        """The actual port, if 0 was requested."""
        return self._address[1] if self._server is None else self._server.port

    def start(self, max_wait_seconds: float, stopped: threading.Event) -> bool:
        """Set up the store, retrying until the time limit, and serve. Returns `False` if it was stopped."""
        self._server = _http.Server(*self._address, StoreApi(self.store).answer, BODY_BYTES_MAX)
        if _stores.set_up(self.store, self.config.to_setup(), max_wait_seconds, stopped):
            self._server.start()
            return True
        if not stopped.is_set():
            raise RuntimeError("Failed to start store service")
        return False

    def close(self) -> None:
        """Stop serving, and close the store."""
        if self._server is not None:
            self._server.close()
        self.store.close()


def _override(config: MooncakeConfig, definitions: Sequence[str]) -> None:
    for definition in definitions:
        name, equals, value = definition.partition("=")
        if not equals:
            _log.warning("Ignoring invalid CLI config: %s", definition)
        elif hasattr(config, name):
            setattr(config, name, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(prog="mc_store_rest_server", description="A store over HTTP.")
    parser.add_argument("--config", help="the settings, a JSON file; default: the environment")
    parser.add_argument(
        "-D", "--define", action="append", default=[], metavar="KEY=VALUE", help="replace a setting"
    )
    parser.add_argument("--host", help="the address to listen on; 0.0.0.0, or 127.0.0.1 without a token")
    parser.add_argument("--port", type=int, default=8080, help="the port; 8080")
    parser.add_argument("--max-wait-time", type=float, default=60, help="seconds to wait for the master; 60")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stopped = _http.stop_on_signals()
    try:
        config = (
            MooncakeConfig.from_file(options.config) if options.config else MooncakeConfig.load_from_env()
        )
        _override(config, options.define)
        service = MooncakeStoreService(config, options.host, options.port)
        if not service.start(options.max_wait_time, stopped):
            return 0
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    warning = _http.exposure(service.host)
    if warning:
        _log.warning(warning)
    _log.info("store service listens on http://%s:%s", service.host, service.port)
    stopped.wait()
    service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
