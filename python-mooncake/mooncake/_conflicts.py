"""Detects Mooncake's own wheel in the same folder.

Both wheels own the folder `mooncake`. Installed one over the other, each overwrites some of the other's
files and leaves the rest, and in one folder Python prefers an extension module to a file of the same name:
`mooncake.store` would be Mooncake's, and the rest ours.
"""

import importlib.machinery
import importlib.metadata
import pathlib
from collections.abc import Iterable

OFFICIAL_NAMES = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
)


def installed() -> list[str]:
    """The official distributions that are installed here too."""
    found = []
    for name in OFFICIAL_NAMES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def shadows(folders: Iterable[str]) -> list[str]:
    """Extension modules that would be imported in place of ours."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    paths = (path for folder in folders for path in pathlib.Path(folder).glob("store.*"))
    return sorted(str(path) for path in paths if path.name.endswith(suffixes))


def check(folders: Iterable[str]) -> None:
    """Refuses to run as a mixture of two packages."""
    mixed = shadows(folders)
    if not mixed:
        return
    names = installed() or ["the official Mooncake wheel"]
    pip_names = " ".join(name.split()[0] for name in names)
    raise ImportError(
        f"the package `mooncake` is a mixture of tiffin-mooncake and {', '.join(names)}: "
        f"{mixed[0]} belongs to the other one\n\n"
        "hint: keep the two in separate environments, or remove both and install one: "
        f"pip uninstall {pip_names} tiffin-mooncake; pip install tiffin-mooncake"
    )
