"""Checks what `make release` has built: names, metadata, symbols, and each Python of this machine.

    python check_release.py dist/release [--glibc 2.17] [--emulate aarch64=FOLDER]

Every wheel is installed into a fresh environment of every interpreter that it is for and that is found here,
where a store is opened, used and closed. Wheels for other processors are only inspected, unless a folder is
given that `.ci/aarch64-root` has made: then qemu-user runs the wheel with the Python of that folder.
"""

from __future__ import annotations

import argparse
import email
import glob
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

EXTRAS = ["lmcache", "numpy", "sglang", "torch", "vllm"]
SMOKE = """
import sys, tiffin
with tiffin.connect(memory="64MiB") as store:
    store["k"] = b"hello"
    assert store["k"] == b"hello" and len(store) == 1
    with store.view("k") as view:
        assert bytes(view[1:3]) == b"el"
    del store["k"]
    assert "k" not in store
print(sys.version.split()[0], tiffin.__version__)
"""


VERSION = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


def interpreters() -> dict[str, str]:
    """The Pythons of the path and of pyenv by version. A `t` marks free-threaded ones."""
    found = {}
    names = glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python"))
    names += filter(
        None, (shutil.which(f"python3.{minor}{kind}") for minor in range(10, 20) for kind in ("", "t"))
    )
    for name in names:
        told = subprocess.run([name, "-c", VERSION], **QUIET)
        if told.returncode == 0:
            found[told.stdout.strip()] = name
    return dict(sorted(found.items(), key=lambda it: (minor_of(it[0]), it[0])))


def minor_of(version: str) -> int:
    """The 13 of 3.13t."""
    return int(version.partition(".")[2].rstrip("t"))


def fits(wheel: pathlib.Path, version: str) -> bool:
    """Whether an interpreter of this version takes the wheel."""
    _, _, tag, abi, _ = wheel.stem.split("-")
    own, minor = int(tag.removeprefix("cp3")), minor_of(version)
    if abi == "abi3":
        return minor >= own and not version.endswith("t")
    return minor == own and version.endswith("t") == abi.endswith("t")


QUIET = {"capture_output": True, "text": True}


