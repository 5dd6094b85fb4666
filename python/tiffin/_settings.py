"""The environment variables with the defaults of `tiffin.connect`, each declared once.

They are those of the command `tiffin`, except TIFFIN_MASTER: the address is never a default, so that a
program that wants a store of its own never writes into a cluster by accident.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping

from ._native import trace_endpoint_problem
from .errors import InvalidArgument

#: The token that servers require.
TOKEN = "TIFFIN_TOKEN"
#: A file that contains it.
TOKEN_FILE = "TIFFIN_TOKEN_FILE"
#: The CA of servers; with one, TCP connections are encrypted.
TLS_CA = "TIFFIN_TLS_CA"
#: The certificate that is shown to servers that ask.
TLS_CERT = "TIFFIN_TLS_CERT"
#: Its key.
TLS_KEY = "TIFFIN_TLS_KEY"
#: The CA of etcd; with one, etcd is reached with TLS.
ETCD_CA = "TIFFIN_ETCD_CA"
#: The certificate that etcd is shown.
ETCD_CERT = "TIFFIN_ETCD_CERT"
#: Its key.
ETCD_KEY = "TIFFIN_ETCD_KEY"
#: A file with user and password of etcd, as `NAME:PASSWORD`.
ETCD_CREDENTIALS_FILE = "TIFFIN_ETCD_CREDENTIALS_FILE"
#: The namespace of all keys. Unset: `default`.
NAMESPACE = "TIFFIN_NAMESPACE"
#: `on` or `off`: whether memory of this host may be mapped. Unset: `on`.
SHARED_MEMORY = "TIFFIN_CLIENT_SHARED_MEMORY"
#: The time limit of a call, such as `10s` or `500ms`. Unset: `10s`.
TIMEOUT = "TIFFIN_TIMEOUT"

#: The collector that receives spans by OTLP over HTTP, such as `http://127.0.0.1:4318`, or `off`. Unset:
#: that of OpenTelemetry's own variables.
TRACE_ENDPOINT = "TIFFIN_TRACE_ENDPOINT"
#: The name of this process in traces. Unset: `tiffin-client`.
SERVICE_NAME = "OTEL_SERVICE_NAME"

#: The default time limit of a call, in seconds.
TIMEOUT_DEFAULT = 10.0
#: The default memory of a store inside the process.
MEMORY_DEFAULT = "1GiB"

#: The maximum length of a token file, in bytes.
TOKEN_BYTES_MAX = 4096
#: The maximum size, in bytes.
SIZE_MAX = 2**64 - 1

_UNITS: dict[str, float] = {"": 1} | {
    f"{letter}{'i' * is_binary}{'B' * is_long}": (1024 if is_binary else 1000) ** power
    for power, letter in enumerate("KMGTP", 1)
    for is_binary in (True, False)
    for is_long in (True, False)
}
_UNITS["B"] = 1
_TIMES: dict[str, float] = {
    "": 1.0,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def address(given: str | None) -> str | None:
    """The address, as text; `None` is a store inside this process.

    >>> address("localhost:7400")
    'localhost:7400'
    """
    if given is None or isinstance(given, str):
        return given
    example = f'"127.0.0.1:{given}"' if isinstance(given, int) else '"host:port"'
    raise TypeError(
        f"an address must be text, not {type(given).__name__}\n\n"
        f"hint: give host and port, as in `connect({example})`; without an address the store is inside this "
        "process"
    )


def text(given: str | None, variable: str, name: str = "") -> str | None:
    """The argument of this name, or the environment variable unless that is empty."""
    if given is None:
        return os.environ.get(variable) or None
    if not isinstance(given, str):
        raise TypeError(
            f"{name}= must be text, not {type(given).__name__}\n\nhint: write it in quotes, or set {variable}"
        )
    return given


def token(given: str | None) -> str | None:
    """The token: the argument, else that of the environment, else the content of the file that it names."""
    said = text(given, TOKEN, "token")
    path = os.environ.get(TOKEN_FILE)
    if said is not None or not path:
        return said
    hint = "hint: write the token into a file that this user may read"
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read(TOKEN_BYTES_MAX + 1).rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{TOKEN_FILE}={path!r} cannot be read: {error}\n\n{hint}") from error
    if not found:
        # A service without a token serves everybody.
        raise InvalidArgument(f"{TOKEN_FILE}={path!r} is empty\n\n{hint}")
    return found


#: The arguments `tls_ca`, `tls_cert` and `tls_key`.
Files = tuple[str | os.PathLike[str] | None, str | os.PathLike[str] | None, str | os.PathLike[str] | None]


def tls(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> tuple[str | None, str | None, str | None]:
    """The files for TLS. A certificate and its key are from one source: the arguments, or the environment."""
    if cert is None and key is None:
        cert, key = text(None, TLS_CERT), text(None, TLS_KEY)
    found = (text(None, TLS_CA) if ca is None else ca, cert, key)
    first, second, third = (None if it is None else os.fspath(it) for it in found)
    return first, second, third


def etcd() -> tuple[str | None, str | None, str | None, str | None]:
    """The files for connections to etcd, where the address is one of etcd."""
    ca, cert, key = text(None, ETCD_CA), text(None, ETCD_CERT), text(None, ETCD_KEY)
    return ca, cert, key, text(None, ETCD_CREDENTIALS_FILE)


def switch(given: bool | None, variable: str) -> bool:
    """The same for a switch, which is on by default."""
    if given is not None:
        return given
    said = os.environ.get(variable) or "on"
    if said not in ("on", "off"):
        raise InvalidArgument(f"{variable}={said!r}\n\nhint: set it to `on` or `off`")
    return said == "on"


def seconds(given: float | None, variable: str) -> float:
    """The same for the time limit of every call, which has a unit in the environment."""
    if given is None:
        said = os.environ.get(variable)
        if not said:
            return TIMEOUT_DEFAULT
        given = _measure(said, _TIMES, f"invalid duration {variable}={said!r}", "such as `10s` or `500ms`")
    if given == 0:
        raise InvalidArgument(
            "a time limit of 0 seconds for connecting and for every call: none could succeed\n\n"
            "hint: give seconds, as in timeout=2.5; a single call may have timeout=0, and then does not wait"
        )
    return given


def trace_endpoint() -> tuple[str, str] | None:
    """The URL of the collector, and the name of this process in traces; `None` if no spans are exported."""
    service = os.environ.get(SERVICE_NAME) or "tiffin-client"
    own = os.environ.get(TRACE_ENDPOINT)
    if own:
        return None if own == "off" else (own, service)
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    said = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base.rstrip('/')}/v1/traces")
    return (said, service) if said and _is_usable(said) else None


@functools.cache
def _is_usable(url: str) -> bool:
    """Whether spans can be sent there. These variables may be meant for others, so that is no error."""
    problem = trace_endpoint_problem(url)
    if problem is not None:
        hint = f"set {TRACE_ENDPOINT} to a collector that accepts OTLP over HTTP, or to `off`"
        logging.getLogger("tiffin").warning("no spans are sent to %s: %s\n\nhint: %s", url, problem, hint)
    return problem is None


def size(given: int | str) -> int:
    """A number of bytes.

    >>> size("1GiB"), size("64 MB"), size(4096)
    (1073741824, 64000000, 4096)
    """
    if isinstance(given, str):
        hint = "such as `512MiB` or `8GiB`"
        given = int(_measure(given, _UNITS, f"invalid size {given!r}", hint))
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(
            f"a size must be a number of bytes or text, not {type(given).__name__}\n\nhint: write `8GiB`"
        )
    if given < 0:
        raise InvalidArgument(
            f"a size of {given} bytes\n\nhint: give a number above zero, or text like `8GiB`"
        )
    if given > SIZE_MAX:
        raise InvalidArgument(f"a size of {given} bytes\n\nhint: give less than 16 EiB, as in `8GiB`")
    return given


def _measure(said: str, units: Mapping[str, float], complaint: str, hint: str) -> float:
    match = _NUMBER.fullmatch(said)
    if match is None or match[2] not in units:
        raise InvalidArgument(
            f"{complaint}: {_reason(said, match)}\n\nhint: write a number and a unit, {hint}"
        )
    return float(match[1]) * units[match[2]]


def _reason(said: str, match: re.Match[str] | None) -> str:
    """Why a size or a duration is invalid, in the words of the command line."""
    if match is not None:
        return f"there is no unit `{match[2]}`"
    said = said.strip()
    if said.startswith("-"):
        return "it is negative"
    number = said[: len(said) - len(said.lstrip("0123456789."))]
    return f"`{number}` is not a number" if number else "it does not begin with a number"
