"""The KV-cache hierarchy: device pages, host pages, a shared store, and one engine that an inference loop
steps.

>>> import numpy as np, tiffin
>>> from tiffin import kv
>>> device = np.zeros((8, 1024), np.uint8)                 # 8 pages that the model computes in
>>> store = tiffin.connect(memory="64MiB")
>>> engine = kv.Engine(device, page_tokens=4, host_pages=16, store=store, threshold_pages=0)
>>> prompt = list(range(9))
>>> plan = engine.step(submit=[kv.Request(1, prompt)])
>>> while not plan.ready and engine.wait(5):               # it asks the store first
...     plan = engine.step()
>>> ready = plan.ready[0]
>>> ready.cached.total, ready.pages.dtype, len(ready.pages)
(0, dtype('int32'), 3)
>>> for page in ready.pages:
...     device[page] = 7                                   # one pass of the model
>>> plan = engine.step(computed=[kv.Computed(1, 9)], finish=[1])
>>> while not plan.ended and engine.wait(5):
...     plan = engine.step()
>>> plan.ended
[(1, 'finished')]
>>> engine.match(prompt)
Match(device=2, host=2, coming=2)
>>> engine.close()
True

One call of `step` reports all events to the engine and returns all actions. It releases the interpreter and
never waits for I/O. Threads of the engine move pages between `device`, `host` and `store`. `docs/kv.md`
states the guarantees.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

try:
    import numpy  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError(
        "tiffin.kv needs numpy, which is not installed\n\nhint: `pip install 'tiffin[numpy]'`"
    ) from error

from . import _native
from .errors import Error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Begun",
    "Cached",
    "Computed",
    "Engine",
    "Grant",
    "Match",
    "Media",
    "Namespace",
    "Operation",
    "Plan",
    "Ready",
    "Request",
    "Settings",
    "chain",
    "local_group",
    "names",
    "replay",
]

#: The bytes of a page's hash.
_HASH_BYTES = 16
#: The kind of device of CUDA memory, as DLPack writes it.
_KIND_CUDA = 2
#: The part of every page that this rank keeps: (rank, ranks) of tensor, pipeline and context parallelism.
RankPart = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


class Settings(TypedDict, total=False):
    """The settings of an engine, for type checkers. The engine declares them: `docs/kv-settings.md`."""

    page_tokens: int
    threshold_pages: int
    start: str
    stop: str
    stop_base: float
    stop_per_page: float
    stop_most: float
    index: str
    eviction: str
    write: str
    probes: int
    fetch_pages: int
    save_pages: int
    backup_pages: int
    running_max: int
    op_pages_max: int
    op_timeout: float
    hint_interval: float
    cooldown: float
    events: bool


class Namespace(NamedTuple):
    """Everything except tokens, media and ranks that changes the bytes of a page."""

    model: str = ""
    revision: str = ""
    weight_version: int = 0
    dtype: str = ""
    layout: str = ""
    tenant: str = ""
    lora: str = ""
    salt: str = ""


class Media(NamedTuple):
    """An input other than a token that changes the pages after it: its position and a digest."""

    at: int
    content: bytes


class Request(NamedTuple):
    """A request: its tokens, or the hashes of its full pages and the number of its tokens.

    `timeout` is the maximum number of seconds that it waits for the store, if the policy would wait longer.
    """

    id: int
    tokens: Any = ()
    priority: int = 0
    namespace: int = 0
    media: Sequence[tuple[int, bytes]] = ()
    timeout: float | None = None
    hashes: Sequence[bytes] | None = None
    length: int = 0


class Computed(NamedTuple):
    """The tokens of a request before `upto` are in its pages, and the given tokens were generated since."""

    request: int
    upto: int
    generated: Any = ()


class Cached(NamedTuple):
    """Tokens that need not be computed, by the tier of their pages."""

    device: int
    host: int
    store: int

    @property
    def total(self) -> int:
        return self.device + self.host + self.store


class Loading(NamedTuple):
    """Pages of a request are being loaded. It becomes ready with these cached tokens and pages if all arrive.

    The model may compute it at once on a stream that waits for each layer: see `Engine.wait_layer`.
    """

    request: int
    cached: Cached
    pages: numpy.ndarray


class Ready(NamedTuple):
    """A request may be computed, in these device pages (`int32`, in order, for all its tokens)."""

    request: int
    cached: Cached
    pages: numpy.ndarray


class Grant(NamedTuple):
    """A request gets these device pages in addition to those that it has."""

    request: int
    pages: numpy.ndarray


class Operation(NamedTuple):
    """An operation that has ended on every rank: the number of pages that each completed, or -1 for a
    failure."""

    id: int
    kind: str
    request: int | None
    pages: int
    completed: tuple[int, ...]

    @property
    def leading(self) -> int:
        """The number of leading pages that every rank has."""
        return max(0, min(self.completed))


class Begun(NamedTuple):
    """An operation that starts, and the pages that it copies.

    A `fetch` copies pages from the store into host pages, a `load` from the host to the device, a `save` from
    the device to the host, a `backup` from the host to the store. `sources` and `targets` are `int32` arrays;
    the side of the store is empty.
    """

    id: int
    kind: str
    request: int | None
    hashes: list[bytes]
    sources: numpy.ndarray
    targets: numpy.ndarray


class Plan(NamedTuple):
    """The result of a step."""

    #: Requests that may be computed.
    ready: list[Ready]
    #: Pages for the next tokens.
    granted: list[Grant]
    #: (request, token): pages that the store had reported did not arrive; compute from that token on.
    recompute: list[tuple[int, int]]
    #: (request, reason): it was removed from the device, and becomes ready again by itself.
    retracted: list[tuple[int, str]]
    #: (request, "finished", "aborted" or "too-long").
    ended: list[tuple[int, str]]
    #: Inputs that were rejected, and why.
    refused: list[str]
    #: (tier, namespace, hash): copies that can be matched from now on; only with `events`.
    stored: list[tuple[str, int, bytes]]
    #: The same for copies that were removed.
    removed: list[tuple[str, int, bytes]]
    #: Operations that have ended.
    operations: list[Operation]
    #: Operations that this step has started.
    begun: list[Begun]
    #: Requests whose pages are being loaded: each is named again when it is ready, retracted or ended.
    loading: list[Loading]


class Match(NamedTuple):
    """The length of a cached prefix in pages: on the device, plus the host, plus fetches in progress."""

    device: int
    host: int
    coming: int


class Engine:
    """The control plane of a KV hierarchy, and the threads that move its pages.

    `device` is the memory that the model computes in: an array or a tensor in host memory with a row for
    each page. It is used in place, and kept until no operation uses it any more.

    On a CUDA device it is an array with a row for each page, or a list with such an array for each layer.
    Arrays have `__cuda_array_interface__` or DLPack and are contiguous. A page in the host is its rows of all
    layers, in their order. `stream` is the stream on which the model computes: a handle or an object, such
    as `torch.cuda.current_stream()`; `None` is the default stream. What that stream has when `step` is
    called comes before the operations that the step starts. Pages that a plan returns as ready can be used
    on any stream. With `layer_groups`, loads are queued in so many groups of layers, and `wait_layer` lets a
    stream wait for one layer.

    Alternatively it is an object with `load(host_pages, device_pages)` and `save(device_pages,
    host_pages)`. They take `int32` arrays, are called on threads of the engine, and return the number of
    pages that they have copied (`None` for all). Its size is then `device_pages` and `page_bytes`.

    `host` is memory of the same form, or `host_pages` is the number of pages that the engine allocates.
    Sizes that are given beside an array must be its own.
    `store` is a `tiffin.Store`, or any object with the batched calls of Mooncake's
    `MooncakeDistributedStore` (`batch_is_exist`, `batch_get_into`, `batch_put_from`, `register_buffer`), or
    `None`.

    `namespace` identifies the contents of the pages. `define` changes it, and pages of the old namespace
    become unreachable. With `start="hits"`, the default, a fetch starts if the store has more than
    `threshold_pages` of the leading missing pages. With `start="missing"` it starts if at least that many
    are missing here, however many of them the store has. The other `settings` are sizes, times and
    policies: `docs/kv-settings.md` lists them with their defaults. Times are in seconds.

    Tensor- or pipeline-parallel ranks have an engine each. All get the same inputs in the same order, and
    step equally often. `gather` takes this rank's bytes and returns those of all ranks, in order: one call
    per step. `rank_part` is the part of every page that this rank keeps.
    """

    def __init__(
        self,
        device: Any,
        *,
        device_pages: int | None = None,
        page_bytes: int | None = None,
        host: Any = None,
        host_pages: int | None = None,
        store: Any = None,
        namespace: Namespace = Namespace(),  # noqa: B008
        ranks: int = 1,
        rank: int = 0,
        rank_part: RankPart | None = None,
        gather: Callable[[bytes], Sequence[bytes]] | None = None,
        compare_every: int = 0,
        stream: Any = None,
        layer_groups: int = 1,
        **settings: Unpack[Settings],
    ) -> None:
        layers = _layers(device)
        if stream is not None and layers is None:
            raise ValueError("`stream` is given without arrays of a CUDA device\n\nhint: omit it")
        if layer_groups < 1 or (layer_groups > 1 and layers is None):
            hint = "give 1, or arrays of a CUDA device and at most as many groups as layers"
            raise ValueError(f"layer_groups={layer_groups}\n\nhint: {hint}")
        if layers is not None:
            device = _native.KvLayers(layers, stream, min(layer_groups, max(1, len(layers))))
            device_pages = _agreed("device_pages", device_pages, device.pages)
            page_bytes = _agreed("page_bytes", page_bytes, device.page_bytes)
        elif hasattr(device, "load") and hasattr(device, "save"):
            if device_pages is None or page_bytes is None:
                raise ValueError(
                    "a device with `load` and `save` needs a size\n\n"
                    "hint: give `device_pages` and `page_bytes`"
                )
            device = _Device(device)
        else:
            pages, row_bytes = _pages(device, "device")
            device_pages = _agreed("device_pages", device_pages, pages)
            page_bytes = _agreed("page_bytes", page_bytes, row_bytes)
        if host is not None:
            pages, host_bytes = _pages(host, "host")
            host_pages = _agreed("host_pages", host_pages, pages)
            if host_bytes != page_bytes:
                raise ValueError(
                    f"a page has {page_bytes} bytes on the device and {host_bytes} in the host\n\n"
                    "hint: give both rows of one size"
                )
        shape = SimpleNamespace(
            device_pages=device_pages,
            host_pages=host_pages or 0,
            has_store=store is not None,
            ranks=ranks,
            rank=rank,
            compare_every=compare_every,
        )
        _check_counts(**vars(shape), **settings, page_bytes=page_bytes)
        self.page_tokens: int = int(settings.get("page_tokens", _native.kv_settings()["page_tokens"]))
        self._native = _native.KvEngine(
            shape,
            dict(settings),
            page_bytes=page_bytes,
            device=device,
            host=host,
            store=store,
            exist_options=_exist_options(store),
            rank_part=rank_part or ((rank, ranks), (0, 1), (0, 1)),
            gather=gather,
        )
        self._define: list[tuple[int, Namespace]] = [(0, namespace)]
        self._clear: list[int] = []

    def define(self, namespace: Namespace, id: int = 0) -> None:
        """Define a namespace from the next step on. Another content, such as new weights, makes every page
        of the old one unreachable at once. Requests in computation leave the device and become ready again.
        """
        self._define.append((id, namespace))

    def clear(self, id: int = 0) -> None:
        """From the next step on, no page of this namespace is valid, in the store either."""
        self._clear.append(id)

    def step(
        self,
        *,
        submit: Iterable[Request] = (),
        computed: Iterable[Computed | tuple[Any, ...]] = (),
        finish: Iterable[int] = (),
        abort: Iterable[int] = (),
        retract: Iterable[int] = (),
        vanished: Iterable[tuple[int, str, Sequence[bytes]]] = (),
        pressure: Iterable[tuple[str, str]] = (),
    ) -> Plan:
        """Run one step: report events, start operations, and return the actions for the caller.

        Call it between two passes of the model. The engine applies `computed` of all requests first, then
        `finish`, `abort`, `retract`, the rest, and `submit`. The caller applies `retracted`, `ready` and
        `granted`, in this order. A `vanished` is (namespace, "device", "host" or "store", hashes). A
        `pressure` is a place and "calm", "tight" or "full". Invalid inputs are in `refused`, and change
        nothing.
        """
        inputs = SimpleNamespace(
            define=[(id, tuple(namespace)) for id, namespace in self._define],
            clear=self._clear,
            vanished=[(id, place, list(hashes)) for id, place, hashes in vanished],
            pressure=list(pressure),
            computed=[_computed(*it) for it in computed],
            finish=list(finish),
            abort=list(abort),
            retract=list(retract),
            submit=[_submission(request) for request in submit],
        )
        plan = self._native.step(inputs)
        self._define, self._clear = [], []
        ready, granted, recompute, retracted, ended, refused, stored, removed, *rest = plan
        operations, begun, loading = rest
        return Plan(
            [Ready(id, Cached(*cached), _ids(pages)) for id, cached, pages in ready],
            [Grant(id, _ids(pages)) for id, pages in granted],
            recompute,
            retracted,
            ended,
            refused,
            stored,
            removed,
            [Operation(id, kind, of, pages, tuple(by)) for id, kind, of, pages, by in operations],
            [_begun(id, kind, of, *pages) for id, kind, of, pages in begun],
            [Loading(id, Cached(*cached), _ids(pages)) for id, cached, pages in loading],
        )

    def wait(self, timeout: float) -> bool:
        """Wait until a step has work: an operation has ended, or a time limit has passed. Returns whether
        there is work."""
        return self._native.wait(timeout)

    def wait_layer(self, layer: int, *, stream: Any = None, timeout: float = 60.0) -> None:
        """Let later work of a stream come after the rows of a layer, in all loads that have not ended.

        `stream` is that of the model if it is not given. The device waits, not the caller: this returns when
        the copies of the layer are queued. With `layer_groups=1`, and until the host's pages are registered,
        it returns when the loads have ended. Raises `tiffin.Timeout` at the time limit; then the stream may
        not wait for all of them.

        It allows to compute a request of `plan.loading` while its pages are loaded: call it for each layer
        before the work that reads the layer. The results count if the request is `ready` afterwards with as
        many cached tokens. Otherwise pages did not arrive, and it is computed again.
        """
        self._native.wait_layer(layer, stream, timeout)

    def match(self, tokens: Any, *, namespace: int = 0, media: Sequence[tuple[int, bytes]] = ()) -> Match:
        """The length of a cached prefix. It changes nothing, and does not ask the store."""
        return Match(*self._native.match(namespace, _tokens(tokens), _media(media)))

    def pages(self, request: int) -> numpy.ndarray | None:
        """The device pages of a request in computation."""
        table = self._native.block_table(request)
        return None if table is None else _ids(table)

    def state(self, request: int) -> str | None:
        """The state of a request, if the engine has it."""
        return self._native.state(request)

    def stats(self) -> dict[str, Any]:
        """Counters: events of the engine, pages by use, pages moved by kind of operation."""
        return self._native.stats()

    def digest(self) -> int:
        """A digest of the state. Engines with equal digests make equal decisions."""
        return self._native.digest()

    def check(self) -> None:
        """Check the invariants of `docs/kv.md`, and raise an error if one is violated."""
        if violation := self._native.check():
            raise Error(f"{violation}\n\nhint: this is a bug; please report it")

    def close(self, timeout: float = 10.0) -> bool:
        """Close the engine: wait for backups, and stop all other operations. Returns whether all of them
        have ended in time. Memory is kept until no operation uses it. Closing twice is harmless."""
        return self._native.close(timeout)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def replay(trace: str | os.PathLike[str] | None = None, **options: Any) -> dict[str, Any]:
        """See `tiffin.kv.replay`."""
        return replay(trace, **options)


def replay(trace: str | os.PathLike[str] | None = None, **options: Any) -> dict[str, Any]:
    """Run a trace through the engine in virtual time, like `tiffin kv replay`, and return its report.

    The options are those of the command, with `_` for `-`: `device_pages=1000`, `l3="infinite"`,
    `generate=10_000` instead of a trace; `policy` may be a list.

    >>> report = replay(generate=200, seed=7, device_pages=100, host_pages=1000, policy=["write=through"])
    >>> report["policies"][0]["policy"]["requests"]
    200
    """
    arguments = [] if trace is None else [os.fspath(trace)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            arguments += [flag, str(each)]
    report: dict[str, Any] = json.loads(_native.kv_replay(arguments))
    return report


def chain(
    tokens: Any,
    *,
    page_tokens: int = 64,
    namespace: Namespace = Namespace(),  # noqa: B008
    media: Sequence[tuple[int, bytes]] = (),
) -> tuple[bytes, list[bytes]]:
    """The root of a namespace, and the hashes of the full pages among these tokens.

    >>> root, hashes = chain(range(9), page_tokens=4, namespace=Namespace("m"))
    >>> len(root), len(hashes), hashes == chain(range(8), page_tokens=4, namespace=Namespace("m"))[1]
    (16, 2, True)
    """
    return _native.kv_chain(namespace, page_tokens, _tokens(tokens), _media(media))


def names(root: bytes, hashes: Sequence[bytes], rank_part: RankPart = ((0, 1), (0, 1), (0, 1))) -> list[str]:
    """The keys of these pages of a rank in a shared store.

    >>> root, hashes = chain(range(9), page_tokens=4)
    >>> [name.startswith("kv1/") for name in names(root, hashes)]
    [True, True]
    """
    return _native.kv_names(root, rank_part, list(hashes))


def local_group(ranks: int, timeout: float = 60.0) -> list[Callable[[bytes], list[bytes]]]:
    """The `gather` functions of ranks that are threads of this process.

    >>> group = local_group(2)
    >>> other = threading.Thread(target=group[1], args=(b"1",))
    >>> other.start()
    >>> group[0](b"0")
    [b'0', b'1']
    """
    words: list[bytes] = [b""] * ranks
    barrier = threading.Barrier(ranks)

    def member(rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(word: bytes) -> list[bytes]:
            words[rank] = word
            barrier.wait(timeout)
            gathered = list(words)
            # No rank writes its next value before all ranks have read this one.
            barrier.wait(timeout)
            return gathered

        return gather

    return [member(rank) for rank in range(ranks)]


class _Device:
    """An adapter for the user's device, which receives page ids as arrays."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def load(self, host_pages: bytes, device_pages: bytes) -> int | None:
        loaded: int | None = self._device.load(_ids(host_pages), _ids(device_pages))
        return loaded

    def save(self, device_pages: bytes, host_pages: bytes) -> int | None:
        saved: int | None = self._device.save(_ids(device_pages), _ids(host_pages))
        return saved


