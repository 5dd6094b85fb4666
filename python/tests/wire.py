"""The bytes on our sockets, written after docs/protocol.md and docs/format.md and not after our own code.

It speaks as badly as a test wants: wrong tokens, invented ids, half a frame.
"""

import contextlib
import pathlib
import socket
import struct
import time
from typing import NamedTuple

import xxhash

SECONDS_MAX = 60
HELLO, RESERVE, RESOLVE, DELETE, DELETE_MATCHING, LIST, STAT = range(1, 8)
REGISTER, COMMIT, BEGIN_VIEWS, PIN, SET_POLICY, AWAIT, WHY, LEASE = 9, 16, 18, 25, 27, 28, 29, 30
ACK, EXISTS, PREFETCH, PUBLISH, OPEN_STREAM, END_STREAM, PULL = 32, 33, 37, 41, 42, 43, 44
STORE, FORGET_NODE, ADMIT_CLUSTER, DROP_PINS = 45, 47, 52, 26
WELCOME, REFUSED, DONE = 257, 258, 259
CLIENT, NODE, LEDGER, LANE = range(4)
UNAUTHENTICATED, FORBIDDEN = 1, 10
WRITE, READ, TRAILER_BYTES = 1, 2, 32


class Endpoint(NamedTuple):
    """Where a process listens: host and port, or the name of an abstract Unix socket."""

    host: str
    port: int = 0

    @property
    def is_unix(self):
        return self.port == 0

    def begin(self):
        """A connection on its way: a flood does not wait until each is accepted."""
        if self.is_unix:
            return self.connect()
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.connect_ex((self.host, self.port))
        return connection

    def connect(self, seconds=SECONDS_MAX):
        if not self.is_unix:
            return socket.create_connection((self.host, self.port), seconds)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket that does not block gets an error while the queue of the listener is full.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
        connection.connect(f"\0{self.host}")
        connection.settimeout(seconds)
        return connection


def listeners(process):
    """Everything on which a process listens, from the operating system; any open UDP port among them."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    table = lambda name: pathlib.Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for row in map(str.split, table(name)):
            is_listening = row[3] == "0A" if name.startswith("tcp") else True
            if row[9] in inodes and is_listening:
                assert name.startswith("tcp"), f"a UDP socket is open at {row[1]}"
                found.append(Endpoint(*_address(row[1])))
    for row in map(str.split, table("unix")):
        if row[6] in inodes and int(row[3], 16) & 0x10000:
            assert row[7].startswith("@"), f"a socket in the file system: {row[7]}"
            found.append(Endpoint(row[7][1:]))
    return sorted(found)


def _address(text):
    """Host and port from the kernel's hexadecimal text."""
    host, port = text.split(":")
    words = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, words), int(port, 16)


# Frames


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def fields(values):
    """A message: numbers are varints, text and bytes and nested fields have a length, `Fixed` has 8 bytes."""
    out = b""
    for number, value in values.items():
        for it in value if isinstance(value, list) else [value]:
            if isinstance(it, Fixed):
                out += varint(number << 3 | 1) + struct.pack("<Q", it)
            elif isinstance(it, int):
                out += varint(number << 3) + varint(it)
            else:
                raw = fields(it) if isinstance(it, dict) else it.encode() if isinstance(it, str) else it
                out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


class Fixed(int):
    """A random id, which has eight bytes on the wire."""


