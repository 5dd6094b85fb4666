"""Packages that only some parts need: an import that fails names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, user: str, extra: str = "", *, package: str = "") -> Any:
    """Import a module for a part of this package, or say which extra or package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, user, extra, package=package) from error


def missing(module: str, user: str, extra: str = "", *, package: str = "") -> ImportError:
    """The error of a part of this package that lacks a module."""
    what = package or f"'tiffin[{extra}]'"
    return ImportError(f"{user} needs {module}, which is not installed\n\nhint: `pip install {what}`")
