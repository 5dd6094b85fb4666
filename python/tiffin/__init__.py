"""A tiered object store for tensors, embedded in this process or reached over a cluster."""

from ._native import __version__

__all__ = ["__version__"]
