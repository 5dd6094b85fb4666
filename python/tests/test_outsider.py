"""What an outsider can do to everything that we open: it is listed by the operating system, not by us.

A listener that no test knows fails `test_every_listener_is_known`; what a known one speaks is tried with all
that follows. Each test ends with the check that every process lives and that its other clients go on.
"""

import collections
import contextlib
import mmap
import os
import random
import re
import resource
import selectors
import socket
import struct
import time

import pytest
import tiffin

import helpers
import sites
import wire

IDLE_CONNECTIONS = 5000
# More than wait anywhere for a valid first message.
PENDING_MAX = {"control": 1024, "data": 256, "attach": 256, "http": 256, "zmq": 256}
NOBODY = 65534
MIB = 1 << 20


@pytest.fixture(scope="module")
def site():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with helpers.disk_folder() as disks, contextlib.ExitStack() as stack:
        made = sites.Site(stack.enter_context(sites.shown_folder()), disks)
        stack.callback(made.end)
        made.start_all()
        yield made


@pytest.fixture(autouse=True)
def others_go_on(site):
    yield
    site.check()


def control_of(process):
    """Its address for clients: the control port of its master."""
    host, port = process.found[1].rsplit(":", 1)
    return wire.Endpoint(host, int(port))


def test_every_listener_is_known(site):
    for process in site.processes:
        unknown = [it for it, protocol in process.endpoints.items() if protocol is None]
        assert not unknown, f"{process.name} opens {unknown}, and nothing here tests that"
        assert all(it.is_unix or it.host == "127.0.0.1" for it in process.endpoints), process.endpoints
        assert sorted(process.endpoints) == wire.listeners(process.process.pid), "it opened more later"
    assert all(it.is_unix for it in site.embedded.endpoints), "a port accepts every user of this machine"
    found = {it.name: dict(collections.Counter(it.endpoints.values())) for it in site.processes}
    assert found == {
        "up": {"control": 5, "data": 1, "attach": 1, "http": 2},
        "master": {"control": 2, "http": 2},
        "node": {"control": 3, "data": 1, "attach": 1},
        "mooncake": {"control": 2, "http": 2, "zmq": 1},
        "client": {"control": 3, "data": 1, "attach": 1, "http": 2},
        "rest": {"control": 3, "data": 1, "attach": 1, "http": 1},
        "metadata": {"http": 1},
        "embedded": {"control": 2, "data": 1, "attach": 1},
    }


# Credentials


def refusal(process, endpoint, protocol, token, pages_max=1):
    """The text with which it refuses the token; `None` if it does not. A page is requested again if its
    connection is closed without an answer, up to so many times."""
    if protocol == "control":
        try:
            with wire.Control(endpoint, token=token):
                return None
        except wire.Refusal as refused:
            assert refused.reason == wire.UNAUTHENTICATED
            return refused.message
    if protocol == "http":
        pages = (wire.page(endpoint, headers=wire.bearer(token)) for _ in range(pages_max))
        status, head, body = next((page for page in pages if page[0]), (0, "no answer", b""))
        assert status in (401, 403, 404), head
        return body.decode() if status == 401 else None
    ask = wire.data if protocol == "data" else wire.attach
    connection, *_, reason = ask(endpoint, token=token, segment=process.segment)
    connection.close()
    return reason or None


def twisted(token):
    """Texts that are almost the token."""
    yield from (token[:-1], token + "0", token.upper(), token + "\0", "\0" + token, token + "\n", f" {token}")
    yield from (
        f"{token} {token}",
        token.replace("_", "\N{FULLWIDTH LOW LINE}"),
        "\N{ZERO WIDTH SPACE}" + token,
    )
    yield from ("*", "blake3:" + "0" * 64, token[len("tiffin_") :])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("none", "token is missing"),
        ("wrong", "token is (missing or )?wrong"),
        ("revoked", "token is (missing or )?wrong"),
        ("expired", "token (has expired|is missing or wrong)"),
    ],
)
def test_token_is_required_everywhere(site, shown, expected):
    token = {"none": "", "wrong": "tiffin_" + "0" * 64}.get(shown) or site.tokens.get(shown, "")
    for process, endpoint, protocol in site.guarded():
        found = refusal(process, endpoint, protocol, token)
        assert found and re.search(expected, found), f"{process.name} {endpoint} {protocol}: {found}"
        assert not any(it in found for it in site.tokens.values())


