"""What the classes beside the store need of it."""

from typing import Any


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
