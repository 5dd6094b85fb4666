"""Helpers for the classes and services beside the store."""

import threading
import time
from typing import Any

from mooncake._codes import INVALID

_RETRY_SECONDS = 1.0


def set_up(store: Any, settings: Any, seconds: float, stopped: threading.Event) -> bool:
    """Set up a store, and retry until the time limit, because its master may start later.

    Returns `False` if it was stopped, at the time limit, or if the settings are invalid, which no retry
    changes.
    """
    deadline = time.monotonic() + seconds
    while not stopped.is_set():
        code = store.setup(settings)
        if code == 0:
            return True
        if code == INVALID or time.monotonic() + _RETRY_SECONDS > deadline:
            return False
        stopped.wait(_RETRY_SECONDS)
    return False


def find(store: Any, user: str) -> Any:
    """The given store, or the store inside the given wrapper; `None` for none."""
    # The store's module imports this one.
    from mooncake.store import MooncakeDistributedStore

    if store is None or isinstance(store, MooncakeDistributedStore):
        return store
    try:
        inner = store._get_pyclient_capsule()
    except AttributeError:
        inner = store
    if inner is None or isinstance(inner, MooncakeDistributedStore):
        return inner
    raise RuntimeError(
        f"{user} store parameter must be a PyClient or store wrapper that implements _get_pyclient_capsule()"
    )
