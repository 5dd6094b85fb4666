"""The results of a store: named tuples, which can be compared, unpacked and pickled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = [
    "DeviceTraffic",
    "Group",
    "Holder",
    "Latency",
    "Losses",
    "Manifest",
    "Namespace",
    "Node",
    "ObjectInfo",
    "Policy",
    "Route",
    "SampleRef",
    "Spans",
    "Stats",
    "Stream",
    "TensorInfo",
    "Tier",
    "Traffic",
    "Usage",
    "Why",
]


def _without_defaults(self: Any) -> str:
    """Represent a named tuple by the fields that do not have their defaults."""
    defaults = self._field_defaults
    pairs = zip(self._fields, self, strict=True)
    shown = [f"{name}={value!r}" for name, value in pairs if name not in defaults or value != defaults[name]]
    return f"{type(self).__name__}({', '.join(shown)})"


class ObjectInfo(NamedTuple):
    """An object that can be read."""

    #: Its key: `str` if that is valid UTF-8, else `bytes`.
    key: str | bytes
    #: Its size in bytes.
    size: int
    #: The number of its copies.
    replicas: int
    #: Its generation. Later puts compare greater; no two are equal.
    generation: tuple[int, int]
    #: The seconds until it expires, if it has a TTL. If that is zero, a pin keeps it.
    expires_in: float | None = None


class Usage(NamedTuple):
    """Memory by use, in bytes: `free + reserved + used + in_view + metadata` is `capacity`."""

    #: The total.
    capacity: int
    #: Free memory.
    free: int
    #: Memory of puts in progress, and reservations.
    reserved: int
    #: Memory of readable objects.
    used: int
    #: Memory of removed objects that views still use.
    in_view: int
    #: The number of readable objects.
    objects: int
    #: Memory of records and keys. It grows with the number of objects; the first few hundred objects cost
    #: nothing.
    metadata: int = 0


class Holder(NamedTuple):
    """A client that keeps memory from being freed."""

    #: Why: `reserved` is memory for future writes; `leased` are samples; `in view` are removed objects that
    #: the client still views.
    kept: str
    #: The label of the client.
    who: str
    #: How many objects or reservations, and their bytes.
    objects: int
    size: int


class Node(NamedTuple):
    """A storage node."""

    #: Its name.
    name: str
    #: Whether it answers.
    is_alive: bool
    #: The usage of its memory, as of its last report.
    usage: Usage
    #: `host:port` for other hosts; empty if they cannot reach it.
    address: str
    #: The clients that view removed objects, as of its last report, in descending order of memory.
    holders: tuple[Holder, ...] = ()
    #: Whether it is a disk of a node, and not its memory.
    is_disk: bool = False

    def __repr__(self) -> str:
        return _without_defaults(self)


class Namespace(NamedTuple):
    """A namespace."""

    #: Its name.
    name: str
    #: The number of objects in it.
    objects: int
    #: Their size in bytes, each object counted once.
    size: int
    #: The bytes that it uses, with all copies, reservations, and removed objects in view. A quota limits this
    #: number.
    used: int = 0
    #: The quota in bytes; `None` for no limit.
    quota: int | None = None
    #: The number of puts that wait for space.
    waiting: int = 0
    #: The number of samples that wait to be consumed, and the number of leased ones among them.
    samples: int = 0
    samples_leased: int = 0
    #: How many seconds the oldest of them has waited.
    oldest_sample: float = 0.0
    #: The bytes of the samples, and of the leased ones; each sample counted once.
    samples_size: int = 0
    samples_leased_size: int = 0
    #: The age in seconds of the oldest leased sample.
    oldest_leased_sample: float = 0.0
    #: The maximum number of seconds that a sample without a lease may wait; `None` for no limit.
    max_hold: float | None = None
    #: When its objects are written to disks: `on-pressure`, `write-through` or `never`.
    demotion: str = "on-pressure"
    #: The owners of pins, in descending order of bytes: owner to (objects, bytes). The empty name is for
    #: pins without an owner.
    owners: Mapping[str, tuple[int, int]] = MappingProxyType({})
    #: The clients with leases and reservations in it, in descending order of bytes.
    holders: tuple[Holder, ...] = ()
    #: The number of samples that were freed because they waited longer than `max_hold`, and their bytes,
    #: since the master started.
    samples_expired: int = 0
    samples_expired_size: int = 0
    #: The bytes of memory that other namespaces leave to it; `None` for no such minimum.
    guaranteed: int | None = None
    #: The part of `used` that removed objects still take, because clients view or copy them.
    held: int = 0

    def __repr__(self) -> str:
        return _without_defaults(self)


class Policy(NamedTuple):
    """The limits of a namespace; `None` for no limit."""

    #: The quota in bytes, all copies counted.
    quota: int | None = None
    #: The maximum number of seconds that a sample without a lease may wait.
    max_hold: float | None = None
    #: When its objects are written to disks: `on-pressure`, `write-through` or `never`.
    demotion: str = "on-pressure"
    #: The bytes of memory that other namespaces leave to it.
    guaranteed: int | None = None


class Losses(NamedTuple):
    """The objects that are lost when a store inside this process is closed."""

    #: The number of objects whose only copy is there, and their bytes.
    objects: int = 0
    size: int = 0
    #: The number of pinned ones, and the number of samples that wait to be consumed.
    pinned: int = 0
    unconsumed: int = 0
    #: The keys of some that are pinned or not consumed.
    names: tuple[str | bytes, ...] = ()
    #: The number of objects that have another copy, and are not lost.
    elsewhere: int = 0


class DeviceTraffic(NamedTuple):
    """The bytes that a device has moved for all stores of this process."""

    #: From the device to the host, and back.
    saved: int = 0
    loaded: int = 0
    #: Those of both that went through pinned memory, because the store's memory was not registered.
    ringed: int = 0


class Traffic(NamedTuple):
    """The bytes that this store has moved in this process, by transport."""

    #: Read from a node inside this process, and written to it.
    local_read: int
    local_written: int
    #: Read from mapped memory of another process of this host, and written to it.
    shared_memory_read: int
    shared_memory_written: int
    #: Read through sockets, and written through them.
    tcp_read: int
    tcp_written: int
    #: By the name of each device that was used, such as `cuda:0`. They are part of the bytes above.
    devices: Mapping[str, DeviceTraffic] = MappingProxyType({})


class Latency(NamedTuple):
    """How long the calls of one kind took in this process, in seconds."""

    #: Such as `put`, `get` or `exists`.
    operation: str
    #: `process`, `shared_memory`, `tcp` or `disk`; `master` if no bytes moved.
    path: str
    #: The number of calls.
    calls: int
    mean: float
    #: Half of the calls took at most this long, rounded up to a bound of the histogram.
    p50: float
    #: The same for 99 of 100 calls.
    p99: float
    #: The bytes that they moved.
    size: int


class Tier(NamedTuple):
    """Demotions, promotions and prefetches of the whole cluster, since the master started."""

    #: The number of copies on disks now.
    disk_objects: int = 0
    #: The number of objects that were written to disks, their bytes, and the number of failures.
    demoted_objects: int = 0
    demoted_bytes: int = 0
    demotions_failed: int = 0
    #: The number of objects that a disk refused because of their size; `why` of such an object shows it.
    demotions_refused: int = 0
    #: The number of objects that were evicted before they were on a disk, because the disk could not keep
    #: up.
    evicted_undemoted: int = 0
    #: The number of objects that were promoted to memory, and their bytes.
    promoted_objects: int = 0
    promoted_bytes: int = 0
    #: The number of these that were read before they left memory again, and the number that were not.
    promoted_used: int = 0
    promoted_unused: int = 0
    #: Prefetches by outcome: the object was in memory; it was being promoted or had just been; it could not
    #: be read; memory was short; the prefetch was cancelled.
    prefetch_redundant: int = 0
    prefetch_joined: int = 0
    prefetch_failed: int = 0
    prefetch_skipped: int = 0
    prefetch_cancelled: int = 0
    #: Gets that the master answered with a copy in memory, with one on a disk, and with one on a disk of
    #: another host. Reads from cached locations do not ask the master, and are not counted here.
    gets_from_memory: int = 0
    gets_from_disk: int = 0
    gets_from_far_disk: int = 0
    #: Batches of gets that waited for a promotion that ended in time, or too late, and the total wait in
    #: milliseconds.
    gets_waited: int = 0
    gets_late: int = 0
    waited_ms: int = 0
    #: Copies that disks evicted, and copies that were unreadable.
    disk_evicted: int = 0
    disk_corrupt: int = 0

    def __repr__(self) -> str:
        return _without_defaults(self)


class Spans(NamedTuple):
    """The spans of this store's traced calls."""

    #: The number of spans that the collector has accepted.
    exported: int = 0
    #: The number of spans that were lost, because the collector was away or rejected them.
    dropped: int = 0


