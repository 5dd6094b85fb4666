"""Common parts of the benchmarks: progress, versions and the machine."""

import os
import pathlib
import platform
import subprocess
import sys
import time

SCHEMA = "tiffin-bench/1"


class Progress:
    """One line on standard error that is overwritten."""

    def __init__(self, seconds):
        self.seconds, self.began = seconds, time.monotonic()
        self.live = sys.stderr.isatty()
        self.said = None

    def show(self, what):
        elapsed = time.monotonic() - self.began
        if self.live:
            part = min(30, int(30 * elapsed / self.seconds))
            bar = "#" * part + "." * (30 - part)
            sys.stderr.write(f"\r[{bar}] {elapsed:4.0f} s  {what:<60}")
        elif what != self.said:
            sys.stderr.write(f"{elapsed:4.0f} s  {what}\n")
        self.said = what
        sys.stderr.flush()

    def close(self):
        if self.live:
            sys.stderr.write("\r" + " " * 110 + "\r")


def version(python, distribution):
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": cores,
        "memory": memory,
        "kernel": platform.release(),
    }