def _exist_options(store: Any) -> Any:
    """The option with which a probe of a Mooncake store prefetches, if the store has it."""
    module = sys.modules.get(type(store).__module__)
    options = getattr(module, "ExistOptions", None)
    return None if options is None else options(prefetch_to_memory=True)


#: The maximum number of pages, tokens or bytes of a page.
_COUNT_MAX = 2**32 - 1


def _check_counts(**settings: Any) -> None:
    """Reject integers out of range."""
    for name, value in settings.items():
        if isinstance(value, int) and not 0 <= value <= _COUNT_MAX:
            raise ValueError(f"{name}={value}\n\nhint: give a number between 0 and {_COUNT_MAX}")


def _layers(device: Any) -> list[Any] | None:
    """The arrays of a CUDA device; `None` if the device is something else."""
    if isinstance(device, (list, tuple)):
        return list(device)
    if hasattr(device, "__cuda_array_interface__"):
        return [device]
    of_array = getattr(device, "__dlpack_device__", None)
    return [device] if of_array is not None and of_array()[0] == _KIND_CUDA else None


def _pages(memory: Any, what: str) -> tuple[int, int]:
    """The number of pages of an array, and the bytes of each."""
    shape, nbytes = getattr(memory, "shape", None), getattr(memory, "nbytes", None)
    if not shape or nbytes is None or shape[0] == 0:
        raise ValueError(
            f"`{what}` is not an array with a row for each page\n\n"
            "hint: give one like `numpy.zeros((pages, page_bytes), 'u1')`"
        )
    return int(shape[0]), int(nbytes) // int(shape[0])