def test_almost_the_token_is_not_the_token(site):
    for process, endpoint, protocol in site.guarded():
        assert refusal(process, endpoint, protocol, site.tokens["node"]) is None, (process.name, endpoint)
        for token in twisted(site.tokens["node"]):
            # HTTP drops the space around a header's value, and has no other characters than these.
            is_sent = protocol != "http" or (token.isascii() and token.isprintable() and token[0] != " ")
            if is_sent:
                found = refusal(process, endpoint, protocol, token)
                assert found, f"{process.name} {endpoint} {protocol} accepts {token!r}"


def test_bytes_that_are_no_text_are_no_token(site):
    for process, endpoint, protocol in site.guarded("control", "data", "attach"):
        shown = b"\xff\xfe\xfd"
        request = {
            "control": wire.frame(wire.HELLO, wire.fields({1: 1, 3: shown, 4: "default", 6: wire.Fixed(1)})),
            "data": struct.pack("<4sIQQII", b"TFD1", 6, 1, process.segment, len(shown), 0) + shown,
            "attach": struct.pack("<4sIQQII", b"TFA1", 3, 1, process.segment, len(shown), 0) + shown,
        }[protocol]
        with endpoint.connect() as connection:
            connection.sendall(request)
            assert re.search(b"not (text|UTF-8)", wire.rest(connection)), (process.name, protocol)


def test_pages_take_a_token_in_the_header_only(site):
    token = site.tokens["node"]
    for process, endpoint, _ in site.guarded("http"):
        for path in (f"/nothing?token={token}", f"/nothing?access_token={token}", f"/nothing#{token}"):
            assert wire.page(endpoint, path)[0] == 401, process.name
        for header in (
            f"Authorization: Basic {token}",
            f"X-Token: {token}",
            f"Cookie: tiffin_session={token}",
        ):
            assert wire.page(endpoint, headers=[header])[0] == 401, process.name
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, head, _ = wire.page(endpoint, method=method)
            assert status == 401, (process.name, method, head)
            assert "access-control" not in head.lower()


# Rights and namespaces

KEY = {1: b"k"}
REQUESTS = [
    (wire.RESOLVE, KEY, "read"),
    (wire.EXISTS, KEY, "read"),
    (wire.LIST, {1: {1: b""}}, "read"),
    (wire.PREFETCH, KEY, "read"),
    (wire.WHY, KEY, "read"),
    (wire.AWAIT, {}, "read"),
    (wire.RESERVE, {}, "write"),
    (wire.PUBLISH, {}, "write"),
    (wire.DELETE, KEY, "write"),
    (wire.DELETE_MATCHING, {1: {2: b"no such prefix"}}, "write"),
    (wire.PIN, KEY, "write"),
    (wire.DROP_PINS, {1: "nobody"}, "write"),
    (wire.LEASE, {}, "write"),
    (wire.ACK, {}, "write"),
    (wire.OPEN_STREAM, {1: "s"}, "write"),
    (wire.END_STREAM, {1: "s"}, "write"),
    (wire.PULL, {1: "s"}, "write"),
    (wire.SET_POLICY, {4: 1, 5: 1, 6: 1}, "admin"),
    (wire.FORGET_NODE, {1: "nothing"}, "admin"),
    (wire.ADMIT_CLUSTER, {1: wire.Fixed(1)}, "admin"),
]
AT_NODES = [(wire.COMMIT, {}, "write"), (wire.STORE, {}, "write"), (wire.BEGIN_VIEWS, {}, "read")]
RIGHTS = {"reader": {"read"}, "writer": {"write"}, "admin": {"admin"}, "all": {"read", "write"}}