class Stats(NamedTuple):
    """The state of the cluster as the master sees it, and the traffic of this store.

    `print(stats)` shows it as tables, in the words of `tiffin stat`.
    """

    #: The total usage of the memory of all nodes.
    usage: Usage
    #: The nodes and their disks, including those that do not answer.
    nodes: list[Node]
    #: The namespaces.
    namespaces: list[Namespace]
    #: The number of connected clients.
    clients: int
    #: The number of objects that were evicted since the master started, and their bytes.
    evicted_objects: int
    evicted_bytes: int
    #: The bytes that this store has moved.
    traffic: Traffic
    #: The total usage of the disks of all nodes.
    disk_usage: Usage = Usage(0, 0, 0, 0, 0, 0)
    #: Demotions, promotions and prefetches, since the master started.
    tier: Tier = Tier()
    #: The latencies of this store's calls, by operation and path.
    latency: tuple[Latency, ...] = ()
    #: The number of objects that expired since the master started, and their bytes.
    expired_objects: int = 0
    expired_bytes: int = 0
    #: The number of objects with a TTL that no pin keeps.
    expiring_objects: int = 0
    #: The spans of this store's traced calls.
    spans: Spans = Spans()

    def __repr__(self) -> str:
        used = f"{_size(self.usage.used)} of {_size(self.usage.capacity)} in use"
        counts = (
            _count(sum(not node.is_disk for node in self.nodes), "node"),
            _count(self.usage.objects, "object"),
        )
        return f"<tiffin.Stats: {', '.join((*counts, used))}; print it for details>"

    def __str__(self) -> str:
        evicted = f"{_count(self.evicted_objects, 'object')} evicted ({_size(self.evicted_bytes)})"
        if self.expired_objects:
            evicted += f", {self.expired_objects} expired ({_size(self.expired_bytes)})"
        tables = [f"master  {_count(self.clients, 'client')}, {evicted}", self._nodes(), self._namespaces()]
        tier = [(name, str(count)) for name, count in self.tier._asdict().items() if count]
        moved = [(name, _size(count)) for name, count in self.traffic._asdict().items() if count]
        tables += [_table(("disks", "count"), tier)] if tier else []
        tables += [_table(("traffic of this store", "size"), moved)] if moved else []
        return "\n\n".join(tables)

    def _nodes(self) -> str:
        head = ("node", "capacity", "free", "reserved", "in use", "in view", "metadata", "objects")
        rows = []
        for node in self.nodes:
            it = node.usage
            sizes = (it.capacity, it.free, it.reserved, it.used, it.in_view, it.metadata)
            name = _plain(node.name) + ("" if node.is_alive else " (no contact)")
            rows.append((name, *map(_size, sizes), str(it.objects)))
        return _table(head, rows)

    def _namespaces(self) -> str:
        head = ("namespace", "objects", "size", "used", "quota", "samples", "leased", "oldest", "waiting")
        rows = []
        for it in self.namespaces:
            quota = "-" if it.quota is None else _size(it.quota)
            oldest = f"{it.oldest_sample:.0f}s" if it.samples else "-"
            samples = (str(it.samples), str(it.samples_leased), oldest)
            sizes = (_size(it.size), _size(it.used), quota)
            rows.append((_plain(it.name), str(it.objects), *sizes, *samples, str(it.waiting)))
        return _table(head, rows)