def _agreed(name: str, given: int | None, size: int) -> int:
    """The size of an array, if no other size was given with it."""
    if given not in (None, size):
        raise ValueError(
            f"{name}={given}, but that of the given memory is {size}\n\n"
            f"hint: omit `{name}`, or give memory of that size"
        )
    return size


def _ids(pages: bytes) -> numpy.ndarray:
    return numpy.frombuffer(pages, "<i4")


def _media(media: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return [(at, digest) for at, digest in media]


def _tokens(tokens: Any) -> bytes:
    if isinstance(tokens, (range, list, tuple)) or hasattr(tokens, "__array__"):
        ids: numpy.ndarray = numpy.asarray(tokens, dtype="<u4")
    else:
        ids = numpy.fromiter(tokens, dtype="<u4")
    data: bytes = ids.tobytes()
    return data


def _begun(id: int, kind: str, request: int | None, hashes: bytes, sources: bytes, targets: bytes) -> Begun:
    names = [hashes[at : at + _HASH_BYTES] for at in range(0, len(hashes), _HASH_BYTES)]
    return Begun(id, kind, request, names, _ids(sources), _ids(targets))


def _computed(request: int, upto: int, generated: Any = ()) -> tuple[int, int, bytes]:
    return request, upto, _tokens(generated)


def _submission(request: Request) -> tuple[Any, ...]:
    hashes = None if request.hashes is None else list(request.hashes)
    tokens = _tokens(request.tokens) if hashes is None else None
    return (
        request.id,
        request.namespace,
        tokens,
        _media(request.media),
        hashes,
        request.length,
        request.priority,
        request.timeout,
    )
