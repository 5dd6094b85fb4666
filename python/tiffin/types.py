"""What a store tells: plain tuples with names, which can be compared, unpacked and pickled."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Namespace", "Node", "ObjectInfo", "Route", "Stats", "Traffic", "Usage"]


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
    """How full something is, in bytes: `free + reserved + used + in_view` is `capacity`."""

    #: All of it.
    capacity: int
    #: In nobody's use.
    free: int
    #: Given to puts that are under way.
    reserved: int
    #: Of objects that can be read.
    used: int
    #: Of objects that are gone, but that somebody still looks at.
    in_view: int
    #: How many objects can be read.
    objects: int


class Node(NamedTuple):
    """A storage node."""

    #: Its name.
    name: str
    #: Whether it answers.
    is_alive: bool
    #: How full it is, as it last said.
    usage: Usage
    #: `host:port` where other hosts reach it; empty if they do not.
    address: str


class Namespace(NamedTuple):
    """A namespace."""

    #: Its name.
    name: str
    #: How many objects are in it.
    objects: int
    #: How many bytes they have, each object counted once.
    size: int


class Traffic(NamedTuple):
    """How many bytes this store has moved in this process, by the way they went."""

    #: Read from a node inside this process, and written to it.
    local_read: int
    local_written: int
    #: Read from mapped memory of another process of this host, and written to it.
    shared_memory_read: int
    shared_memory_written: int
    #: Read through sockets, and written through them.
    tcp_read: int
    tcp_written: int


class Stats(NamedTuple):
    """What the master knows of the cluster, and what this store did."""

    #: How full all nodes are together.
    usage: Usage
    #: The nodes, those that do not answer included.
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


class Route(NamedTuple):
    """How bytes go to and from a node."""

    #: The node's name.
    node: str
    #: `local`, `shared memory` or `tcp`; `None` while there is no connection.
    way: str | None
    #: Why its memory is not mapped where it is not, or why there is no connection where there is none.
    why: str | None