class Route(NamedTuple):
    """The transport between this store and a node."""

    #: The node's name.
    node: str
    #: `local`, `shared memory` or `tcp`; `None` while there is no connection.
    way: str | None
    #: Why its memory is not mapped, or why there is no connection.
    why: str | None


class SampleRef(NamedTuple):
    """A reference to a sample. The producer sends it to consumers, which pass it to `lease` and `ack`."""

    #: Its id: `str` if that is valid UTF-8, else `bytes`.
    id: str | bytes
    #: Its generation.
    generation: tuple[int, int]
    #: The size of the whole sample in bytes.
    size: int
    #: Whether it replaced an older sample.
    is_replacement: bool


class Group(NamedTuple):
    """A group of consumers of a stream."""

    #: Its name.
    name: str
    #: The number of samples that no consumer of the group has.
    ready: int
    #: The number of samples that a consumer of the group has and has not acknowledged.
    out: int
    #: The number of deliveries to consumers of the group, in this epoch of the master.
    delivered: int
    #: The number of samples that the group has acknowledged, each counted once, in this epoch of the
    #: master.
    acked: int
    #: The number of stores that belong to it.
    consumers: int
    #: The number of samples that all of them together may hold unacknowledged.
    window: int


class Stream(NamedTuple):
    """The state of a stream."""

    #: The number of samples in it.
    refs: int
    #: Their bytes.
    size: int
    #: The number of samples that are being put.
    reserved: int
    #: The limits: high and low mark in samples, high and low mark in bytes. 0 is no limit.
    marks: tuple[int, int, int, int]
    #: Whether puts wait until it is at or below the low marks.
    is_shut: bool
    #: Whether it has ended.
    is_ended: bool
    #: The reason of a failure, if it ended with one.
    failure: str | None
    #: The number of samples that were put, in this epoch of the master.
    appended: int
    #: The number of samples at the start of this epoch of the master.
    recovered: int
    #: The number of samples that all groups have consumed, in this epoch of the master.
    consumed: int
    #: The groups that consume it.
    groups: tuple[Group, ...]


