"""Installs torch for the CPU into the environment of this interpreter: `python install_torch.py`.

PyPI's torch for Linux requires CUDA libraries of several gigabytes, which the linker loads even on a machine
without a GPU. This script installs torch without them, and builds a placeholder for each: a library with the
same name whose functions end the process. The CUDA runtime is small and is installed: torch calls it at its
import.

Called by the targets of the Makefile that have `TORCH=1`, and by `make check-torch` and `make check-plugins`.
"""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

from pip._vendor.packaging.requirements import Requirement

SITE = pathlib.Path(sysconfig.get_paths()["platlib"])
LIBRARIES = SITE / "torch" / "lib"
#: Requirements of torch that only a GPU needs.
DEVICE_PACKAGES = ("cuda-", "nvidia-", "triton")


def pip(*arguments):
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments], check=True
    )


def is_needed(requirement):
    """Whether torch needs this requirement on a CPU."""
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    return applies and not requirement.name.startswith(DEVICE_PACKAGES)


def read(path, *options):
    """The output of readelf for a library."""
    command = ["readelf", "-W", *options, path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Library:
    """What a library loads, takes from others and offers."""

    def __init__(self, path):
        self.needed = re.findall(r"\(NEEDED\).*\[(.+)\]", read(path, "-d"))
        self.versions = {}
        name = None
        for line in read(path, "-V").splitlines():
            if match := re.search(r"Version: \d+  File: (\S+)", line):
                name = match[1]
            elif name and (match := re.search(r"Name: (\S+)  Flags", line)):
                self.versions[match[1]] = name
        self.taken, self.offered = set(), set()
        for line in read(path, "--dyn-syms").splitlines():
            words = line.split()
            if len(words) < 8 or words[4] != "GLOBAL":
                continue
            name, _, version = words[7].partition("@")
            if words[6] == "UND":
                self.taken.add((name, version, words[3] == "OBJECT"))
            else:
                self.offered.add(name)


def loaded():
    """Torch's own libraries that `import torch` loads, by name."""
    found, open_names = {}, ["libtorch_python.so", "libtorch_global_deps.so"]
    while open_names:
        name = open_names.pop()
        if name not in found and (LIBRARIES / name).is_file():
            found[name] = Library(LIBRARIES / name)
            open_names += found[name].needed
    return found


def build(name, symbols):
    """Make a library of placeholders. A symbol is a name, a version, and whether it is a variable."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>", "static void missing(void) {"]
    lines += [
        f'  fputs("{name} is a placeholder: this torch runs on the CPU only\\n", stderr);',
        "  abort();",
        "}",
    ]
    versions = {}
    for symbol, version, is_variable in sorted(symbols):
        alias = f'void {symbol}(void) __attribute__((alias("missing")));'
        lines.append(f"char {symbol}[64];" if is_variable else alias)
        versions.setdefault(version, []).append(f"{symbol};")
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "placeholders.c"), pathlib.Path(folder, "versions")
        source.write_text("\n".join(lines))
        script.write_text(
            "\n".join(f"{version} {{ {' '.join(it)} }};" for version, it in versions.items() if version)
        )
        command = ["gcc", "-shared", "-fPIC", "-o", LIBRARIES / name, source, f"-Wl,-soname,{name}"]
        subprocess.run(command + [f"-Wl,--version-script={script}"] * bool(script.read_text()), check=True)


def placeholders(ours, missing):
    """The symbols that each missing library must offer."""
    owners = {version: name for it in ours for version, name in it.versions.items() if name in missing}
    offered = set().union(*(it.offered for it in ours))
    found = {name: set() for name in missing}
    # A symbol without a version names no library, so that each library without versions offers it. Those of
    # the interpreter have none either.
    anonymous = missing - set(owners.values())
    for symbol in set().union(*(it.taken for it in ours)):
        name, version, _ = symbol
        if name in offered or (not version and name.startswith(("Py", "_Py"))):
            continue
        for owner in [owners[version]] if version in owners else [] if version else anonymous:
            found[owner].add(symbol)
    return found


def main():
    pip("--no-deps", "torch")
    requirements = map(Requirement, importlib.metadata.requires("torch") or [])
    pip("--no-warn-conflicts", *(f"{it.name}{it.specifier}" for it in requirements if is_needed(it)))
    ours = loaded()
    wanted = {name for it in ours.values() for name in it.needed}
    if runtime := next((name for name in wanted if name.startswith("libcudart.so.")), None):
        pip("--no-deps", f"nvidia-cuda-runtime=={runtime.rpartition('.')[2]}.*")
    installed = {path.name for path in SITE.glob("nvidia/*/lib/*.so*")}
    system = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    missing = {name for name in wanted - installed - set(ours) if f"\t{name} " not in system}
    for name, symbols in placeholders(list(ours.values()), missing).items():
        build(name, symbols)
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(3)"], check=True)


if __name__ == "__main__":
    main()
