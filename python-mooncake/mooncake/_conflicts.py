"""Detects Mooncake's own wheel in the same folder.

Both wheels own the folder `mooncake`. If one is installed over the other, it overwrites some files and
leaves the rest. Within one folder, Python prefers an extension module to a Python file of the same name:
`mooncake.store` would be Mooncake's, and the rest ours. Our `mooncake/__init__.py` checks for that. If the
other wheel has replaced that file, or has taken it along when it was uninstalled, the guard
`tiffin_mooncake_guard.py` beside the folder does.
"""

import importlib.machinery
import pathlib
from collections.abc import Iterable

OFFICIAL_NAMES = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
)
# Every release of this package has this in its `__init__.py`.
OUR_MARK = "served by Tiffin"


def installed() -> list[str]:
    """The official distributions that are also installed here."""
    # This takes longer to import than all else of `mooncake`, and is needed only for an error.
    import importlib.metadata

    found = []
    for name in OFFICIAL_NAMES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def foreign(folders: Iterable[str]) -> list[str]:
    """Files in these folders that are imported instead of ours."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    found = []
    for folder in map(pathlib.Path, folders):
        found += [str(path) for path in folder.glob("store.*") if path.name.endswith(suffixes)]
        first = folder / "__init__.py"
        if first.is_file() and OUR_MARK not in first.read_text(encoding="utf-8", errors="replace"):
            found.append(str(first))
    return sorted(found)


def check(folders: Iterable[str]) -> None:
    """Refuse to run as a mixture of two packages, or as what is left of one."""
    folders = list(folders)
    for folder in folders:
        if not pathlib.Path(folder, "__init__.py").is_file():
            raise ImportError(
                f"files of tiffin-mooncake are missing in {folder}: they were removed with the official "
                "Mooncake wheel, which had replaced them\n\n"
                "hint: pip install --force-reinstall --no-deps tiffin-mooncake"
            )
    mixed = foreign(folders)
    if not mixed:
        return
    names = installed() or ["the official Mooncake wheel"]
    pip_names = " ".join(name.split()[0] for name in names if not name.startswith("the "))
    pip_names = pip_names or OFFICIAL_NAMES[0]
    raise ImportError(
        f"the package `mooncake` is a mixture of tiffin-mooncake and {', '.join(names)}: "
        f"{mixed[0]} belongs to the other one\n\n"
        "hint: keep the two in separate environments, or remove both and install one: "
        f"pip uninstall {pip_names} tiffin-mooncake; pip install tiffin-mooncake"
    )
