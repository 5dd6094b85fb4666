"""Operations and events in TokenSpeed's format: operations that start, and those that have ended on all
ranks.

>>> from tiffin import kv
>>> ended = [kv.Operation(7, "fetch", 1, 6, (6, 4)), kv.Operation(8, "backup", None, 2, (2, -1))]
>>> for event in events(ended, {1: "chat-1"}):
...     print(event)
PrefetchDoneEvent(op_id=7, request_id='chat-1', success=True, completed_pages=4, pages_by_rank=(6, 4))
BackUpDoneEvent(op_id=8, success=False, completed_pages=0, pages_by_rank=(2, 0))
>>> to_payload(event)["kind"]
'BackUpDoneEvent'

Classes and fields have TokenSpeed's names, and request ids are text. Its `cache_event_to_payload`, and its
code that intersects the payloads of several ranks, accept them unchanged. An operation has ended when every
rank has reported its id; the smallest number of pages of any rank counts. A failure is reported, never
dropped: its `success` is false, and none of its pages counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tiffin import kv

if TYPE_CHECKING:
    import numpy  # type: ignore[import-not-found, unused-ignore]

__all__ = [
    "Adapter",
    "BackUpDoneEvent",
    "BackUpOperation",
    "LoadBackDoneEvent",
    "LoadBackOperation",
    "PrefetchDoneEvent",
    "PrefetchOperation",
    "WriteBackDoneEvent",
    "WriteBackOperation",
    "events",
    "operations",
    "to_payload",
]


class PrefetchDoneEvent(NamedTuple):
    """Pages were copied from the store to the host, for this request and for those that joined it."""

    op_id: int
    request_id: str
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class LoadBackDoneEvent(NamedTuple):
    """Pages were copied from the host to the device, for this request."""

    op_id: int
    request_id: str
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class WriteBackDoneEvent(NamedTuple):
    """Pages were copied from the device to the host."""

    op_id: int
    request_id: str
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class BackUpDoneEvent(NamedTuple):
    """Pages were copied from the host to the store; no request waited for them."""

    op_id: int
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class PrefetchOperation(NamedTuple):
    """A copy of pages from the store to these host pages starts."""

    op_id: int
    request_id: str
    hashes: list[bytes]
    dst_pages: numpy.ndarray


class LoadBackOperation(NamedTuple):
    """A copy of pages from these host pages to these device pages starts."""

    op_id: int
    request_id: str
    src_pages: numpy.ndarray
    dst_pages: numpy.ndarray


class WriteBackOperation(NamedTuple):
    """A copy of pages from these device pages to these host pages starts."""

    op_id: int
    request_id: str
    src_pages: numpy.ndarray
    dst_pages: numpy.ndarray


class BackUpOperation(NamedTuple):
    """A copy of pages from these host pages to the store starts, under these hashes."""

    op_id: int
    src_pages: numpy.ndarray
    hashes: list[bytes]


Event = PrefetchDoneEvent | LoadBackDoneEvent | WriteBackDoneEvent | BackUpDoneEvent
Operation = PrefetchOperation | LoadBackOperation | WriteBackOperation | BackUpOperation


def _name(names: Mapping[int, str], request: int | None) -> str:
    return "" if request is None else names.get(request, str(request))


def events(ended: Iterable[kv.Operation], names: Mapping[int, str] | None = None) -> list[Event]:
    """The events of ended operations, in order. `names` maps requests to their names."""
    found: list[Event] = []
    for op in ended:
        by_rank = tuple(max(0, pages) for pages in op.completed)
        success = min(op.completed) >= 0
        completed = op.leading if success else 0
        name = _name(names or {}, op.request)
        if op.kind == "fetch":
            found.append(PrefetchDoneEvent(op.id, name, success, completed, by_rank))
        elif op.kind == "load":
            found.append(LoadBackDoneEvent(op.id, name, success, completed, by_rank))
        elif op.kind == "save":
            found.append(WriteBackDoneEvent(op.id, name, success, completed, by_rank))
        elif op.kind == "backup":
            found.append(BackUpDoneEvent(op.id, success, completed, by_rank))
    return found


def operations(begun: Iterable[kv.Begun], names: Mapping[int, str] | None = None) -> list[Operation]:
    """The operations of a plan that start, in order. `names` maps requests to their names."""
    found: list[Operation] = []
    for op in begun:
        name = _name(names or {}, op.request)
        if op.kind == "fetch":
            found.append(PrefetchOperation(op.id, name, op.hashes, op.targets))
        elif op.kind == "load":
            found.append(LoadBackOperation(op.id, name, op.sources, op.targets))
        elif op.kind == "save":
            found.append(WriteBackOperation(op.id, name, op.sources, op.targets))
        elif op.kind == "backup":
            found.append(BackUpOperation(op.id, op.sources, op.hashes))
    return found


def to_payload(event: Event) -> dict[str, Any]:
    """An event as plain data, for an all-gather: its class as `kind`, and all its fields."""
    return {"kind": type(event).__name__} | event._asdict() | {"pages_by_rank": list(event.pages_by_rank)}


class Adapter:
    """Steps an engine whose requests have text ids, and reports the operations that start and end.

    Requests are submitted with text as their `id`, and `computed`, `finish`, `abort` and `retract` name them
    in the same way; so does the plan.
    """

    def __init__(self, engine: kv.Engine) -> None:
        self.engine = engine
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = 0

    def step(
        self,
        *,
        submit: Iterable[kv.Request] = (),
        computed: Iterable[Any] = (),
        finish: Iterable[str] = (),
        abort: Iterable[str] = (),
        retract: Iterable[str] = (),
        **inputs: Any,
    ) -> tuple[Any, list[Operation], list[Event]]:
        """Like `tiffin.kv.Engine.step`: the plan, the operations that start, and those that have ended."""
        plan = self.engine.step(
            computed=[(self._known(id), *rest) for id, *rest in computed],
            finish=[self._known(id) for id in finish],
            abort=[self._known(id) for id in abort],
            retract=[self._known(id) for id in retract],
            submit=[request._replace(id=self._new(str(request.id))) for request in submit],
            **inputs,
        )
        begun, ended = operations(plan.begun, self._names), events(plan.operations, self._names)
        named = self._named(plan)
        for id, _ in plan.ended:
            self._ids.pop(self._names.pop(id, ""), None)
        return named, begun, ended

    def _new(self, name: str) -> int:
        # A repeated name is the same request, which the engine refuses while it exists.
        if name not in self._ids:
            self._next += 1
            self._ids[name], self._names[self._next] = self._next, name
        return self._ids[name]

    def _known(self, name: str) -> int:
        # The engine refuses requests that were never submitted.
        return self._ids.get(name, 0)

    def _named(self, plan: kv.Plan) -> Any:
        def named(items: Iterable[Any]) -> list[Any]:
            return [it._replace(request=_name(self._names, it.request)) for it in items]

        def first(items: Iterable[tuple[int, Any]]) -> list[Any]:
            return [(_name(self._names, id), more) for id, more in items]

        return plan._replace(
            ready=named(plan.ready),
            granted=named(plan.granted),
            recompute=first(plan.recompute),
            retracted=first(plan.retracted),
            ended=first(plan.ended),
            operations=named(plan.operations),
            begun=named(plan.begun),
        )
