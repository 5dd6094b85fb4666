"""Limits, each at its value and one beyond, and arguments that no caller means."""

import pytest

MIB = 1 << 20


@pytest.fixture
def store(worker):
    """A process with a master and a store."""
    worker.run("from mooncake.store import *")
    worker.run("master = Master()")
    assert worker.eval("connect(master.address, segment=32 * MIB, buffer=8 * MIB)") == 0
    return worker


def test_key_has_at_most_a_mebibyte(store):
    store.run("memory = Memory(16); last, beyond = 'k' * MIB, 'k' * (MIB + 1)")
    assert store.eval("store.put(last, b'v'), store.get(last), store.is_exist(last)") == (0, b"v", 1)
    assert store.eval("store.put(beyond, b'v'), store.upsert(beyond, b'v')") == (-600, -600)
    assert store.eval("store.put_batch(['a', beyond], [b'v', b'v'])") == -600
    # A batch fails only where a key does.
    assert store.eval("store.get('a'), store.put_batch(['c', '', 'd'], [b'1', b'2', b'3'])") == (b"v", -600)
    assert store.eval("store.get('c'), store.get('d')") == (b"1", b"3")
    assert store.eval("store.put_batch(['e', 'f'], [b'1', b'']), store.get('e')") == (-600, b"")
    assert store.eval("store.batch_put_from(['b', beyond], [memory.address] * 2, [4] * 2)") == [0, -600]
    assert store.eval("store.get(beyond), store.get_buffer(beyond), store.get_size(beyond)") == (
        b"",
        None,
        -704,
    )
    assert store.eval("store.batch_is_exist([last, beyond, 'b'])") == [1, 0, 1]
    assert store.eval("store.batch_remove([beyond, last], True)") == [-704, 0]


def test_copy_needs_a_target(store):
    assert store.eval("store.create_copy_task('missing', [])") == ((0, 0), -600)
    assert store.eval("store.create_copy_task('missing', ['a'])")[1] == -704


def test_sizes_in_a_dict_are_limited(store):
    store.run("""
def size(**sizes):
    store.close()
    return store.setup(dict(local_hostname='localhost', metadata_server='P2PHANDSHAKE', protocol='tcp',
        master_server_addr=master.address, **dict(dict(global_segment_size=0, local_buffer_size=0), **sizes)))
""")
    assert store.eval("size(local_buffer_size=1024), size(local_buffer_size=1023)") == (0, -600)
    assert store.eval("size(local_buffer_size=1 << 40), size(local_buffer_size=(1 << 40) + 1)") == (0, -600)
    assert store.eval("size(global_segment_size=MIB), size(global_segment_size=MIB - 1)") == (0, -600)
    assert store.eval("size(global_segment_size=1 << 64), size(global_segment_size=-1)") == (-600, -600)


def test_soft_pin_lasts_at_most_a_day(store):
    store.run("pin = lambda ms: config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=ms)")
    day = 86_400_000
    assert store.eval(f"store.put('k', b'v', pin({day})), store.put('l', b'v', pin({day} + 1))") == (0, -600)
    assert store.eval("store.put('l', b'v', pin((1 << 64) - 1)), store.is_exist('l')") == (-600, 0)