def parse(payload):
    """The fields of a message by number, each a list of numbers and bytes."""
    found, at = {}, 0
    while at < len(payload):
        tag, at = _take_varint(payload, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _take_varint(payload, at)
        elif kind == 1:
            value, at = struct.unpack_from("<Q", payload, at)[0], at + 8
        else:
            assert kind == 2, f"wire type {kind}"
            length, at = _take_varint(payload, at)
            value, at = payload[at : at + length], at + length
        found.setdefault(number, []).append(value)
    return found


def _take_varint(payload, at):
    number = shift = 0
    while True:
        byte = payload[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def frame(kind, payload=b"", id=0, flags=0, magic=b"TFN1", length=None):
    head = struct.pack("<4sHBBQI", magic, kind, flags, 0, id, len(payload) if length is None else length)
    return head + struct.pack("<I", xxhash.xxh3_64_intdigest(head + payload) & 0xFFFFFFFF) + payload


def hello(token="", namespace="default", role=CLIENT, client=1, **more):
    """The first frame; `more` are fields by number, as in `f8=Fixed(7)`."""
    values = {1: 1, 3: token, 4: namespace, 5: role, 6: Fixed(client)}
    values |= {int(name[1:]): value for name, value in more.items()}
    return frame(HELLO, fields({number: it for number, it in values.items() if it not in ("", 0)}))


class Refusal(Exception):
    """The server refused a hello or a request."""

    def __init__(self, payload):
        found = parse(payload)
        self.reason = found.get(1, [0])[0]
        self.message = found.get(2, [b""])[0].decode()
        super().__init__(self.message)


class Control:
    """A control connection that was welcomed; raises `Refusal`, or `ConnectionError` if it was closed."""

    def __init__(self, endpoint, **greeting):
        self.socket, self.id = endpoint.connect(), 0
        try:
            self.socket.sendall(hello(**greeting))
            self._receive()
        except BaseException:
            self.socket.close()
            raise

    def ask(self, kind, values=(), **more):
        """The fields of the reply."""
        self.id += 1
        self.socket.sendall(frame(kind, fields(dict(values) | more), self.id))
        return self._receive()

    def _receive(self):
        kind, _, length = struct.unpack("<4xHxxQII", receive(self.socket, 24))[0:3]
        payload = receive(self.socket, length)
        if kind == REFUSED:
            raise Refusal(payload)
        return kind, parse(payload)

    def is_closed(self):
        """Whether the server closes it before the deadline."""
        return is_closed(self.socket)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def receive(connection, count):
    out = b""
    while len(out) < count:
        piece = connection.recv(count - len(out))
        if not piece:
            raise ConnectionError(f"the connection was closed after {len(out)} of {count} bytes")
        out += piece
    return out


def rest(connection):
    """Everything until the peer closes, which it must do before the deadline of the socket."""
    out = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            out += piece
    return out


def is_closed(connection):
    try:
        rest(connection)
    except TimeoutError:
        return False
    return True


# Data sockets, attach sockets, pages


def data_hello(token="", client=1, segment=0):
    shown = token.encode()
    return struct.pack("<4sIQQII", b"TFD1", 6, client, segment, len(shown), 0) + shown


def data(endpoint, **greeting):
    """The open connection, and the reason if it was refused."""
    connection = endpoint.connect()
    connection.sendall(data_hello(**greeting))
    _, _, status, length = struct.unpack("<4sIII", receive(connection, 16))
    reason = receive(connection, length).decode()
    assert (status == 0) == (reason == "")
    return connection, reason


def read(connection, location, length):
    """The bytes at slot and stamp, through a data socket; `None` if they are stale."""
    slot, stamp = location
    connection.sendall(struct.pack("<IIQQQQQ", READ, slot, 1, stamp, 0, length, 0))
    _, status, _, count, _ = struct.unpack("<IIQQQ", receive(connection, 32))
    if status != 0:
        return None
    found = receive(connection, count)
    _, status, _, _, checksum = struct.unpack("<IIQQQ", receive(connection, TRAILER_BYTES))
    return found if status == 0 and checksum == xxhash.xxh3_64_intdigest(found) else None


def write(connection, location, value):
    """Whether the bytes were written to slot and stamp, through a data socket."""
    slot, stamp = location
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(value))
    connection.sendall(struct.pack("<IIQQQQQ", WRITE, slot, 1, stamp, 0, len(value), 0) + value + checksum)
    return struct.unpack("<IIQQQ", receive(connection, 32))[1] == 0


def attach_request(token="", client=1, segment=0, wanted=0):
    shown = token.encode()
    return struct.pack("<4sIQQII", b"TFA1", 3, client, segment, len(shown), wanted) + shown


def attach(endpoint, **request):
    """The connection, the descriptors, and the reason if there are none."""
    connection = endpoint.connect()
    connection.sendall(attach_request(**request))
    answer, descriptors, _, _ = socket.recv_fds(connection, 40, 8)
    answer += receive(connection, 40 - len(answer))
    _, _, status, length = struct.unpack_from("<4sIII", answer)
    reason = receive(connection, length).decode() if status else ""
    return connection, descriptors, reason


def page(endpoint, path="/nothing", method="GET", headers=(), body=b"", host="127.0.0.1"):
    """Status, head and body of a page, over a connection of its own."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    with endpoint.connect() as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        answer = rest(connection)
    head, _, found = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, head.decode("latin-1"), found


def bearer(token):
    return [f"Authorization: Bearer {token}"] if token else []


# What a listener speaks


def protocol(endpoint):
    """`control`, `data`, `attach`, `http`, `zmq`, or `None` for none that a test knows."""
    known = {
        # The others close a connection with a line of text at once; this one would wait for its end.
        "http": (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"HTTP"),
        "control": (hello(), b"TFN1"),
        "data": (data_hello(), b"TFD1"),
        "attach": (attach_request(), b"TFA1"),
        "zmq": (b"\xff" + bytes(8) + b"\x7f\x03", b"\xff" + bytes(3)),
    }
    for name, (request, expected) in known.items():
        with contextlib.suppress(ConnectionError, TimeoutError), endpoint.connect(5) as connection:
            connection.sendall(request)
            if receive(connection, 4) == expected:
                return name
    return None


def eventually(condition, what, seconds=SECONDS_MAX):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
