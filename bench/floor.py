"""The lower bound of any store on this machine: one copy of the bytes, one stream of them, one round trip.

It answers the same commands as a worker, so that its slices are between those of the two sides. For each
measure it does the minimum: memcpy between as many buffers as there are keys, loopback streams (one, two or
four), or one round trip. Bytes that leave a host have a checksum: streams are measured without it, and with
a receiver that hashes the received bytes.
"""

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import os
import signal
import socket
import sys
import threading

import rows
import xxhash
from worker import BUFFER_BYTES, Memory, timed

ROUND_TRIP_BYTES = 64
# The objects of a store are not in the caches.
ARENA_BYTES = 4 * BUFFER_BYTES


def receive(connection, view, hashed=False):
    got, digest = 0, xxhash.xxh3_64() if hashed else None
    while got < len(view):
        step = connection.recv_into(view[got:])
        if step == 0:
            sys.exit("error: the peer of the loopback closed the connection")
        if digest:
            digest.update(view[got : got + step])
        got += step


def serve(connection):
    """The peer: answers requests with a number of incoming bytes, a number of requested bytes, and whether
    to hash."""
    memory, at = Memory(ARENA_BYTES), 0
    memory.map[:] = b"\3" * ARENA_BYTES
    view, head = memoryview(memory.map), bytearray(ROUND_TRIP_BYTES)
    while True:
        receive(connection, memoryview(head))
        comes, wanted = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:16], "little")
        # It uses one buffer after the other, like a store: a single buffer would stay in the caches.
        size = max(comes, wanted, 1)
        at = at if at + size <= ARENA_BYTES else 0
        receive(connection, view[at : at + comes], hashed=head[16])
        connection.sendall(view[at : at + max(wanted, 1)])
        at += size


class Stream:
    """A connection to a process that serves it, and a thread for callers that use several connections."""

    def __init__(self, family):
        near, far = self.pair(family)
        self.child = os.fork()
        if self.child == 0:
            near.close()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            with contextlib.suppress(BaseException):
                serve(far)
            os._exit(0)
        far.close()
        self.connection = near
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.work = None

    @staticmethod
    def pair(family):
        if family == socket.AF_UNIX:
            return socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname(), timeout=20)
            far, _ = listener.accept()
        near.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far

    def exchange(self, out, into, hashed=False):
        """Send the bytes of `out` and receive those of `into`. The answer has at least one byte."""
        head = len(out).to_bytes(8, "little") + len(into).to_bytes(8, "little") + bytes([hashed])
        self.connection.sendall(head.ljust(ROUND_TRIP_BYTES, b"\0"))
        if out:
            self.connection.sendall(out)
        receive(self.connection, into or memoryview(bytearray(1)), hashed)

    def serve_thread(self):
        while True:
            self.go.acquire()
            self.exchange(*self.work)
            self.done.release()

    def end(self):
        self.connection.close()
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


class Floor:
    """Two buffers, an arena with one buffer for each key of a case, and the streams."""

    def __init__(self, shape):
        self.shape = shape
        # Children are forked before threads start.
        self.unix = Stream(socket.AF_UNIX)
        self.tcp = [Stream(socket.AF_INET) for _ in range(max(rows.STREAMS))]
        self.near, self.arena = Memory(BUFFER_BYTES), Memory(ARENA_BYTES)
        self.near.map[:] = b"\1" * len(self.near.map)
        self.arena.map[:] = b"\2" * len(self.arena.map)
        for stream in self.tcp[1:]:
            threading.Thread(target=stream.serve_thread, daemon=True).start()

    def warm(self, _case, _slice):
        return {}

    def run(self, case, _slice):
        trip = self.tcp[0] if self.shape == "tcp" else self.unix
        nothing, answer = memoryview(b""), memoryview(self.near.map)
        if case.name == rows.EXIST.name:
            ask = lambda: trip.exchange(nothing, answer[: case.items])
            return {"batch_is_exist 128": [timed(ask) for _ in range(case.rounds)]}
        times = self.streams(case) if self.shape == "tcp" else self.copies(case)
        if case.copying:
            # A put needs a round trip for a new name.
            ask = lambda: trip.exchange(nothing, answer[: case.size])
            tell = lambda: trip.exchange(answer[: case.size], nothing)
            gets, puts = [[timed(call) for _ in range(case.calls)] for call in (ask, tell)]
            times["put_from"] = times["put"] = puts
            times["get_into" + rows.NEW] = times["get" + rows.NEW] = gets
            times["get"] = times["get_into"] = times.get("get_into", gets)
        return times

    def copies(self, case):
        """memcpy of the bytes of a call, between the buffer and each object."""
        size, near = case.call_bytes, self.near.address
        calls = min(case.calls, len(self.arena.map) // size)
        places = [self.arena.address + index * size for index in range(calls)]
        puts = [timed(ctypes.memmove, place, near, size) for place in places]
        gets = [timed(ctypes.memmove, near, place, size) for _ in range(case.rounds) for place in places]
        return named(case, puts, gets)

    def streams(self, case):
        """Measure every number of streams, with and without hashing. The fastest is chosen at the end."""
        found = {}
        counts = rows.STREAMS if case.call_bytes >= rows.MIB else rows.STREAMS[:1]
        for count, hashed in itertools.product(counts, (False, True)):
            puts = [timed(self.spread, case, count, False, hashed) for _ in range(case.calls)]
            gets = [timed(self.spread, case, count, True, hashed) for _ in range(case.calls * case.rounds)]
            every = {name: times for name, times in named(case, puts, gets).items() if rows.NEW not in name}
            found |= {rows.of_streams(name, count, hashed): times for name, times in every.items()}
        return found

    def spread(self, case, count, is_get, hashed):
        size = case.call_bytes // count
        nothing, view = memoryview(b""), memoryview(self.near.map)
        parts = [view[index * size : (index + 1) * size] for index in range(count)]
        works = [(nothing, part, hashed) if is_get else (part, nothing, hashed) for part in parts]
        for stream, work in list(zip(self.tcp, works, strict=False))[1:]:
            stream.work = work
            stream.go.release()
        self.tcp[0].exchange(*works[0])
        for stream in self.tcp[1:count]:
            stream.done.acquire()

    def end(self):
        for stream in [self.unix, *self.tcp]:
            stream.end()


def named(case, puts, gets):
    batch = "batch_" if case.items > 1 else ""
    return {f"{batch}put_from": puts, f"{batch}get_into": gets, f"{batch}get_into{rows.NEW}": gets}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", required=True)
    floor = Floor(parser.parse_args().shape)
    gc.disable()
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        case = rows.case_named(command["case"]) if command["case"] else None
        print(json.dumps(getattr(floor, command["do"])(case, command["slice"])), flush=True)
    floor.end()


if __name__ == "__main__":
    main()
