"""Walks through the objects of a store page by page, for `Store.scan` and its asyncio twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from .types import ObjectInfo


def scan(
    store: Any, prefix: str | bytes, pinned_by: str | None, timeout: float | None
) -> Iterator[ObjectInfo]:
    """Ask for the next page when the last one is used up."""
    cursor = 0
    while True:
        page, cursor = store._page(prefix, pinned_by, cursor, timeout=timeout)
        yield from page
        if not cursor:
            return


def keys(store: Any) -> Iterator[str | bytes]:
    """Iterate over the keys of all objects."""
    return (info.key for info in scan(store, "", None, None))


async def scan_async(
    store: Any, prefix: str | bytes, pinned_by: str | None, timeout: float | None
) -> AsyncIterator[ObjectInfo]:
    """Do the same as `scan`, in an event loop."""
    cursor = 0
    while True:
        page, cursor = await store._page(prefix, pinned_by, cursor, timeout=timeout)
        for info in page:
            yield info
        if not cursor:
            return
