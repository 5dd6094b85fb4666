"""Events as TokenSpeed's scheduler has them: what ended, with the completed pages of every rank.

>>> from tiffin import kv
>>> ended = [kv.Operation(7, "fetch", 1, 6, (6, 4)), kv.Operation(8, "backup", None, 2, (2, -1))]
>>> for event in events(ended):
...     print(event)
PrefetchDone(op_id=7, request_id=1, success=True, completed_pages=4, pages_by_rank=(6, 4))
BackUpDone(op_id=8, success=False, completed_pages=0, pages_by_rank=(2, 0))

An operation has ended when every rank has said so, by its id, and what counts is the least that any rank
has. A failure is told, never dropped: its `success` is false, and none of its pages counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tiffin import kv

__all__ = ["Adapter", "BackUpDone", "PrefetchDone", "WriteBackDone", "events"]


class PrefetchDone(NamedTuple):
    """Pages came from the store into the host, for this request and for whoever joined it."""

    op_id: int
    request_id: int | None
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class WriteBackDone(NamedTuple):
    """Pages went from the device into the host."""

    op_id: int
    request_id: int | None
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


class BackUpDone(NamedTuple):
    """Pages went from the host into the store; nobody waited for it."""

    op_id: int
    success: bool
    completed_pages: int
    pages_by_rank: tuple[int, ...]


Event = PrefetchDone | WriteBackDone | BackUpDone


def events(operations: Iterable[kv.Operation]) -> list[Event]:
    """The events of operations that have ended, in order."""
    told: list[Event] = []
    for op in operations:
        by_rank = tuple(max(0, pages) for pages in op.completed)
        success = min(op.completed) >= 0
        completed = op.leading if success else 0
        if op.kind == "fetch":
            told.append(PrefetchDone(op.id, op.request, success, completed, by_rank))
        elif op.kind == "save":
            told.append(WriteBackDone(op.id, op.request, success, completed, by_rank))
        elif op.kind == "backup":
            told.append(BackUpDone(op.id, success, completed, by_rank))
    return told


class Adapter:
    """Steps an engine, and gives its plan with the events of the step."""

    def __init__(self, engine: kv.Engine) -> None:
        self.engine = engine

    def step(self, **told: Any) -> tuple[kv.Plan, list[Event]]:
        """As `tiffin.kv.Engine.step`, and what ended."""
        plan = self.engine.step(**told)
        return plan, events(plan.operations)
