"""`ParallelAxis`, `TensorParallelism` and `ReadTarget`: how a tensor is cut into shards.

Objects of other classes with the same attributes are accepted too, as in Mooncake.
"""

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

from mooncake._tensor_format import AXES_MAX, KINDS, Axis

MODES = ("as_stored", "shard", "full")
_INT32 = range(-(1 << 31), 1 << 31)


def _integer(value: Any) -> int:
    number = operator.index(value)
    if number not in _INT32:
        raise TypeError(f"{number} does not fit 32 bits")
    return number


def _optional(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value


def _mode(value: Any) -> str:
    mode = _text(value).lower()
    if mode not in MODES:
        raise RuntimeError("Unsupported ReadTarget mode")
    return mode


class _Plain:
    """Attributes with types; no comparison, copies or pickles, as in Mooncake."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__name__}' object")


def _attribute(name: str, convert: Any, doc: str) -> property:
    slot = f"_{name}"

    def get(self: Any) -> Any:
        return getattr(self, slot)

    def set(self: Any, value: Any) -> None:
        setattr(self, slot, convert(value))

    return property(get, set, doc=doc)


class ParallelAxis(_Plain):
    """One axis of parallelism: the part of this rank, and the number of parts."""

    __slots__ = ("_expert_id", "_kind", "_rank", "_size", "_split_dim", "_stage_id")

    kind = _attribute("kind", _text, '"tp", "dp", "ep" or "pp".')
    rank = _attribute("rank", _integer, "The index of the part, from 0.")
    size = _attribute("size", _integer, "The number of parts.")
    split_dim = _attribute("split_dim", _optional, "The dimension that is cut; only for tp.")
    expert_id = _attribute("expert_id", _optional, "The expert; needed for ep.")
    stage_id = _attribute("stage_id", _optional, "The stage; needed for pp.")

    def __init__(self) -> None:
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim = self.expert_id = self.stage_id = None


def _copied(axis: Any) -> ParallelAxis:
    if not isinstance(axis, ParallelAxis):
        raise TypeError(f"expected a ParallelAxis, not {type(axis).__name__}")
    made = ParallelAxis()
    for slot in ParallelAxis.__slots__:
        setattr(made, slot, getattr(axis, slot))
    return made


class TensorParallelism(_Plain):
    """The axes of a shard. Assigned axes are copied; the elements of `axes` can be changed in place."""

    __slots__ = ("_axes",)

    def __init__(self) -> None:
        self._axes: list[ParallelAxis] = []

    @property
    def axes(self) -> list[ParallelAxis]:
        """The axes, as a new list."""
        return list(self._axes)

    @axes.setter
    def axes(self, axes: Iterable[ParallelAxis]) -> None:
        if isinstance(axes, str | bytes):
            raise TypeError("expected a list of ParallelAxis")
        self._axes = [_copied(axis) for axis in axes]


def _copied_parallelism(value: Any) -> TensorParallelism | None:
    if value is None:
        return None
    if not isinstance(value, TensorParallelism):
        raise TypeError(f"expected a TensorParallelism, not {type(value).__name__}")
    made = TensorParallelism()
    made.axes = value.axes
    return made


class ReadTarget(_Plain):
    """The result of reading a sharded tensor: the stored object, one shard, or the whole tensor."""

    __slots__ = ("_mode", "_parallelism")

    mode = _attribute("mode", _mode, '"as_stored", "shard" or "full".')
    parallelism = _attribute("parallelism", _copied_parallelism, "The shard, or how the whole was cut.")

    def __init__(self) -> None:
        self.mode, self.parallelism = "as_stored", None


for _class in (ParallelAxis, TensorParallelism, ReadTarget):
    _class.__module__ = "mooncake.store"


class Invalid(Exception):
    """An invalid parallelism, partition or target."""


def _cast(value: Any, kind: str) -> Any:
    """An attribute of an object of another class."""
    try:
        return _text(value) if kind == "str" else _optional(value) if kind == "optional" else _integer(value)
    except TypeError:
        raise RuntimeError(
            f"Unable to cast Python instance of type {type(value)} to C++ type "
            f"'{'std::string' if kind == 'str' else 'int'}'"
        ) from None


def axes_of(parallelism: Any) -> tuple[Axis, ...]:
    """The axes of a valid parallelism. Raises `Invalid` otherwise."""
    if not hasattr(parallelism, "axes"):
        raise Invalid
    axes = []
    for axis in parallelism.axes:
        axes.append(
            Axis(
                _cast(axis.kind, "str").lower(),
                _cast(axis.rank, "int"),
                _cast(axis.size, "int"),
                _cast(axis.split_dim, "optional"),
                _cast(axis.expert_id, "optional"),
                _cast(axis.stage_id, "optional"),
            )
        )
    if not 1 <= len(axes) <= AXES_MAX or len({axis.kind for axis in axes}) != len(axes):
        raise Invalid
    if not all(_is_valid(axis) for axis in axes):
        raise Invalid
    return tuple(axes)


def _is_valid(axis: Axis) -> bool:
    return (
        axis.kind in KINDS
        and 0 <= axis.rank < axis.size
        and (axis.split_dim is not None) == (axis.kind == "tp")
        and (axis.kind != "ep" or axis.expert_id is not None)
        and (axis.kind != "pp" or axis.stage_id is not None)
    )


def partition_axis(partition: Any) -> Axis:
    """A writer's partition as an axis. Raises `Invalid` if it has no such attributes."""
    if not all(hasattr(partition, name) for name in ("rank", "size", "split_dim")):
        raise Invalid
    numbers = [_cast(getattr(partition, name), "int") for name in ("rank", "size", "split_dim")]
    axis = Axis("tp", *numbers)
    if not 0 <= axis.rank < axis.size:
        raise Invalid
    return axis


def target_of(target: Any) -> tuple[str, Any]:
    """The mode and the parallelism of a target. Raises `Invalid` if it is not a target."""
    if target is None:
        return "as_stored", None
    if not hasattr(target, "mode") or not hasattr(target, "parallelism"):
        raise Invalid
    mode = target.mode
    if not isinstance(mode, str) or mode.lower() not in MODES:
        raise Invalid
    return mode.lower(), target.parallelism
