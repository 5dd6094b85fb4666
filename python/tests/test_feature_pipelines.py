"""Two producers and two consumers of a feature store, each killed in turn, over every backend.

No sample is lost, none comes again to a group after its acknowledgement, no byte is wrong, nothing is left.
"""

import json
import multiprocessing
import os
import pathlib
import subprocess
import sys

import pytest
from tiffin.features.records import to_number

import helpers
import pipeline
from feature_stores import BACKENDS, PEER

#: Mooncake's answer to a get or remove of an object whose put has not ended.
NOT_READY = -703
#: Samples between two kills.
PHASE = 16
SPAWN = multiprocessing.get_context("spawn")


class Crew:
    """Processes of one kind, restarted when they are killed."""

    def __init__(self, target, shares):
        self._target, self._shares = target, shares
        self.workers = [self._start(share) for share in shares]

    def _start(self, share):
        worker = SPAWN.Process(target=self._target, args=share, daemon=True)
        worker.start()
        return worker

    def kill(self, rank):
        """Kill a running one, and start another one in its place."""
        worker = self.workers[rank]
        assert worker.is_alive()
        worker.kill()
        worker.join()
        self.workers[rank] = self._start(self._shares[rank])

    def end(self):
        """Wait for all, none of which may have failed."""
        for worker in self.workers:
            worker.join(helpers.SECONDS_MAX)
            assert worker.exitcode == 0
        self.workers = []


@pytest.mark.parametrize("kind", BACKENDS)
def test_killed_processes_lose_and_repeat_no_sample(make, request, cluster, tmp_path, kind):
    if kind == "mooncake":
        request.getfixturevalue("plane")
    features = make(kind, stream=pipeline.STREAM, groups=[pipeline.GROUP])
    mooncake = request.getfixturevalue("mooncake") if kind == "mooncake" else None
    place = features.index if kind == "embedded" else (cluster, mooncake)
    features.index.open_stream(pipeline.STREAM, refs_high=12, refs_low=9)
    total, limit = 5 * PHASE, SPAWN.Value("i", 0)
    common = (place, features.store_id)
    producers = Crew(pipeline.produce, [(*common, range(rank, total, 2), limit) for rank in range(2)])
    consumers = Crew(pipeline.consume, [(*common, str(tmp_path / f"log{rank}")) for rank in range(2)])
    try:
        consumed = lambda: features.index.open_stream(pipeline.STREAM).consumed
        for number, (crew, rank) in enumerate(
            [(producers, 0), (consumers, 0), (producers, 1), (consumers, 1)]
        ):
            limit.value = (number + 1) * PHASE
            # Some of them are put and not pulled, some pulled and not acknowledged.
            helpers.eventually(lambda: consumed() >= limit.value - PHASE // 2)
            crew.kill(rank)
        limit.value = total
        producers.end()
        features.index.end_stream(pipeline.STREAM)
        consumers.end()
    finally:
        for worker in producers.workers + consumers.workers:
            worker.kill()
    plane = request.getfixturevalue("plane") if kind == "mooncake" else None
    check(features, tmp_path, total, plane)
    if plane is not None:
        lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
        assert not any(plane.is_exist(key) for line in lines for key in line["keys"])


def check(features, folder, total, plane):
    """The outcome of every sample, as the consumers recorded it and as the store counts it."""
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    lines.sort(key=lambda line: line["at"])
    names = {f"s{number}" for number in range(total)}
    assert not [line for line in lines if line["what"] in ("wrong", "missed")]
    assert {line["id"] for line in lines if line["what"] == "got"} == names, "a sample was lost"
    acked = set()
    for line in lines:
        assert line["what"] != "got" or line["id"] not in acked, f"{line['id']} was delivered again"
        acked |= {line["id"]} if line["what"] == "acked" else set()
    stat = features.index.open_stream(pipeline.STREAM)
    assert (stat.appended, stat.consumed, stat.refs) == (total, total, 0)
    # Leases of killed processes end when their death is known.
    helpers.eventually(
        lambda: features.gc() and len(features.index.list("")) <= len(unended(features, plane))
    )
    if plane is None or not unended(features, plane):
        helpers.eventually(lambda: features.index.wait_usage(at_least=0).used == 0)


def unended(features, plane):
    """The unfinished puts of a killed producer. Mooncake keeps their memory for ten minutes and does not
    permit their removal before, so that they count until then."""
    found = set()
    for info in features.index.list(f"{features.store_id}.life/") if plane is not None else ():
        with features.index.lease(info.key) as lease:
            told = json.loads(bytes(lease.tensors()["life"]))
        prefix = f"{features.store_id}/{told['sample_id']}/g{to_number(info.generation)}"
        if any(plane.get_size(f"{prefix}/{name}") == NOT_READY for name in told["names"]):
            found.add(info.key)
    assert len(found) <= 2, "there were two producers to be killed"
    return found


EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "hidden_states"


@pytest.mark.parametrize("ttl", ["1", "300"])
def test_example_trains_every_sample_once_with_any_lease(tmp_path, ttl):
    # The Mooncake segment of a killed producer is lost with it.
    store = ["--kill", "2"] if PEER is None else ["--store", f"mooncake://{PEER}"]
    picture = tmp_path / "picture.svg"
    command = [sys.executable, EXAMPLE, "--samples", "48", "--hidden", "64", "--ttl", ttl, "--json", *store]
    done = subprocess.run(
        [*command, "--picture", picture],
        capture_output=True,
        text=True,
        timeout=helpers.SECONDS_MAX,
        env=os.environ | {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "33554432"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["trained"], result["wrong"], result["left_bytes"]) == (48, 0, 0)
    drawn = picture.read_text()
    assert drawn.startswith("<svg") and f"<title>48 samples, lease of {ttl} s</title>" in drawn
    assert drawn.count(">samples trained<") == drawn.count(">MiB in flight<") == 2, "an axis and a legend"
    assert ">0<" in drawn and ">20<" in drawn and ">seconds<" in drawn, "round labels from zero"


def test_example_names_the_supported_stores():
    done = subprocess.run([sys.executable, EXAMPLE, "--store", "x"], capture_output=True, text=True)
    assert done.returncode == 1 and "hint: use tiffin" in done.stderr
