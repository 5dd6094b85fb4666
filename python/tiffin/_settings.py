"""The environment variables that give `tiffin.connect` its defaults, each declared once.

They are those of the command `tiffin`. Which store is meant is not among them: TIFFIN_MASTER is for the
command only, so that a program that asks for a store of its own never writes into a cluster by accident.
"""

from __future__ import annotations

import os
import re

from .errors import InvalidArgument

#: The secret that the servers were started with.
TOKEN = "TIFFIN_TOKEN"
#: The namespace of all keys. Unset: `default`.
NAMESPACE = "TIFFIN_NAMESPACE"
#: `on` or `off`: whether memory of this host may be mapped. Unset: `on`.
SHARED_MEMORY = "TIFFIN_CLIENT_SHARED_MEMORY"
#: How long a call may take, such as `10s` or `500ms`. Unset: `10s`.
TIMEOUT = "TIFFIN_TIMEOUT"

#: How long a call may take unless told otherwise, in seconds.
TIMEOUT_DEFAULT = 10.0
#: How much memory a store inside the process has unless told otherwise.
MEMORY_DEFAULT = "1GiB"

_UNITS = {"": 1} | {
    f"{letter}{'i' * is_binary}{'B' * is_long}": (1024 if is_binary else 1000) ** power
    for power, letter in enumerate("KMGTP", 1)
    for is_binary in (True, False)
    for is_long in (True, False)
}
_UNITS["B"] = 1
_TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def text(given: str | None, variable: str) -> str | None:
    """What was given, else what the environment says; an empty variable says nothing."""
    return given if given is not None else os.environ.get(variable) or None


def switch(given: bool | None, variable: str) -> bool:
    """The same for something that is on unless it is switched off."""
    if given is not None:
        return given
    said = os.environ.get(variable) or "on"
    if said not in ("on", "off"):
        raise InvalidArgument(f"{variable}={said!r}\n\nhint: it is `on` or `off`")
    return said == "on"


def seconds(given: float | None, variable: str) -> float:
    """The same for a time, which the environment gives with a unit."""
    if given is not None:
        return given
    said = os.environ.get(variable)
    if not said:
        return TIMEOUT_DEFAULT
    return _measure(said, _TIMES, f"{variable}={said!r} is no time", "such as `10s` or `500ms`")


def size(given: int | str) -> int:
    """A number of bytes.

    >>> size("1GiB"), size("64 MB"), size(4096)
    (1073741824, 64000000, 4096)
    """
    if isinstance(given, str):
        return int(_measure(given, _UNITS, f"{given!r} is no size", "such as `512MiB` or `8GiB`"))
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"a size is a number of bytes or text, not {type(given).__name__}\n\nhint: `8GiB`")
    if given < 0:
        raise InvalidArgument(
            f"a size of {given} bytes\n\nhint: give a number above zero, or text like `8GiB`"
        )
    return given


def _measure(said: str, units: dict, complaint: str, hint: str) -> float:
    match = _NUMBER.fullmatch(said)
    if match is None or match[2] not in units:
        raise InvalidArgument(f"{complaint}\n\nhint: a number and a unit, {hint}")
    return float(match[1]) * units[match[2]]