class TensorInfo(NamedTuple):
    """A tensor of a sample."""

    #: Its name.
    name: str
    #: The type of its elements, such as `float32` or `bfloat16`.
    dtype: str
    #: Its dimensions, the slowest first; none for a scalar.
    shape: tuple[int, ...]
    #: Its size in bytes.
    size: int


class Manifest(NamedTuple):
    """The contents of a sample."""

    #: The tensors, in the order of their bytes.
    tensors: tuple[TensorInfo, ...]
    #: Bytes of the producer, stored with the tensors.
    metadata: bytes
    #: The size of the whole sample in bytes.
    size: int


class Why(NamedTuple):
    """Why an object exists, or what removed it. `str(why)` is a description.

    Times are in seconds.
    """

    #: Its key: `str` if that is valid UTF-8, else `bytes`.
    key: str | bytes
    #: `here`, `gone`, or `unknown`: it never existed, or was removed long ago.
    state: str
    #: Its generation.
    generation: tuple[int, int] | None = None
    #: Its size in bytes, if it exists.
    size: int | None = None
    #: The nodes that have a copy, and the unreachable ones among them.
    nodes: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    #: The owners of its pins.
    pins: tuple[str, ...] = ()
    #: Whether it has a soft pin: it is evicted after all others.
    is_soft_pinned: bool = False
    #: Of a sample: `once`, `retained`, or its groups; and the groups that have acknowledged it.
    consume: str | tuple[str, ...] | None = None
    acked: tuple[str, ...] = ()
    #: The names of the clients that lease it.
    leases: tuple[str, ...] = ()
    #: The number of views of it.
    views: int = 0
    #: The names of the clients that view it, and the number of further ones.
    viewers: tuple[str, ...] = ()
    viewers_more: int = 0
    #: The number of its transfers through sockets in progress.
    sends: int = 0
    #: The seconds since its put, since its last use, and until the end of its lease.
    age: float | None = None
    idle: float | None = None
    lease_left: float | None = None
    #: Its TTL, and the seconds until it expires. If they are zero, a pin keeps it.
    ttl: float | None = None
    expires_in: float | None = None
    #: The names of the clients that put it and that last read it.
    writer: str = ""
    reader: str = ""
    #: If it is gone: `deleted`, `replaced`, `evicted`, `node lost`, `consumed`, `held too long` or
    #: `expired`.
    cause: str | None = None
    #: The client that removed it, and the seconds since; of an eviction, the client whose put needed the
    #: space.
    by: str = ""
    ago: float | None = None
    #: The node that was lost with it, or that evicted it; empty if it was evicted for a quota.
    node: str = ""
    #: The key of the put for which it was evicted.
    for_key: str | bytes | None = None
    #: The maximum object size of its disk in bytes, if the disk refused this object.
    disk_bytes_max: int | None = None

    def __repr__(self) -> str:
        return _without_defaults(self)

    def __str__(self) -> str:
        name = _quote(self.key)
        if self.state == "unknown":
            return f"{name} is unknown: it never existed, or its removal is no longer recorded"
        generation = ".".join(str(number) for number in self.generation or ())
        if self.state == "gone":
            by = f" by {_quote(self.by)}" if self.by else ""
            on = f" on {_quote(self.node)}" if self.node else ""
            place = on if self.for_key is None else f"{on} for a put of {_quote(self.for_key)}"
            what = _CAUSES.get(self.cause or "", "is gone").format(by=by, on=on, place=place)
            disk = f"\n  disk     {self._refused()}" if self.disk_bytes_max else ""
            return f"{name} is gone: generation {generation} {what}, {_ago(self.ago)}{disk}"
        lines = [f"{name} exists: generation {generation}, {_size(self.size or 0)}"]
        lines += [f"  {title:<7}  {text}" for title, text in self._details() if text]
        return "\n".join(lines)

    def _refused(self) -> str:
        if not self.disk_bytes_max:
            return ""
        most = _size(self.disk_bytes_max)
        return f"too large, the maximum is {most}; use a larger disk, or split the object"

    def _details(self) -> list[tuple[str, str]]:
        away = dict.fromkeys(self.unreachable, " (cannot be reached)")
        return [
            ("kept", self._kept()),
            ("nodes", ", ".join(f"{_quote(node)}{away.get(node, '')}" for node in self.nodes)),
            ("pins", ", ".join(map(_quote, self.pins))),
            ("ttl", self._ttl()),
            ("leases", ", ".join(map(_quote, self.leases))),
            ("views", self._views()),
            ("sends", f"{self.sends} in progress" if self.sends else ""),
            ("disk", self._refused()),
            ("sample", self._waits_for()),
            ("put", f"{_ago(self.age)} by {_quote(self.writer)}"),
            ("used", f"{_ago(self.idle)} by {_quote(self.reader)}" if self.reader else ""),
        ]

    def _views(self) -> str:
        if not self.views:
            return ""
        names = [*map(_quote, self.viewers), *([f"{self.viewers_more} more"] if self.viewers_more else [])]
        return f"{self.views} open" + (f": {', '.join(names)}" if names else "")

    def _ttl(self) -> str:
        if self.ttl is None or self.expires_in is None:
            return ""
        if self.pins and not self.expires_in:
            return f"{self.ttl:g} s, which is over: the object ends with its last pin"
        return f"{self.ttl:g} s, of which {self.expires_in:.1f} s are left"

    def _kept(self) -> str:
        if self.pins:
            return "until it is unpinned or removed: pinned objects are never evicted"
        if self.consume is not None:
            return "until it is consumed or removed: samples are never evicted"
        if self.lease_left:
            reason = "because it was just read or probed; then until space is needed"
            return f"for {self.lease_left:.0f} s more, {reason}"
        if self.is_soft_pinned:
            return "until space is needed and nothing else is left: it is soft-pinned"
        return "until space is needed"

    def _waits_for(self) -> str:
        if self.consume is None:
            return ""
        if self.consume == "once":
            return "waits for its first consumer"
        if self.consume == "retained":
            return "stays until it is removed, however often it is consumed"
        waiting = ", ".join(_quote(group) for group in self.consume if group not in self.acked)
        done = f"; consumed by {', '.join(map(_quote, self.acked))}" if self.acked else ""
        return f"waits for {waiting}{done}"