def answer(control, kind, values):
    try:
        control.ask(kind, values)
    except wire.Refusal as refused:
        return refused.message if refused.reason == wire.FORBIDDEN else None
    return None


def test_requests_need_their_right(site):
    masters = [control_of(site.up), control_of(site.master), wire.Endpoint("127.0.0.1", site.mooncake_port)]
    nodes = [(it, at) for it, at, _ in site.guarded("control") if at not in masters and it.segment]
    for number, (holder, rights) in enumerate(RIGHTS.items()):
        token = site.tokens[holder]
        for master in masters:
            with wire.Control(master, token=token, client=1000 + number) as control:
                for kind, values, right in REQUESTS:
                    found = answer(control, kind, values)
                    assert (found is None) == (right in rights), f"{holder} asks {kind}: {found}"
                    assert found is None or found == f"the token lacks the right: {right}"
        for process, endpoint in nodes:
            if endpoint.host.endswith(f"{process.segment:016x}"):
                with wire.Control(endpoint, token=token, client=2000 + number) as control:
                    for kind, values, right in AT_NODES:
                        found = answer(control, kind, values)
                        assert right in rights or found == f"the token lacks the right: {right}"


WHOLE_STORE_PAGES = [
    *("/metrics", "/metrics/summary", "/get_all_segments", "/get_segments_detail", "/metadata?key=k"),
    *("/query_segment?segment=s", "/api/tiffin/snapshot", "/api/tiffin/events", "/api/tiffin/live"),
    *("/ready", "/api/v1/segments/status?segment=s", "/api/v1/drain_jobs/query?job_id=1"),
]


@pytest.mark.parametrize("holder", ["a", "b", "writer"])
def test_pages_about_the_whole_store_need_a_token_for_it(site, holder):
    """Tokens for some namespaces, and one that may not read."""
    refused = 0
    for process, endpoint, _ in site.guarded("http"):
        # The pages of these take the token of the process only.
        denied = 401 if process in (site.client, site.rest, site.metadata) else 403
        for path in WHOLE_STORE_PAGES:
            status, *_ = wire.page(endpoint, path, headers=wire.bearer(site.tokens[holder]))
            assert status in (denied, 404), (process.name, path, status)
            refused += status == 403
    assert refused > len(WHOLE_STORE_PAGES)


def test_node_needs_its_right_and_a_client_is_none(site):
    for master in (control_of(site.up), control_of(site.master)):
        for holder in ("all", "admin", "a"):
            for role in (wire.NODE, wire.LEDGER):
                for home in (wire.Fixed(5), wire.Fixed(site.node.segment), wire.Fixed(site.up.segment)):
                    with pytest.raises(wire.Refusal, match="lacks the right: node"):
                        wire.Control(master, token=site.tokens[holder], role=role, f8=home)
        # A client that has the right, but has not said that it is a node.
        with (
            wire.Control(master, token=site.tokens["node"], client=3) as control,
            pytest.raises(wire.Refusal),
        ):
            control.ask(wire.REGISTER, {1: {1: wire.Fixed(5)}})


@pytest.mark.parametrize(
    "namespace", ["team-b", "team-", "team-a ", "TEAM-A", "team-a\0", "team-a/", "*", "team-*"]
)
def test_token_is_for_its_namespaces(site, namespace):
    for _, endpoint, _ in site.guarded("control"):
        with pytest.raises(wire.Refusal, match="not for this namespace"):
            wire.Control(endpoint, token=site.tokens["a"], namespace=namespace, client=4)


