"""The results of a store: named tuples, which can be compared, unpacked and pickled."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "Group",
    "Holder",
    "Losses",
    "Manifest",
    "Namespace",
    "Node",
    "ObjectInfo",
    "Policy",
    "Route",
    "SampleRef",
    "Stats",
    "Stream",
    "TensorInfo",
    "Tier",
    "Traffic",
    "Usage",
    "Why",
]


class ObjectInfo(NamedTuple):
    """An object that can be read."""

    #: Its name: `str` where that is valid UTF-8, else `bytes`.
    key: str | bytes
    #: How many bytes it has.
    size: int
    #: How many copies of it there are.
    replicas: int
    #: Which put of the key it is. Later puts compare greater; none is ever the same.
    generation: tuple[int, int]


class Usage(NamedTuple):
    """How full something is, in bytes: `free + reserved + used + in_view + metadata` is `capacity`."""

    #: All of it.
    capacity: int
    #: Not in use.
    free: int
    #: Allocated to puts in progress, or reserved ahead of their data.
    reserved: int
    #: Of objects that can be read.
    used: int
    #: Of removed objects that views still use.
    in_view: int
    #: How many objects can be read.
    objects: int
    #: Of records and keys. It grows with the number of objects; the first few hundred objects cost nothing.
    metadata: int = 0


class Holder(NamedTuple):
    """A client that keeps memory from being freed."""

    #: How: `reserved` is memory for future writes; `leased` are samples; `in view` are removed objects that
    #: the client still views.
    kept: str
    #: The client's name for itself.
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
    #: How full it is, as of its last report.
    usage: Usage
    #: `host:port` for other hosts; empty if they cannot reach it.
    address: str
    #: The clients that view removed objects, as of its last report; the most memory first.
    holders: tuple[Holder, ...] = ()
    #: Whether it is a disk of a node, and not its memory.
    is_disk: bool = False


class Namespace(NamedTuple):
    """A namespace."""

    #: Its name.
    name: str
    #: How many objects are in it.
    objects: int
    #: How many bytes they have, each object counted once.
    size: int
    #: How many bytes it holds, with all copies and reservations. A quota limits this number.
    used: int = 0
    #: How many bytes it may hold; `None` if that is not limited.
    quota: int | None = None
    #: How many puts wait for space.
    waiting: int = 0
    #: How many samples wait to be consumed, and how many of these are leased.
    samples: int = 0
    samples_leased: int = 0
    #: For how many seconds the oldest of them has waited.
    oldest_sample: float = 0.0
    #: How many bytes the samples have, and how many of these are leased; each sample counted once.
    samples_size: int = 0
    samples_leased_size: int = 0
    #: The age in seconds of the oldest leased sample.
    oldest_leased_sample: float = 0.0
    #: For how many seconds a sample without a lease may wait; `None` if that is not limited.
    max_hold: float | None = None
    #: What becomes of its objects where nodes have disks: `on-pressure`, `write-through` or `never`.
    demotion: str = "on-pressure"
    #: The owners of pins, the most bytes first: owner to (objects, bytes). The empty name is for pins without
    #: an owner.
    owners: Mapping[str, tuple[int, int]] = MappingProxyType({})
    #: The clients that hold it by leases and reservations, the most bytes first.
    holders: tuple[Holder, ...] = ()
    #: How many samples were freed because they waited for longer than `max_hold`, and their bytes, since the
    #: master started.
    samples_expired: int = 0
    samples_expired_size: int = 0


class Policy(NamedTuple):
    """The limits of a namespace; `None` for what is not limited."""

    #: How many bytes it may hold, all copies counted.
    quota: int | None = None
    #: For how many seconds a sample without a lease may wait.
    max_hold: float | None = None
    #: What becomes of its objects where nodes have disks: `on-pressure`, `write-through` or `never`.
    demotion: str = "on-pressure"


class Losses(NamedTuple):
    """The objects that are lost when a store inside this process is closed."""

    #: How many objects have their only copy there, and how many bytes these have.
    objects: int = 0
    size: int = 0
    #: How many of them are pinned, and how many are samples that wait to be consumed.
    pinned: int = 0
    unconsumed: int = 0
    #: The keys of some that are pinned or unconsumed.
    names: tuple[str | bytes, ...] = ()
    #: How many objects have another copy, and are not lost.
    elsewhere: int = 0


class Traffic(NamedTuple):
    """How many bytes this store has moved in this process, by transport."""

    #: Read from a node inside this process, and written to it.
    local_read: int
    local_written: int
    #: Read from mapped memory of another process of this host, and written to it.
    shared_memory_read: int
    shared_memory_written: int
    #: Read through sockets, and written through them.
    tcp_read: int
    tcp_written: int


class Tier(NamedTuple):
    """Demotions, promotions and prefetches of the whole cluster, since the master started."""

    #: How many copies are on disks now.
    disk_objects: int = 0
    #: How many objects were written to disks, and their bytes; and how many could not be.
    demoted_objects: int = 0
    demoted_bytes: int = 0
    demotions_failed: int = 0
    #: How many a disk refused because they are too large for it; `why` of such an object says so.
    demotions_refused: int = 0
    #: How many were evicted before they were on a disk, because the disk could not keep up.
    evicted_undemoted: int = 0
    #: How many objects were promoted to memory, and their bytes.
    promoted_objects: int = 0
    promoted_bytes: int = 0
    #: How many of these were read before they left memory again, and how many were not.
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
    #: Batches of gets that waited for a promotion that ended in time, or too late; and for how many
    #: milliseconds all of them waited.
    gets_waited: int = 0
    gets_late: int = 0
    waited_ms: int = 0
    #: Copies that disks evicted, and copies that turned out to be unreadable.
    disk_evicted: int = 0
    disk_corrupt: int = 0


class Stats(NamedTuple):
    """The state of the cluster as the master knows it, and the traffic of this store."""

    #: How full the memory of all nodes is together.
    usage: Usage
    #: The nodes and their disks, those that do not answer included.
    nodes: list[Node]
    #: The namespaces.
    namespaces: list[Namespace]
    #: How many clients are connected.
    clients: int
    #: How many objects were evicted since the master started, and how many bytes they had.
    evicted_objects: int
    evicted_bytes: int
    #: How many bytes this store has moved.
    traffic: Traffic
    #: How full the disks of all nodes are together.
    disk_usage: Usage = Usage(0, 0, 0, 0, 0, 0)
    #: Demotions, promotions and prefetches, since the master started.
    tier: Tier = Tier()


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

    #: Its name: `str` where that is valid UTF-8, else `bytes`.
    id: str | bytes
    #: Which put of the name it is.
    generation: tuple[int, int]
    #: How many bytes the whole sample has.
    size: int
    #: Whether it replaced an older sample.
    is_replacement: bool


class Group(NamedTuple):
    """A group of consumers of a stream."""

    #: Its name.
    name: str
    #: Samples that no consumer of the group has.
    ready: int
    #: Samples that a consumer of the group has and has not acknowledged.
    out: int
    #: How often a sample was delivered to a consumer of the group, in this epoch of the master.
    delivered: int
    #: Samples that the group has acknowledged, each counted once, in this epoch of the master.
    acked: int
    #: How many stores belong to it.
    consumers: int
    #: How many samples all of them may hold before they acknowledge any.
    window: int


class Stream(NamedTuple):
    """The state of a stream."""

    #: Samples in it.
    refs: int
    #: Their bytes.
    size: int
    #: Samples that are being put.
    reserved: int
    #: The limits: high and low mark in samples, high and low mark in bytes. 0 is no limit.
    marks: tuple[int, int, int, int]
    #: Whether puts wait until it is at or below the low marks.
    is_shut: bool
    #: Whether it has ended.
    is_ended: bool
    #: The reason of a failure, if it ended with one.
    failure: str | None
    #: Samples that were put, in this epoch of the master.
    appended: int
    #: Samples that were there when this epoch of the master began.
    recovered: int
    #: Samples that all groups have consumed, in this epoch of the master.
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
    #: How many bytes it has.
    size: int


class Manifest(NamedTuple):
    """The contents of a sample."""

    #: The tensors, in the order of their bytes.
    tensors: tuple[TensorInfo, ...]
    #: Bytes of the producer, stored with the tensors.
    metadata: bytes
    #: How many bytes the whole sample has.
    size: int


class Why(NamedTuple):
    """Why an object exists, or what removed it. `str(why)` says it in words.

    Times are in seconds.
    """

    #: Its name: `str` where that is valid UTF-8, else `bytes`.
    key: str | bytes
    #: `here`, `gone`, or `unknown`: it never existed, or was removed long ago.
    state: str
    #: Which put of the key it is, or was.
    generation: tuple[int, int] | None = None
    #: How many bytes it has, if it is here.
    size: int | None = None
    #: The nodes that hold it, and those of them that cannot be reached now.
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
    #: How many views of it exist.
    views: int = 0
    #: The names of the clients that view it, and how many more there are.
    viewers: tuple[str, ...] = ()
    viewers_more: int = 0
    #: How many transfers of it through sockets are in progress.
    sends: int = 0
    #: How long ago it was put, how long ago it was last used, and how long its lease still lasts.
    age: float | None = None
    idle: float | None = None
    lease_left: float | None = None
    #: The names of the clients that put it and that read it last.
    writer: str = ""
    reader: str = ""
    #: If it is gone: `deleted`, `replaced`, `evicted`, `node lost`, `consumed` or `held too long`.
    cause: str | None = None
    #: The client that removed it, and how long ago; of an eviction, the client whose put needed the space.
    by: str = ""
    ago: float | None = None
    #: The node that was lost with it, or that evicted it; empty if it was evicted for a quota.
    node: str = ""
    #: The key of the put that it was evicted for.
    for_key: str | bytes | None = None
    #: The largest object that its disk accepts, in bytes, if the disk refused this one.
    disk_bytes_max: int | None = None

    def __str__(self) -> str:
        name = _quote(self.key)
        if self.state == "unknown":
            return (
                f"nothing is known of {name}: it was never here, or it went so long ago that it is forgotten"
            )
        generation = ".".join(str(number) for number in self.generation or ())
        if self.state == "gone":
            by = f" by {_quote(self.by)}" if self.by else ""
            on = f" on {_quote(self.node)}" if self.node else ""
            place = on if self.for_key is None else f"{on} for a put of {_quote(self.for_key)}"
            what = _CAUSES.get(self.cause or "", "is gone").format(by=by, on=on, place=place)
            disk = f"\n  disk     {self._refused()}" if self.disk_bytes_max else ""
            return f"{name} is gone: generation {generation} {what}, {_ago(self.ago)}{disk}"
        lines = [f"{name} is here: generation {generation}, {_size(self.size or 0)}"]
        lines += [f"  {title:<7}  {text}" for title, text in self._details() if text]
        return "\n".join(lines)

    def _refused(self) -> str:
        if not self.disk_bytes_max:
            return ""
        most = _size(self.disk_bytes_max)
        return f"refused it: it takes objects of at most {most}; use a larger disk, or split the object"

    def _details(self) -> list[tuple[str, str]]:
        away = dict.fromkeys(self.unreachable, " (cannot be reached)")
        return [
            ("kept", self._kept()),
            ("nodes", ", ".join(f"{_quote(node)}{away.get(node, '')}" for node in self.nodes)),
            ("pins", ", ".join(map(_quote, self.pins))),
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

    def _kept(self) -> str:
        if self.pins:
            return "until it is unpinned or removed: pins are never evicted"
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
    "held too long": "was dropped: no client leased it for longer than the namespace allows",
}


def _quote(name: str | bytes) -> str:
    if name == "":
        return "an unnamed client"
    # Other clients choose names, which must not send control sequences to a terminal.
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
    return "`" + "".join(it if it.isprintable() else ascii(it)[1:-1] for it in text) + "`"


def _size(nbytes: int) -> str:
    """A size as the commands write it, such as `17 B` or `20.0 MiB`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    # A size that rounds up to the next unit is written in that unit.
    sizes = ((round(nbytes * 10 / 1024**power), unit) for power, unit in enumerate(_UNITS, 1))
    tenths, unit = next(size for size in sizes if size[0] < 10_240)
    return f"{tenths // 10}.{tenths % 10} {unit}"


def _ago(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return "just now" if seconds < 1 else f"{seconds:.0f} s ago"
