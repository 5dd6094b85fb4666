"""Writes the generated parts of docs/mooncake-compat.md: supported names, and differences of answers.

It runs under the interpreter with the installed wheels: `make docs-mooncake`. A test compares the page.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "mooncake-compat.md"

sys.path[:0] = [str(FOLDER / "tests"), str(FOLDER)]


def official():
    """The names of the official wheel, 0.3.13: see `tests/official.json`."""
    return json.loads((FOLDER / "tests" / "official.json").read_text())


def table(heads, rows):
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def methods():
    """One row for each method of the store, the official ones and ours."""
    from mooncake.store import MooncakeDistributedStore as Store

    ours = {name for name in dir(Store) if not name.startswith("_")}
    rows = []
    for name in sorted(ours | set(official()["methods"])):
        if name not in ours:
            rows.append((f"`{name}`", "no"))
            continue
        method = getattr(Store, name)
        first = (inspect.getdoc(method) or "").partition(". ")[0]
        here = "-1012" if first.startswith("Not supported") else "yes"
        rows.append((f"`{name}`", here if name in official()["methods"] else f"{here}, not Mooncake's"))
    return table(("method of `MooncakeDistributedStore`", "here"), rows)


def names():
    """The other names of the module."""
    import mooncake.store

    rows = []
    for name in sorted(set(official()["names"]) | set(mooncake.store.__all__)):
        here = "yes" if hasattr(mooncake.store, name) else "no"
        rows.append((f"`{name}`", here if name in official()["names"] else f"{here}, not Mooncake's"))
    return table(("other name in `mooncake.store`", "here"), rows)


def modules():
    from mooncake import _absent

    found = []
    for name in official()["modules"]:
        if importlib.util.find_spec(f"mooncake.{name}") is None:
            here = "no"
        elif f"mooncake.{name}" in _absent.MODULES:
            here = "no: the ImportError names the package that has it"
        else:
            here = "yes"
        found.append((f"`mooncake.{name}`", here))
    return table(("module", "here"), found)


def commands():
    ours = {it.name for it in importlib.metadata.entry_points(group="console_scripts")}
    rows = [(f"`{name}`", "yes" if name in ours else "no") for name in official()["commands"]]
    return table(("command", "here"), rows)


def flags(command, wanted):
    """Whether each flag of a command has an effect, according to its help."""
    program = pathlib.Path(sys.executable).with_name(command)
    if not program.exists():
        return f"There is no command `{command}`."
    done = subprocess.run([program, "--help"], capture_output=True, text=True)
    effect, found = "yes", {}
    for line in (done.stdout + done.stderr).splitlines():
        if line and not line.startswith(" "):
            effect = "accepted, no effect" if "without effect" in line else "yes"
        elif flag := re.match(r"\s+--?([a-z][a-z0-9_]+)", line):
            found[flag[1]] = effect
    rows = [(f"`--{name}`", found.get(name, "no")) for name in wanted]
    return table((f"flag of `{command}`", "here"), rows)


def endpoints(requests):
    """Whether the master's answer to each request is other than `not found`."""
    import worker

    master = worker.Master()
    try:
        rows = []
        for request in requests:
            method, _, path = request.partition(" ")
            port = master.metadata if path.startswith("/metadata") else master.metrics
            status, text = worker.fetch(port, path, method, "{}" if method in ("POST", "PUT") else None)
            is_missing = status in (404, 405, 501) and not text.lstrip().startswith("{")
            rows.append((f"`{request}`", "no" if is_missing else "yes"))
    finally:
        master.stop()
    return table(("request to the master", "here"), rows)


def service_endpoints():
    """The requests that the REST service names in its source."""
    spec = importlib.util.find_spec("mooncake.mooncake_store_service")
    source = pathlib.Path(spec.origin).read_text() if spec else ""
    rows = []
    for request in official()["service_endpoints"]:
        path = request.split()[1].partition("{")[0]
        is_there = re.search(rf"[\"'](\w+ )?{re.escape(path)}[\"'{{]", source)
        rows.append((f"`{request}`", "yes" if is_there else "no"))
    return table(("request to the REST service", "here"), rows)


def differences():
    """Every line of a suite where the answers differ, each once."""
    import compare

    found = (line for suite in compare.suites().values() for line in suite.differences())
    return "\n".join(("```text", *dict.fromkeys(found), "```"))


def parts():
    """The generated parts by the name of their markers."""
    lists = official()
    client = flags("mooncake_client", lists["client_flags"])
    return {
        "methods": methods(),
        "names": names(),
        "modules": modules(),
        "commands": commands(),
        "flags": flags("mooncake_master", lists["master_flags"]) + f"\n\n{client}",
        "endpoints": f"{endpoints(lists['endpoints'])}\n\n{service_endpoints()}",
        "differences": differences(),
    }


def fill(page, contents):
    for name, text in contents.items():
        begin, end = f"<!-- generated: {name} -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, also_found, after = rest.partition(end)
        if not found or not also_found:
            raise SystemExit(f"{PAGE.name} has no markers for `{name}`\n\nhint: add `{begin.strip()}`")
        page = before + begin + text + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(), parts()))