def test_location_is_worthless_in_another_namespace(site):
    value = os.urandom(5000)
    for process, address in ((site.up, site.up.found[1]), (site.node, site.master.found[1])):
        with tiffin.connect(address, token=site.tokens["a"], namespace="team-a", timeout=60) as store:
            store.put("secret", value)
        with wire.Control(
            control_of(site.up if process is site.up else site.master),
            token=site.tokens["a"],
            namespace="team-a",
            client=5,
        ) as control:
            _, found = control.ask(wire.RESOLVE, {1: b"secret", 4: 1})
        place = wire.parse(wire.parse(wire.parse(found[1][0])[1][0])[3][0])
        location = (place.get(2, [0])[0], place[3][0])
        for number, (holder, expected) in enumerate(
            [("a", value), ("b", None), ("writer", None), ("all", value)]
        ):
            for endpoint in process.of("data"):
                greeting = {"token": site.tokens[holder], "client": 60 + number, "segment": process.segment}
                connection, reason = wire.data(endpoint, **greeting)
                with connection:
                    assert reason == ""
                    # What is committed is written by no client, whatever it may do.
                    assert not wire.write(connection, location, bytes(len(value))), (process.name, holder)
                    assert wire.read(connection, location, len(value)) == expected, (process.name, holder)


def test_answers_name_no_other_namespace(site):
    for master in (site.up, site.master):
        with tiffin.connect(master.found[1], token=site.tokens["a"], namespace="team-a", timeout=60) as store:
            store.put("hidden", b"1", pin=True, owner="owner-of-a")
        with wire.Control(
            control_of(master), token=site.tokens["b"], namespace="team-b", client=6
        ) as control:
            for kind, values in [
                (wire.STAT, {}),
                (wire.WHY, {1: b"hidden"}),
                (wire.LIST, {1: {1: b""}, 3: 100}),
                (wire.LIST, {1: {3: ".*"}, 3: 100}),
                (wire.RESOLVE, {1: b"hidden", 4: 1}),
                (wire.EXISTS, {1: b"hidden"}),
                (wire.DELETE, {1: b"hidden", 2: 1}),
                (wire.DELETE_MATCHING, {1: {1: b""}, 2: 1}),
                (wire.DROP_PINS, {1: "owner-of-a"}),
            ]:
                said = str(control.ask(kind, values))
                assert not re.search("team-a|owner-of-a|neighbour|default", said), (kind, said)
        with tiffin.connect(master.found[1], token=site.tokens["a"], namespace="team-a", timeout=60) as store:
            assert store.get("hidden") == b"1"
            assert [it.key for it in store.scan(pinned_by="owner-of-a")] == ["hidden"]


def test_memory_is_mapped_only_with_a_token_for_all_of_it(site):
    for process, endpoint, _ in site.guarded("attach"):
        for number, holder in enumerate(["a", "b", "reader", "writer", "admin"]):
            connection, descriptors, reason = wire.attach(
                endpoint, token=site.tokens[holder], client=70 + number, segment=process.segment
            )
            connection.close()
            assert descriptors == [] and "namespaces" in reason, (process.name, holder, reason)


def test_client_ids_belong_to_their_token(site):
    for process, endpoint, _ in site.guarded("control"):
        with wire.Control(endpoint, token=site.tokens["all"], client=80):
            with pytest.raises(wire.Refusal, match="another token"):
                wire.Control(endpoint, token=site.tokens["reader"], client=80)
            with pytest.raises(wire.Refusal, match="another token"):
                wire.Control(endpoint, token=site.tokens["reader"], client=80, role=wire.LANE, f10=1)
        for other in process.of("data", "attach"):
            ask = wire.data if process.endpoints[other] == "data" else wire.attach
            taken, *_, reason = ask(other, token=site.tokens["all"], client=81, segment=process.segment)
            assert reason == ""
            with taken:
                thief, *_, reason = ask(other, token=site.tokens["node"], client=81, segment=process.segment)
                thief.close()
            assert "another token" in reason, (process.name, other)


