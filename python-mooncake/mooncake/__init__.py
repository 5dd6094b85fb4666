"""The package `mooncake`, served by Tiffin.

Code written for Mooncake's store runs unchanged:

>>> from mooncake.store import MooncakeDistributedStore, ReplicateConfig
>>> store = MooncakeDistributedStore()
>>> store.health_check()
1
"""

from mooncake import _conflicts

_conflicts.check(__path__)

from mooncake.store import (  # noqa: E402
    BufferHandle,
    BufferPool,
    MooncakeDistributedStore,
    RegisteredBufferPool,
    ReplicateConfig,
)

__all__ = [
    "BufferHandle",
    "BufferPool",
    "MooncakeDistributedStore",
    "RegisteredBufferPool",
    "ReplicateConfig",
]