def test_sum_of_refused_sizes_may_be_of_any_size(store):
    store.run("memory = Memory(64); pair = [[memory.address] * 2]; store.put('k', b'value')")
    for size in ((1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        sizes = f"[[{size}] * 2]"
        assert store.eval(f"store.batch_get_into_multi_buffers(['k'], pair, {sizes})") == [-600]
        assert store.eval(f"store.batch_put_from_multi_buffers(['n'], pair, {sizes})") == [-600]
    assert store.eval("store.batch_get_into_multi_buffers(['k'], pair, [[2, 3]])") == [5]
    assert store.eval("store.batch_get_into_multi_buffers(['k'], pair, [[3, 3]])") == [-800]


def test_lack_of_memory_is_no_crash(store):
    """A value that is read has no memory. Afterwards the store works."""
    store.run("""
import resource
store.close(); connect(master.address, segment=300 * MIB, buffer=256 * MIB)
store.put('large', bytes(200 * MIB)), store.put('small', b'v')
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, resource.RLIM_INFINITY))
""")
    for call in ("len(store.get('large'))", "len(store.get_batch(['small', 'large'])[1])"):
        answer = store.ask(eval=call)
        assert answer.get("raises") == "MemoryError" or answer == {"value": "0"}, answer
    assert store.eval("store.get_buffer('large'), store.get('small')") == (None, b"v")
    store.run("resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))")
    assert store.eval("len(store.get('large')), store.put('n', b'v')") == (200 * MIB, 0)


@pytest.mark.parametrize(
    "name", ["TIFFIN_TOKEN", "TIFFIN_TOKEN_FILE", "TIFFIN_PUT_WAIT", "MC_RPC_TIMEOUT_MS"]
)
def test_variable_that_is_not_text_fails_setup(store, name):
    store.run("store.close()")
    store.run(f"os.environb[b'{name}'] = b'\\xff'")
    assert store.eval("connect(master.address, segment=0)") == -600
    assert f"{name}: the value is not valid UTF-8" in store.tail()
    store.run(f"del os.environ['{name}']")
    assert store.eval("connect(master.address, segment=0), store.put('k', b'v')") == (0, -200)


def test_time_limit_of_a_call_may_be_of_any_length(store):
    store.run("os.environ['MC_RPC_TIMEOUT_MS'] = os.environ['MOONCAKE_SSD_GET_WAIT_MS'] = str((1 << 64) - 1)")
    store.run("store.close()")
    assert store.eval("connect(master.address), store.put('k', b'v'), store.get('k')") == (0, 0, b"v")


@pytest.mark.parametrize(
    "call",
    [
        "store.remove_by_regex({0})",
        "store.batch_replica_clear(['k'], {0})",
        "store.create_copy_task('k', [{0}])",
        "store.create_move_task('k', 'a', {0})",
        "store.unmount_and_free_segment([{0}])",
        "store.mount_segment({0}, 4096)",
        "store.setup_dummy(0, 0, {0})",
        "config(preferred_segment={0})",
        "config(group_ids=[{0}])",
        "store.put({0}, b'v')",
    ],
)
def test_text_that_is_not_unicode_is_a_type_error(store, call):
    for text in (r"'\udcff'", r"b'\xff'"):
        # A key may be any bytes.
        if (call, text[0]) != ("store.put({0}, b'v')", "b"):
            assert store.ask(eval=call.format(text)).get("raises") == "TypeError", (call, text)
    assert store.eval("store.put('alive', b'v')") == 0


def test_text_may_be_given_as_bytes(store):
    """As with the original."""
    store.run("store.put('abc', b'v'); store.put('xyz', b'v')")
    assert store.eval("store.remove_by_regex(b'^a'), store.is_exist('abc'), store.is_exist('xyz')") == (
        1,
        0,
        1,
    )
    assert store.eval("config(preferred_segment=b'there').preferred_segment") == "there"


def test_key_may_be_any_bytes(store):
    store.run(r"key = b'\xff\xfe\x00'")
    assert store.eval("store.put(key, b'v'), store.get(key), store.is_exist(key)") == (0, b"v", 1)
    assert store.eval("list(store.batch_get_replica_desc([key])) == [key]") is True
    assert store.eval("store.batch_replica_clear([key]) == [key], store.is_exist(key)") == (True, 0)


def test_setups_at_once_leave_one_segment(store):
    """Several threads set up one store object. The last one counts, and the others leave no segment."""
    store.run("""
codes = []
def set_up():
    codes.append(store.setup('localhost', 'P2PHANDSHAKE', 16 * MIB, MIB, 'tcp', '', master.address))
threads = [threading.Thread(target=set_up) for _ in range(6)]
for it in threads: it.start()
for it in threads: it.join()
""")
    assert store.eval("codes") == [0] * 6
    assert store.eval("until(lambda: master.segments() == [store.get_hostname()])") is True
    assert store.eval("store.put('k', b'v'), store.get('k'), store.close()") == (0, b"v", 0)
    assert store.eval("until(lambda: master.segments() == [])") is True


def test_full_local_buffer_does_not_flood_the_log(store):
    store.run("store.put('k', bytes(5 * MIB)); held = store.get_buffer('k')")
    assert store.eval("[store.get_buffer('k') for _ in range(1000)] == [None] * 1000") is True
    lines = [line for line in store.tail().splitlines() if "the local buffer" in line]
    assert 1 <= len(lines) <= 10, len(lines)
    assert store.eval("store.get('k') == bytes(held)") is True


def test_value_without_dimensions_is_stored_whole(store):
    store.run("import ctypes; number = ctypes.c_uint32(0x04030201)")
    assert store.eval("store.put('k', number), store.upsert('l', memoryview(number))") == (0, 0)
    assert store.eval("store.get('k'), store.get('l')") == (b"\1\2\3\4", b"\1\2\3\4")
    assert store.ask(eval="store.put_parts('p', number)")["text"] == "parts must be 1-D bytes-like"


def test_array_of_numpy_without_dimensions_is_stored_whole(store):
    pytest.importorskip("numpy")
    assert store.eval("store.put('k', __import__('numpy').int16(5)), store.get('k')") == (0, b"\5\0")


def test_more_copies_than_the_maximum_are_the_maximum(store):
    for count in (16, 17, (1 << 64) - 1):
        assert store.eval(f"store.put('k{count}', b'v', config(replica_num={count}))") == 0
        assert store.eval(f"store.get('k{count}')") == b"v"


def test_ports_are_tried_as_often_as_the_environment_says(store):
    """The only port of the range is taken."""
    store.run("store.close(); taken = socket.create_server(('127.0.0.1', 0))")
    store.run("port = str(taken.getsockname()[1])")
    store.run("os.environ.update(MC_STORE_CLIENT_MIN_PORT=port, MC_STORE_CLIENT_MAX_PORT=port)")
    store.run("os.environ['MC_STORE_CLIENT_SETUP_RETRIES'] = '1'")
    assert store.eval("connect(master.address, hostname='127.0.0.1')") == -1
    store.run("os.environ['MC_STORE_CLIENT_SETUP_RETRIES'] = '4294967295'")
    assert store.eval("connect(master.address, hostname='127.0.0.1')") == -1
    store.run("taken.close()")
    assert store.eval(
        "connect(master.address, hostname='127.0.0.1'), store.get_hostname()[-len(port):] == port"
    ) == (
        0,
        True,
    )
