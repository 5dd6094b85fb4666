"""Drain jobs of the master's pages: an operator empties segments before their processes stop."""

import json

import pytest

DRAIN = """
import json
from mooncake.store import ReplicateConfig
def ask(path, method='GET', **body):
    status, text = fetch(master.metrics, path, method, json.dumps(body) if body else None)
    return status, json.loads(text)
def drain(*segments, **more):
    return ask('/api/v1/drain_jobs', 'POST', segments=list(segments), **more)
def query(job):
    return ask(f'/api/v1/drain_jobs/query?job_id={job}')[1]
def cancel(job):
    return ask(f'/api/v1/drain_jobs/cancel?job_id={job}', 'POST')
def reaches(job, status):
    return until(lambda: query(job)['status_name'] == status) and query(job)
def state(segment):
    return ask(f'/api/v1/segments/status?segment={segment}')[1]['status_name']
"""


@pytest.fixture
def two(worker):
    """A client without a segment, and two processes with one."""
    worker.run("master = Master()")
    worker.run("a, b = Other(master.address, 64 * MIB), Other(master.address, 64 * MIB)")
    assert worker.eval("connect(master.address, 0)") == 0
    worker.run("here, there = a('store.get_hostname()'), b('store.get_hostname()')")
    worker.run(DRAIN)
    return worker


def test_a_drain_job_moves_every_object(two):
    two.run("on = config(preferred_segment=here)")
    two.run("pinned = config(preferred_segment=here, with_hard_pin=True)")
    two.run("values = {f'k{n}': bytes([n]) * (n * 1000 + 1) for n in range(100)}")
    assert two.eval("count(store.put(k, v, pinned if n % 3 == 0 else on) for n, (k, v) in "
                    "enumerate(values.items()))") == {0: 100}  # fmt: skip
    # One more copy, on both segments.
    assert two.eval("store.put('both', b'value', config(replica_num=2))") == 0
    status, made = two.eval("drain(here, max_concurrency=8)")
    assert (status, made["success"], made["status"], made["error_code"]) == (200, True, "CREATED", 0)
    two.run(f"job = {made['job_id']!r}")
    two.run("during = [store.get(key) == value for key, value in values.items()]")
    assert two.eval("all(during)")
    done = two.eval("reaches(job, 'SUCCEEDED')")
    assert done["message"] == "Drain job finished successfully"
    assert (done["type_name"], done["status"], done["segments"]) == ("DRAIN", 3, [two.eval("here")])
    counts = [done[f"{name}_units"] for name in ("succeeded", "failed", "blocked", "active")]
    assert counts == [101, 0, 0, 0]
    assert done["migrated_bytes"] == two.eval("sum(map(len, values.values()))") + 5
    assert done["created_at_ms_epoch"] <= done["last_updated_at_ms_epoch"]
    assert two.eval("(state(here), state(there), master.segments() == [there])") == ("DRAINED", "OK", True)
    assert two.eval("all(store.get(key) == value for key, value in values.items())")
    assert two.eval("store.get('both')") == b"value"
    # It can be ended now, and nothing is lost.
    assert two.eval("a('store.close()')") == 0
    assert two.eval("all(store.get(key) == value for key, value in values.items())")
    # The pins came along: pinned objects stay when the memory is needed.
    two.run("big = bytes(8 * MIB)")
    two.run("codes = [store.put(f'big{n}', big) for n in range(20)]")
    assert two.eval("count(store.is_exist(f'k{n}') for n in range(0, 100, 3))") == {1: 34}


def test_new_objects_go_elsewhere_until_the_job_is_cancelled(two):
    """The other segment has no memory for the object, so the job waits."""
    two.run("small = Other(master.address, 16 * MIB)")
    two.run("target = small('store.get_hostname()')")
    assert two.eval("store.put('k', bytes(20 * MIB), config(preferred_segment=here))") == 0
    two.run("job = drain(here, target_segments=[target])[1]['job_id']")
    assert two.eval("until(lambda: query(job)['blocked_units'] == 1)")
    shown = two.eval("query(job)")
    assert (shown["status_name"], shown["message"]) == ("RUNNING", "Drain job running")
    assert two.eval("state(here)") == "DRAINING"
    assert two.eval("store.put('new', b'v', config(preferred_segment=here))") == 0
    assert two.eval("until(lambda: master.used(there) > 0)")
    assert two.eval("drain(here)[1]['error_code']") == -1010
    status, ended = two.eval("cancel(job)")
    assert (status, ended["status"]) == (200, "CANCELED")
    assert two.eval("until(lambda: state(here) == 'OK')")
    assert two.eval("(query(job)['status_name'], cancel(job)[0])") == ("CANCELED", 409)
    assert two.eval("store.get_size('k')") == 20 << 20
    assert two.eval("store.put('again', b'v', config(preferred_segment=here))") == 0
    assert two.eval("store.get_replica_desc('again')[0].get_memory_descriptor().buffer_descriptor"
                    ".transport_endpoint == here")  # fmt: skip


