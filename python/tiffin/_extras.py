"""Packages that only some parts need: an import that fails names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, user: str, extra: str) -> Any:
    """Import a module for a part of this package, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"`pip install 'tiffin[{extra}]'`"
        raise ImportError(f"{user} needs {module}, which is not installed\n\nhint: {hint}") from error