_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_CAUSES = {
    "deleted": "was removed{by}",
    "replaced": "was replaced{by}",
    "evicted": "was evicted to free space{place}{by}",
    "node lost": "was lost with its last node{on}",
    "consumed": "was consumed{by}",
    "expired": "expired: its TTL was over",
    "held too long": "was dropped: no client leased it for longer than the namespace allows",
}


def _quote(name: str | bytes) -> str:
    if name == "":
        return "an unnamed client"
    return f"`{_plain(name)}`"


def _plain(name: str | bytes) -> str:
    """A name without control characters: other clients choose it, and it may be sent to a terminal."""
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
    return "".join(it if it.isprintable() else ascii(it)[1:-1] for it in text)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Columns: the first is aligned on the left, the others on the right."""
    lines = [head, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    cells = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _size(nbytes: int) -> str:
    """A size in the format of the commands, such as `17 B` or `20.0 MiB`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    # A size that rounds up to the next unit is written in that unit.
    sizes = ((round(nbytes * 10 / 1024**power), unit) for power, unit in enumerate(_UNITS, 1))
    tenths, unit = next(size for size in sizes if size[0] < 10_240)
    return f"{tenths // 10}.{tenths % 10} {unit}"


def _ago(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return "just now" if seconds < 1 else f"{seconds:.0f} s ago"