def test_an_unconsumed_sample_stays_until_it_is_consumed(worker):
    worker.run("master = Master()")
    worker.run("a = Other(master.address, 64 * MIB); here = a('store.get_hostname()')")
    worker.run(DRAIN)
    worker.run("import tiffin; native = tiffin.connect(master.address)")
    worker.run("sample = native.put_sample('sample', {'x': b'unread'})")
    worker.run("native.put('owned', b'value', pin=True, owner='trainer')")
    worker.run("b = Other(master.address, 64 * MIB)")
    worker.run("job = drain(here)[1]['job_id']")
    assert worker.eval("until(lambda: query(job)['blocked_units'] == 2)")
    assert worker.eval("(native.get('owned'), state(here))") == (b"value", "DRAINING")
    worker.run("native.ack(sample)")
    assert worker.eval("until(lambda: query(job)['blocked_units'] == 1)")
    worker.run("native.unpin('owned', owner='trainer')")
    assert worker.eval("reaches(job, 'SUCCEEDED')")["succeeded_units"] == 1
    assert worker.eval("native.get('owned')") == b"value"


def test_a_drain_job_outlives_the_master(two):
    two.run("[store.put(f'k{n}', bytes(1000), config(preferred_segment=here)) for n in range(20)]")
    assert two.eval("store.put('k', bytes(20 * MIB), config(preferred_segment=here))") == 0
    two.run("small = Other(master.address, 16 * MIB); target = small('store.get_hostname()')")
    two.run("job = drain(here, target_segments=[target])[1]['job_id']")
    assert two.eval("until(lambda: query(job)['succeeded_units'] == 20)")
    two.run("master.kill(); master.start()")
    # Also the counts come back, from the process that drains.
    two.run("known = lambda: ask(f'/api/v1/drain_jobs/query?job_id={job}')[0] == 200")
    assert two.eval("until(lambda: until(known) and query(job)['succeeded_units'] == 20)")
    assert two.eval("(cancel(job)[0], until(lambda: state(here) == 'OK'))") == (200, True)


def test_mounted_segments_drain_with_their_store(two):
    """All segments of a store have its name."""
    assert two.eval("a('store.allocate_and_mount_segment(64 * MIB)')")["ret"] == 0
    two.run("[store.put(f'k{n}', bytes(MIB), config(preferred_segment=here)) for n in range(40)]")
    two.run("used = [it['allocator_used_bytes'] for it in ask('/get_segments_detail')[1]['segments']]")
    assert sorted(it > 0 for it in two.eval("used")) == [False, True, True], "both have objects"
    two.run("job = drain(here, target_segments=[there], max_concurrency=1)[1]['job_id']")
    assert two.eval("reaches(job, 'SUCCEEDED')")["succeeded_units"] == 40


REFUSED = [
    ("fetch(master.metrics, '/api/v1/drain_jobs', 'POST', '')", 400, -600, "Invalid JSON body"),
    ("fetch(master.metrics, '/api/v1/drain_jobs', 'POST', '{')", 400, -600, "Invalid JSON body"),
    ("fetch(master.metrics, '/api/v1/drain_jobs', 'POST', '{\"segments\": 1}')", 400, -600, "Invalid JSON"),
    ("drain()", 400, -600, "INVALID_PARAMS"),
    ("drain(here, here)", 400, -600, "INVALID_PARAMS"),
    ("drain(here, max_concurrency=0)", 400, -600, "INVALID_PARAMS"),
    ("drain(here, target_segments=[here])", 400, -600, "INVALID_PARAMS"),
    ("drain('nowhere:1')", 404, -101, "SEGMENT_NOT_FOUND"),
    ("drain(here, target_segments=['nowhere:1'])", 404, -101, "SEGMENT_NOT_FOUND"),
    ("ask('/api/v1/drain_jobs/query')", 400, -600, "Missing or invalid job_id"),
    ("ask('/api/v1/drain_jobs/query?job_id=x')", 400, -600, "Missing or invalid job_id"),
    ("ask('/api/v1/drain_jobs/query?job_id=1-2')", 404, -1402, "JOB_NOT_FOUND"),
    ("cancel('')", 400, -600, "Missing or invalid job_id"),
    ("cancel('1-2')", 404, -1402, "JOB_NOT_FOUND"),
]


def test_invalid_requests_for_drain_jobs_are_refused(two):
    for request, status, code, message in REFUSED:
        answered, text = two.eval(request)
        said = json.loads(text) if isinstance(text, str) else text
        assert (answered, said["success"], said["error_code"]) == (status, False, code), request
        assert said["error_message"].startswith(message), request
    assert two.eval("(state(here), state(there))") == ("OK", "OK")


def test_nodes_of_the_command_line_drain_too(two):
    two.run(
        """
command = [str(pathlib.Path(sys.executable).with_name('tiffin')), 'node', '--name', 'n1', '--memory', '64MiB']
command += ['--master', master.address, '--listen', '127.0.0.1:0', '--pool', 'off']
node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent)
"""
    )
    assert two.eval("until(lambda: 'n1' in master.segments())")
    two.run("on = config(preferred_segment='n1')")
    assert two.eval("[store.put(f'k{n}', b'value', on) for n in range(5)]") == [0] * 5
    two.run("job = drain('n1')[1]['job_id']")
    assert two.eval("reaches(job, 'SUCCEEDED')")["succeeded_units"] == 5
    two.run("node.terminate()")
    assert two.eval("node.wait(START_SECONDS_MAX)") == 0
    assert two.eval("[store.get(f'k{n}') for n in range(5)]") == [b"value"] * 5
