"""The counters of reads in the master's metrics."""

import json
import urllib.request

import tiffin

import helpers


def counters(address):
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_reads_from_cached_locations_are_counted():
    command = ("up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--memory", "64MiB")
    with helpers.server(*command) as process:
        told = json.loads(process.stdout.readline())
        with tiffin.connect(told["master"]) as store:
            store.put({"a": b"1", "b": b"22"})
            # The client has cached their locations, and does not ask the master.
            for _ in range(5):
                assert store.get("a") == b"1"
            for _ in range(3):
                assert store.get(["a", "b"]) == [b"1", b"22"]
        single, batch = "master_get_replica_list", "master_batch_get_replica_list"

        def seen():
            now = counters(told["http"])
            return {name: int(now[name]) for name in now if name.startswith((single, batch))}

        def is_all_counted():
            # A batch counts once, whether or not it asks the master for some of its objects.
            now = seen()
            objects = now[f"{single}_requests_total"] + now[f"{batch}_items_total"]
            return objects >= 11 and now[f"{single}_requests_total"] >= 5

        helpers.eventually(is_all_counted)
        assert seen()[f"{single}_failures_total"] == 0
