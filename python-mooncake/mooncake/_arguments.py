"""Arguments of the methods that are made from tables: their names, defaults and types.

An argument of the wrong type or number is a `TypeError` with Mooncake's text. All other errors of a call
are a code or `None`, which the bodies of the methods return.
"""

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tiffin._native import mooncake as _native

_INT32 = range(-(1 << 31), 1 << 31)
_UINT64 = range(1 << 64)
_REQUIRED = inspect.Parameter.empty
DEFAULT_CONFIG = _native.ReplicateConfig()


class Argument:
    """One argument of a method: its name, its type for readers, a conversion, and a default if it has one."""

    __slots__ = ("convert", "default", "kind", "name", "type")

    def __init__(
        self, name: str, type: str, convert: Callable[[Any], Any], default: Any = _REQUIRED, kind: Any = None
    ) -> None:
        self.name, self.type, self.convert, self.default = name, type, convert, default
        self.kind = kind or inspect.Parameter.POSITIONAL_OR_KEYWORD


def _key(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise TypeError("a key must be valid Unicode text") from None
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise TypeError("a key must be str or bytes")


def _integer(allowed: range) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = operator.index(value)
        if number not in allowed:
            raise TypeError(f"{number} is out of range")
        return number

    return convert


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def convert_all(values: Any) -> list[Any]:
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            # A numpy array or another iterable counts as a list; text does not.
            if isinstance(values, str | bytes | dict):
                raise TypeError("expected a list")
            values = list(values)
        return [convert(value) for value in values]

    return convert_all


def _config(value: Any) -> Any:
    if not isinstance(value, _native.ReplicateConfig):
        raise TypeError("expected a ReplicateConfig")
    return value


def _real_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def _same(value: Any) -> Any:
    return value


def key(name: str = "key") -> Argument:
    return Argument(name, "str", _key)


def keys(name: str = "keys") -> Argument:
    return Argument(name, "list[str]", _each(_key))


def size(name: str) -> Argument:
    return Argument(name, "int", _integer(_UINT64))


def sizes(name: str) -> Argument:
    return Argument(name, "list[int]", _each(_integer(_UINT64)))


def number(name: str, default: int) -> Argument:
    return Argument(name, "int", _integer(_INT32), default)


def config(is_named: bool = False) -> Argument:
    kind = inspect.Parameter.KEYWORD_ONLY if is_named else None
    return Argument("config", "ReplicateConfig", _config, DEFAULT_CONFIG, kind)


def value(name: str, type: str = "object", default: Any = _REQUIRED) -> Argument:
    return Argument(name, type, _same, default)


def _buffer(value: Any) -> Any:
    # Released at once: the call borrows it again.
    memoryview(value).release()
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


def buffer(name: str) -> Argument:
    return Argument(name, "Buffer", _buffer)


def values(name: str) -> Argument:
    return Argument(name, "list[Buffer]", _each(_buffer))


def text(name: str) -> Argument:
    return Argument(name, "str", _text)


def real_list(name: str) -> Argument:
    return Argument(name, "list", _real_list)


def rest(name: str) -> Argument:
    return Argument(name, "object", _same, kind=inspect.Parameter.VAR_POSITIONAL)


def method(name: str, arguments: Sequence[Argument], doc: str, body: Callable[..., Any]) -> Any:
    """A method with these arguments, which calls `body(store, *values)`."""
    places = {argument.name: place for place, argument in enumerate(arguments)}
    count, converts = len(arguments), [argument.convert for argument in arguments]
    defaults = [argument.default for argument in arguments]
    required = max((place + 1 for place, it in enumerate(defaults) if it is _REQUIRED), default=0)
    has_rest = any(argument.kind is inspect.Parameter.VAR_POSITIONAL for argument in arguments)

    def wrong(problem: str) -> TypeError:
        shown = ", ".join(_shown(argument) for argument in arguments)
        return TypeError(
            f"{name}(): incompatible function arguments. The following argument types are supported:\n"
            f"    1. (self: mooncake.store.MooncakeDistributedStore, {shown})\n\n{problem}"
        )

    def bind(args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        if has_rest:
            # Only `(key, *parts, config=…)` has this form.
            args = (*args[:1], args[1:]) if args else args
        if len(args) > count - (1 if has_rest else 0):
            raise wrong(f"{len(args)} positional arguments are too many")
        values = [*args, *defaults[len(args) :]]
        for keyword, given in named.items():
            place = places.get(keyword)
            if place is None or place < len(args):
                raise wrong(f"`{keyword}` is unknown or given twice")
            values[place] = given
        for argument, given in zip(arguments, values, strict=True):
            if given is _REQUIRED:
                raise wrong(f"`{argument.name}` is missing")
        return values

    def call(self: Any, /, *args: Any, **named: Any) -> Any:
        if named or has_rest or not required <= len(args) <= count:
            values = bind(args, named)
        else:
            values = [*args, *defaults[len(args) :]]
        converted: list[Any] = []
        try:
            for given, default, convert in zip(values, defaults, converts, strict=True):
                converted.append(given if given is default else convert(given))
        except TypeError as error:
            raise wrong(f"`{arguments[len(converted)].name}`: {error}") from None
        return body(self, *converted)

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    shown = [inspect.Parameter(it.name, it.kind, default=_default(arguments, it)) for it in arguments]
    call.__name__, call.__doc__ = name, doc
    call.__qualname__, call.__module__ = f"MooncakeDistributedStore.{name}", "mooncake.store"
    call.__signature__ = inspect.Signature([this, *shown])  # type: ignore[attr-defined]
    return call


class _Missing:
    """The default that a signature shows for a required argument behind an optional one."""

    def __repr__(self) -> str:
        return "<required>"


def _default(arguments: Sequence[Argument], argument: Argument) -> Any:
    """The default that a signature shows. Mooncake has a method with a required argument behind an optional
    one, which Python does not permit."""
    if argument.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return _REQUIRED if argument.kind is inspect.Parameter.VAR_POSITIONAL else argument.default
    before = arguments[: arguments.index(argument)]
    is_behind = any(it.default is not _REQUIRED for it in before)
    return _Missing() if argument.default is _REQUIRED and is_behind else argument.default


def _shown(argument: Argument) -> str:
    star = "*" if argument.kind is inspect.Parameter.VAR_POSITIONAL else ""
    default = "" if argument.default is _REQUIRED else f" = {argument.default!r}"
    return f"{star}{argument.name}: {argument.type}{default}"
