"""Runs the conformance suites on our drop-in and on another implementation, and prints the differences.

`make conformance` runs ours; `make conformance PEER=1` also the official wheel. A row that differs and is
not listed as a difference is a failure of the suite itself.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parent
NOT_LISTED = "NOT LISTED"
sys.path.insert(0, str(FOLDER / "tests"))


def files():
    """The files of the suites."""
    return sorted((FOLDER / "tests").glob("test_conformance*.py"))


def suites():
    """Every suite by the name of its file."""
    return {path.stem: importlib.import_module(path.stem).SUITE for path in files()}


def run(answers, python, rest):
    """The exit status of the suites on one implementation."""
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "python" / "pyproject.toml", f"--rootdir={ROOT}"]
    command += [*files(), "-q", "--no-header", f"--answers={answers}", f"--mooncake-python={python}", *rest]
    return subprocess.run(command).returncode


def shown(answer):
    """An answer in one line."""
    if answer is None:
        return "crash, hang or cut (not run)"
    if "raises" in answer:
        return f"raises {answer['raises']}: {answer['text'].splitlines()[0] if answer['text'] else ''}"
    return answer.get("value", f"the process ended with {answer.get('ended')}")


def is_run(answers):
    """Whether a section was run: not if a module that its first line imports is missing."""
    return bool(answers) and (answers[0] or {}).get("raises") != "ModuleNotFoundError"


def compare(ours, official):
    """Print every row with two answers. Returns their number, and how many of them are not listed."""
    rows = []
    for name, suite in suites().items():
        for section in suite.sections:
            both = ours.get(name, {}).get(section), official.get(name, {}).get(section)
            if all(is_run(answers) for answers in both):
                rows += [(section, *row) for row in zip(suite.lines(section), *both, strict=True)]
    remarks = [remark for row in rows if (remark := difference(*row))]
    return len(remarks), remarks.count(NOT_LISTED)


def difference(section, line, our, their):
    """Print a row if its answers differ. Returns the remark about it, or an empty string."""
    kinds = (our or {}).get("raises"), (their or {}).get("raises")
    # The texts of exceptions differ; the suite compares the words that clients match.
    is_same = shown(our) == shown(their) or (kinds[0] is not None and kinds[0] == kinds[1])
    if not line.is_test or is_same:
        return ""
    listed = "listed" if line.ours != line.official else NOT_LISTED
    remark = "bug of the original" if line.is_fault else listed
    print(f"{section}: {line.code}  [{remark}]")
    print(f"    official: {shown(their)[:200]}\n    ours:     {shown(our)[:200]}")
    return remark


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the interpreter of the other implementation")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, official = pathlib.Path(folder, "ours.json"), pathlib.Path(folder, "official.json")
        status = run(ours, sys.executable, rest)
        if options.peer:
            status = max(status, run(official, pathlib.Path(options.peer).absolute(), rest))
            count, unlisted = compare(json.loads(ours.read_text()), json.loads(official.read_text()))
            print(f"\n{count} rows have different answers; {unlisted} of them are not listed")
            status = max(status, int(unlisted > 0))
    sys.exit(status)


if __name__ == "__main__":
    main()
