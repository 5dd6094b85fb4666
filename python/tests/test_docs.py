"""Every command and every program in our documents does what the document shows."""

import doctest
import importlib
import pathlib
import pkgutil

import mooncake
import pytest
import tiffin
from mooncake import _absent

import documents

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for folder in (
        ".",
        "docs",
        "docs/notes",
        "docs/integrations",
        "docs/start",
        "docs/migrate",
        "python",
        "python-mooncake",
    )
    for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_output_is_reproduced(path, tmp_path):
    with documents.Reader(tmp_path) as reader:
        reader.follow(path.read_text())


def modules(package):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield module.name
    yield package.__name__


@pytest.mark.parametrize("name", sorted({*modules(tiffin), *modules(mooncake)} - set(_absent.MODULES)))
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


# The harness itself: the output that it accepts, and failures that it must notice.

FENCE = "```"
GOOD = {
    "a command and its output": ("console", "$ echo a b\na b"),
    "anything in a line": ("console", "$ echo a 17 b\na … b"),
    "anything in between": ("console", "$ seq 5\n1\n…\n5"),
    "output that is not shown": ("console", "$ echo a"),
    "a command over two lines": ("console", "$ echo \\\n> a\na"),
    "an error that is shown": ("console", "$ echo 'error: no'; exit 3\nerror: no"),
    "files between commands": ("console", "$ echo a >f\n$ cat f\na"),
    "a server in the background": (
        "console",
        "$ sh -c 'echo up at 1; sleep 100' &\nup at …\n$ echo a\na",
    ),
    "a warning of a server": (
        "console",
        "$ sh -c 'echo 2026-01-02T03:04:05.678901Z  WARN slow; echo up; sleep 100' &\nup",
    ),
    "a program": ("python", "assert 1 + 1 == 2"),
    "a session": ("python", ">>> 1 + 1\n2"),
    "a port stands for one that is free": (
        "console",
        "$ test 127.0.0.1:7500 != 127.0.0.1:75$(echo 00) && echo 127.0.0.1:7500\n127.0.0.1:7500",
    ),
    "other marks are not run": ("sh", "$ false"),
}
BAD = {
    "other output": (("console", "$ echo a\nb"), "`echo a` shows"),
    "more output": (("console", "$ seq 2\n1"), "`seq 2` shows"),
    "a command that fails": (("console", "$ false"), "`false` ended with 1"),
    "a failure that does not happen": (("console", "$ echo error: no\nerror: no"), "ended with 0"),
    "a server that does not come up": (("console", "$ echo no &\nready"), "`echo no &` shows"),
    "output before any command": (("console", "a"), "which is not a command"),
    "a program that fails": (("python", "assert False"), "the program ended with 1"),
    "a session that differs": (("python", ">>> 1 + 1\n3"), "the program ended with 1"),
}


def fenced(kind, text):
    return f"# Title\n\n{FENCE}{kind}\n{text}\n{FENCE}\n"


@pytest.mark.parametrize("block", GOOD.values(), ids=GOOD)
def test_harness_accepts(block, tmp_path):
    with documents.Reader(tmp_path) as reader:
        reader.follow(fenced(*block))


@pytest.mark.parametrize(("block", "complaint"), BAD.values(), ids=BAD)
def test_harness_notices(block, complaint, tmp_path):
    with documents.Reader(tmp_path) as reader, pytest.raises(AssertionError) as error:
        reader.follow(fenced(*block))
    assert "the block on line 3: " in str(error.value)
    assert complaint in str(error.value)