@pytest.mark.parametrize("client", [0, 2**64 - 1])
def test_ids_of_the_servers_themselves_are_no_clients(site, client):
    """The node reserves the memory of promotions under the last one."""
    for process, endpoint, protocol in site.endpoints("control", "data", "attach"):
        token = "" if process is site.embedded else site.tokens["all"]
        if protocol == "control":
            with pytest.raises(wire.Refusal, match="zero or reserved"):
                wire.Control(endpoint, token=token, client=client)
            continue
        ask = wire.data if protocol == "data" else wire.attach
        connection, *_, reason = ask(endpoint, token=token, client=client, segment=process.segment)
        connection.close()
        assert "zero or reserved" in reason, (process.name, protocol)


def test_revoked_token_loses_what_it_has_open(site):
    open_ones, token = [], site.tokens["leaver"]
    for process, endpoint, protocol in site.guarded("control", "data"):
        if protocol == "control":
            connection = wire.Control(endpoint, token=token, client=90).socket
        else:
            connection, reason = wire.data(endpoint, token=token, client=90, segment=process.segment)
            assert reason == ""
        open_ones.append((process, protocol, connection))
    pages = [site.up, site.master, site.mooncake]
    for process in pages:
        for endpoint in process.of("http"):
            connection = endpoint.connect()
            shown = "\r\n".join(wire.bearer(token))
            connection.sendall(
                f"GET /api/tiffin/live HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n\r\n".encode()
            )
            if b" 200 " in connection.recv(4096):
                open_ones.append((process, "http", connection))
    assert sum(protocol == "http" for _, protocol, _ in open_ones) == len(pages)
    site.token(["revoke", "leaver"])
    for process, protocol, connection in open_ones:
        with connection:
            assert wire.is_closed(connection), (process.name, protocol)


# Bytes that make no sense


def greeting(site, process, protocol):
    """A first message that is complete and accepted."""
    token = site.tokens["node"]
    return {
        "control": wire.hello(token=token, client=100),
        "data": wire.data_hello(token=token, client=100, segment=process.segment),
        "attach": wire.attach_request(token=token, client=100, segment=process.segment, wanted=1),
        "http": f"GET /nothing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode(),
        "zmq": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48),
    }[protocol]


def noise(seed):
    """Messages that are none."""
    chance = random.Random(seed)
    for length in (1, 23, 24, 31, 32, 33, 300, 20_000):
        yield chance.randbytes(length)
    many = b"".join(b"X-%d: y\r\n" % it for it in range(1000))
    request = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n"
    yield from (
        b"\0" * 100,
        b"\xff" * 100_000,
        # A hello of TLS, and the preface of HTTP/2.
        bytes.fromhex("16030100a5010000a10303") + chance.randbytes(160),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        request + many + b"\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n",
        request + b"Content-Length: -1\r\n\r\n",
        request + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        request + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        request + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
    )
    for kind in (0, wire.HELLO, wire.STAT, wire.WELCOME, 0xFFFF):
        yield wire.frame(kind, chance.randbytes(50))
    yield from (
        wire.frame(wire.HELLO, wire.fields({1: 1, 3: "x" * (17 << 10)})),
        wire.frame(wire.HELLO, b"", length=0xFFFFFFFF),
        wire.frame(wire.HELLO, wire.fields({1: 2, 4: "default"})),
        wire.frame(wire.HELLO, wire.fields({1: 1, 4: "n" * 5000})),
        wire.frame(wire.HELLO, flags=1),
        wire.frame(wire.HELLO, flags=0x80),
        wire.frame(wire.HELLO, magic=b"TFN9"),
        struct.pack("<4sIQQII", b"TFD1", 0, 1, 0, 0, 0),
        struct.pack("<4sIQQII", b"TFD1", 6, 1, 0, 0xFFFFFFFF, 0),
        struct.pack("<4sIQQII", b"TFA1", 99, 1, 0, 0xFFFFFFFF, 7),
    )