def metadata(wheel: pathlib.Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        path = next(it for it in archive.namelist() if it.endswith(f".dist-info/{name}"))
        return email.message_from_bytes(archive.read(path))


def glibc_needed(path: pathlib.Path) -> str:
    """The greatest version of glibc that a program or library refers to."""
    symbols = set(re.findall(rb"GLIBC_(2\.\d+)", path.read_bytes()))
    return max((it.decode() for it in symbols), key=lambda it: int(it.partition(".")[2]), default="none")


def check_wheel(wheel: pathlib.Path, glibc: str) -> list[str]:
    """Names and metadata agree, and no symbol is newer than the platform that the name promises."""
    _, version, interpreter, abi, tag = wheel.stem.split("-")
    about, tags = metadata(wheel, "METADATA"), metadata(wheel, "WHEEL").get_all("Tag")
    minor = interpreter.removeprefix("cp3")
    wanted = f">=3.{minor}" if abi == "abi3" else f"==3.{minor}.*"
    problems = []
    if about["Requires-Python"] != wanted:
        problems.append(f"Requires-Python is {about['Requires-Python']}, not {wanted}")
    if about["Version"] != version:
        problems.append(f"the version is {about['Version']}")
    if sorted(about.get_all("Provides-Extra") or []) != EXTRAS:
        problems.append(f"the extras are {about.get_all('Provides-Extra')}")
    if not set(tags or []) <= {f"{interpreter}-{abi}-{part}" for part in tag.split(".")}:
        problems.append(f"the tags are {tags}")
    if f"manylinux_{glibc.replace('.', '_')}" not in tag:
        problems.append(f"it is not for glibc {glibc}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        library = next(it for it in archive.namelist() if it.endswith(".so"))
        needed = glibc_needed(pathlib.Path(archive.extract(library, folder)))
    if needed != "none" and int(needed.split(".")[1]) > int(glibc.split(".")[1]):
        problems.append(f"it needs glibc {needed}")
    return problems


def try_wheel(wheel: pathlib.Path, python: str) -> str:
    """Install it where there is nothing else, and use it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True, **QUIET)
        install = [f"{folder}/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check"]
        subprocess.run([*install, str(wheel)], check=True, **QUIET)
        done = subprocess.run([f"{folder}/bin/python", "-c", SMOKE], cwd=folder, **QUIET)
        command = subprocess.run([f"{folder}/bin/tiffin", "--version"], **QUIET)
        if done.returncode or command.returncode:
            return f"FAILED\n{done.stderr}{command.stderr}"
        return done.stdout.strip()


class Emulator:
    """Runs programs for another processor, with the system in a folder."""

    def __init__(self, said: str) -> None:
        self.machine, _, folder = said.partition("=")
        self.root = pathlib.Path(folder).resolve() / "root"
        self.program = shutil.which(f"qemu-{self.machine}")
        if self.program is None:
            raise SystemExit(f"qemu-{self.machine} is not installed\n\nhint: on Debian, it is in qemu-user")

    def run(
        self, program: pathlib.Path, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), "-L", str(self.root), str(program), *arguments]
        return subprocess.run(command, env=environment, **QUIET)

    def python(self) -> pathlib.Path:
        """The interpreter itself: a link would be followed outside the folder."""
        return next(it for it in sorted(self.root.glob("usr/bin/python3.*")) if not it.is_symlink())

    def try_wheel(self, wheel: pathlib.Path) -> str:
        """A wheel is an archive of what an interpreter imports, so that it need not be installed."""
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            done = self.run(self.python(), "-S", "-c", SMOKE, PYTHONPATH=folder)
            return f"FAILED\n{done.stderr}" if done.returncode else done.stdout.strip()

    def try_binary(self, binary: pathlib.Path) -> str:
        done = self.run(binary, "--version")
        return f"FAILED\n{done.stderr}" if done.returncode else done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--glibc", default="2.17")
    parser.add_argument("--emulate", type=Emulator, metavar="MACHINE=FOLDER")
    options = parser.parse_args()
    folder, glibc, emulator = options.folder, options.glibc, options.emulate
    failed = False

    def tell(name: str, problem: str, good: str) -> None:
        nonlocal failed
        failed = failed or bool(problem)
        print(f"{name}: {problem or good}")

    sums = folder / "SHA256SUMS"
    if not sums.exists():
        hint = "run `make release`, and wait for its end"
        print(f"error: `{sums}` does not exist\n\nhint: {hint}", file=sys.stderr)
        return 1
    for line in sums.read_text().splitlines():
        told, name = line.split(maxsplit=1)
        actual = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        tell(name, "" if actual == told else "its checksum is wrong", "checksum")
    wheels = sorted(folder.glob("tiffin-*.whl"))
    tell("wheels", "" if wheels else "there are none", str(len(wheels)))
    for wheel in wheels:
        tell(wheel.name, "; ".join(check_wheel(wheel, glibc)), "metadata and symbols")
        if not wheel.stem.endswith(platform.machine()):
            if emulator and wheel.stem.endswith(emulator.machine) and "-abi3-" in wheel.stem:
                told = emulator.try_wheel(wheel)
                tell(f"  emulated {emulator.machine}", told if told.startswith("FAILED") else "", told)
            continue
        fitting = {version: python for version, python in interpreters().items() if fits(wheel, version)}
        if not fitting:
            tell("  not run", "", "this machine has no Python for it")
        for version, python in fitting.items():
            told = try_wheel(wheel, python)
            tell(f"  on Python {version}", told if told.startswith("FAILED") else "", told)
    for binary in sorted(folder.glob("tiffin-*-linux")):
        needed = glibc_needed(binary)
        late = needed != "none" and int(needed.split(".")[1]) > int(glibc.split(".")[1])
        tell(binary.name, f"it needs glibc {needed}" if late else "", f"glibc {needed}")
        if emulator and emulator.machine in binary.name:
            binary.chmod(0o755)
            told = emulator.try_binary(binary.resolve())
            tell(f"  emulated {emulator.machine}", told if told.startswith("FAILED") else "", told)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
