"""A stand-in for etcd: enough of its JSON gateway for an election among masters.

No clock takes part: a lease is as good as new until a test calls `silence`. `make test-ha` runs masters on
real etcd.
"""

import base64
import http.server
import json
import threading


class StandIn:
    """The gateway on a free port of loopback, as a context manager."""

    def __enter__(self):
        self.lock = threading.Lock()
        self.revision, self.granted = 0, 0
        #: Value, revision and lease of each key.
        self.keys = {}
        #: The length of each lease in seconds, and whether its owner is silent.
        self.leases = {}
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def leader(self, cluster):
        """The address of the leader, or `None`."""
        with self.lock:
            found = self.keys.get(f"/tiffin/{cluster}/leader")
        return json.loads(base64.b64decode(found[0]))["addresses"][0] if found else None

    def silence(self, cluster):
        """The leader does not prolong its lease any more, and that was long ago."""
        with self.lock:
            lease = self.keys[f"/tiffin/{cluster}/leader"][2]
            self.leases[lease] = (self.leases[lease][0], True)

    def _handler(self):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stand_in.lock:
                    answer = json.dumps(stand_in._answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        return Handler

    def _answer(self, path, body):
        lease = body.get("ID", "")
        length, is_silent = self.leases.get(lease, (None, False))
        match path:
            case "/v3/kv/txn":
                return self._txn(body)
            case "/v3/lease/grant":
                self.granted += 1
                self.leases[str(self.granted)] = (int(body["TTL"]), False)
                return {"ID": str(self.granted), "TTL": body["TTL"]}
            case "/v3/lease/keepalive":
                return {"result": {"ID": lease} | ({"TTL": str(length)} if length else {})}
            case "/v3/lease/timetolive" if length:
                left = 0 if is_silent else length - 1
                return {"ID": lease, "TTL": str(left), "grantedTTL": str(length)}
            case "/v3/lease/timetolive":
                return {"ID": lease, "TTL": "-1"}
            case "/v3/lease/revoke":
                self.leases.pop(lease, None)
                self.keys = {name: key for name, key in self.keys.items() if key[2] != lease}
                return {}
        raise AssertionError(path)

    def _txn(self, body):
        revision_of = {name: str(revision) for name, (_, revision, _) in self.keys.items()}
        held = all(revision_of.get(text(it["key"]), "0") == it["mod_revision"] for it in body["compare"])
        ops = body["success" if held else "failure"]
        self.revision += any("request_range" not in op for op in ops)
        responses = [self._apply(op) for op in ops]
        return {"header": {"revision": str(self.revision)}, "succeeded": held, "responses": responses}

    def _apply(self, op):
        if put := op.get("request_put"):
            self.keys[text(put["key"])] = (put["value"], self.revision, put["lease"])
            return {"response_put": {}}
        if delete := op.get("request_delete_range"):
            start, end = text(delete["key"]), text(delete["range_end"])
            self.keys = {name: key for name, key in self.keys.items() if not start <= name < end}
            return {"response_delete_range": {}}
        name = op["request_range"]["key"]
        found = self.keys.get(text(name))
        kvs = []
        if found:
            value, revision, lease = found
            kvs = [{"key": name, "value": value, "mod_revision": str(revision), "lease": lease}]
        return {"response_range": {"kvs": kvs}}


def text(encoded):
    return base64.b64decode(encoded).decode()