def test_nonsense_ends_one_connection(site):
    for number, (process, endpoint, protocol) in enumerate(site.endpoints()):
        for message in noise(number):
            for start in (b"", greeting(site, process, protocol)) if process is not site.embedded else (b"",):
                with endpoint.connect() as connection:
                    # It may be closed before everything is sent.
                    with contextlib.suppress(OSError):
                        connection.sendall(start + message)
                        connection.shutdown(socket.SHUT_WR)
                    answered = wire.rest(connection)
                    assert not any(it.encode() in answered for it in site.tokens.values())
        assert process.process.poll() is None, f"{process.name} {endpoint}"


def test_half_and_slow_messages_end(site):
    """A connection with half a message, or with one byte at a time, is closed; all of them at once."""
    waiting = selectors.DefaultSelector()
    for process, endpoint, protocol in site.endpoints():
        message = {
            "control": wire.hello(token="x" * 64),
            "data": wire.data_hello(token="x" * 64),
            "attach": wire.attach_request(token="x" * 64),
            "http": b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"y" * 4000,
            "zmq": b"\xff" + bytes(8) + b"\x7f",
        }[protocol]
        for kind in ("half", "slow"):
            connection = endpoint.connect()
            if kind == "half":
                connection.sendall(message[: len(message) // 2])
            slow = iter(message[:-1]) if kind == "slow" else iter(b"")
            waiting.register(connection, selectors.EVENT_READ, (process.name, protocol, kind, slow))
    deadline = time.monotonic() + 2 * wire.SECONDS_MAX
    while waiting.get_map():
        left = [key.data[:3] for key in waiting.get_map().values()]
        assert time.monotonic() < deadline, f"still open: {left}"
        for key, _ in waiting.select(0.2):
            with contextlib.suppress(ConnectionError):
                if key.fileobj.recv(1 << 16):
                    continue
            waiting.unregister(key.fileobj)
            key.fileobj.close()
        for key in list(waiting.get_map().values()):
            with contextlib.suppress(ConnectionError):
                key.fileobj.sendall(bytes(byte for byte in [next(key.data[3], None)] if byte is not None))


def test_idle_connections_keep_nobody_out(site):
    """Thousands to one listener of each kind; to the others one more than may wait there."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    flooded, most = set(), IDLE_CONNECTIONS if files_max == resource.RLIM_INFINITY else files_max - 512
    assert most > max(PENDING_MAX.values()), "the limit on open files is too low for this test"
    for process, endpoint, protocol in site.endpoints():
        kind = (protocol, endpoint.is_unix, protocol == "http" and process in (site.rest, site.metadata))
        count = PENDING_MAX[protocol] + 1 if kind in flooded else min(IDLE_CONNECTIONS, most)
        flooded.add(kind)
        with contextlib.ExitStack() as held:
            for _ in range(count):
                held.enter_context(endpoint.begin())
            if protocol != "zmq":
                token = site.tokens["node"] if process is not site.embedded else ""
                # The kernel completes some of the connections late: they are newer than this one, and close
                # it if its request has not been read by then.
                refused = refusal(process, endpoint, protocol, token, pages_max=IDLE_CONNECTIONS)
                assert refused is None, (process.name, endpoint, protocol)
        assert process.process.poll() is None, process.name


# Other users of this machine


def as_nobody(work):
    """The result of `work()` in a process of another user."""

    def drop_and_work():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return work()

    return helpers.in_child(drop_and_work)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_user_gets_no_memory(site):
    token = site.tokens["node"]

    def attach_everywhere():
        found = []
        for process, endpoint, _ in site.endpoints("attach"):
            shown = "" if process is site.embedded else token
            for wanted in (0, 1):
                request = {"token": shown, "client": 110, "segment": process.segment, "wanted": wanted}
                _, descriptors, reason = wire.attach(endpoint, **request)
                found.append((process.name, descriptors, reason))
        return found

    found = as_nobody(attach_everywhere)
    assert len(found) == 2 * 5
    for name, descriptors, reason in found:
        assert descriptors == [] and "is for user 0 only" in reason, name


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_user_needs_a_token_on_unix_sockets(site):
    def greet_everywhere():
        found = []
        for process, endpoint, _ in site.endpoints("control"):
            if endpoint.is_unix:
                try:
                    wire.Control(endpoint, client=111)
                    found.append((process.name, "welcome"))
                except wire.Refusal as refused:
                    found.append((process.name, refused.message))
        return found

    found = as_nobody(greet_everywhere)
    assert {name for name, _ in found} >= {"up", "master", "node", "mooncake", "client", "rest", "embedded"}
    own = "this socket accepts only the user that started the server"
    for name, said in found:
        assert said == (own if name == "embedded" else "the token is missing"), name


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_user_gets_no_bytes_of_an_embedded_store(site):
    """Its objects on a disk are read through its data socket, by its own user."""

    def ask_everywhere():
        found = []
        for endpoint in site.embedded.of("data"):
            connection, reason = wire.data(endpoint, client=112, segment=site.embedded.segment)
            connection.close()
            found.append(reason)
        return found

    assert ask_everywhere() == [""]
    assert as_nobody(ask_everywhere) == ["this socket accepts only the user that started the server"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_user_reads_no_file_of_ours(site):
    """Our files have the usual umask, in folders that every user may enter."""
    folders = [site.folder, site.pool, site.disks]
    files = [str(it) for folder in folders for it in folder.rglob("*") if it.suffix not in (".log", ".json")]
    kinds = ("access.toml", "node.token", "state", "lock", "data", "control", "records.tiffin")
    assert all(any(it.endswith(f"/{kind}") for it in files) for kind in kinds), files
    descriptors = [f"/proc/{it.process.pid}/{what}" for it in site.processes for what in ("environ", "maps")]
    descriptors += [f"/proc/{it.process.pid}/fd" for it in site.processes]

    def read_everything():
        found = []
        for path in files + descriptors:
            with contextlib.suppress(OSError):
                content = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
                found.append((path, bool(content)))
        return found

    found = [path for path, has_content in as_nobody(read_everything) if has_content]
    assert found == [], "\n".join(found)


# A client that maps memory


def test_mapped_memory_cannot_be_resized_and_control_is_read_only(site):
    for process, endpoint, _ in site.endpoints("attach"):
        token = "" if process is site.embedded else site.tokens["all"]
        _, descriptors, reason = wire.attach(endpoint, token=token, client=120, segment=process.segment)
        assert reason == "" and len(descriptors) == 3, (process.name, reason)
        control = descriptors[0]
        written = [control]
        if process is not site.node:
            # A pool is a file of the user, whom its mode does not stop; other memory is sealed.
            written.append(os.open(f"/proc/self/fd/{control}", os.O_RDWR))
            descriptors.append(written[-1])
        for it in written:
            with pytest.raises(OSError):
                os.pwrite(it, b"x", 0)
            with pytest.raises(OSError):
                mmap.mmap(it, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        for it in descriptors if process is not site.node else [control]:
            with pytest.raises(OSError):
                os.ftruncate(it, 0)
        for it in descriptors:
            os.close(it)


# What is shown


def test_no_secret_is_shown(site):
    secrets = [it.encode() for it in site.tokens.values()]
    for process in site.processes:
        log = process.log.read_bytes()
        assert log and not any(it in log for it in secrets), f"a token is in the log of {process.name}"
        command = open(f"/proc/{process.process.pid}/cmdline", "rb").read()
        assert not any(it in command for it in secrets), process.name
    for _, endpoint, _ in site.endpoints("http"):
        for path in ("/", "/health", "/metrics", "/login", "/api/tiffin/snapshot"):
            for token in ("", site.tokens["all"]):
                shown = wire.page(endpoint, path, headers=wire.bearer(token))
                assert not any(it in str(shown).encode() for it in secrets)
    assert not any(it in site.access.read_bytes() for it in secrets)
