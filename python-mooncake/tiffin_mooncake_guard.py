"""Refuses `import mooncake` if the official wheel was installed over ours.

In that case `mooncake/__init__.py` is no longer ours and cannot check. `tiffin_mooncake_guard.pth` imports
this module when Python starts. The check itself runs once, at the first import of `mooncake`.
"""

import importlib.machinery
import os
import sys


class _Guard:
    """Finds nothing: it is called before other finders, and only checks."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "mooncake":
            sys.meta_path.remove(cls)
            _check()


def _check():
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.machinery.PathFinder.find_spec("mooncake")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    # A package elsewhere on the path is complete, and is not checked.
    ours = [it for it in folders if os.path.dirname(os.path.abspath(it)) == here]
    rules = os.path.join(here, "mooncake", "_conflicts.py")
    if not ours or not os.path.exists(rules):
        return
    # Every start of Python in this environment would import it otherwise.
    from importlib import util

    spec = util.spec_from_file_location("_tiffin_mooncake_conflicts", rules)
    conflicts = util.module_from_spec(spec)
    spec.loader.exec_module(conflicts)
    conflicts.check(ours)


def install():
    """Check before the first import of `mooncake`."""
    if _Guard not in sys.meta_path and "mooncake" not in sys.modules:
        sys.meta_path.insert(0, _Guard)


install()
