"""What the classes and services beside the store need of it."""

import threading
import time
from typing import Any

from mooncake._codes import INVALID

_RETRY_SECONDS = 1.0


def set_up(store: Any, settings: Any, seconds: float, stopped: threading.Event) -> bool:
    """Set a store up, trying again until the time is over, because its master may start later.

    `False` if it was stopped, if the time is over, or if the settings are invalid, which no wait mends.
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
    """The store that is given, or inside a wrapper that is given; `None` for none."""
    # The module of the store imports this one.
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
