"""Counts the instructions of the hot paths under Callgrind, and compares them with recorded values.

Counts, unlike seconds, are the same on a busy machine. They depend on the compiler, so that
`bench/instructions.json` has a list for each. An unknown compiler is reported and fails nothing. `make
bench-instructions UPDATE=1` records the counts of the current one.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "bench" / "instructions.json"
# Unchanged code has exactly the same count, unless the compiler arranges it differently because of other
# code, or the C library is another one.
TOLERANCE = 0.03
# The cost of the C library's allocator depends on all earlier allocations, so that one case would disturb
# another. With this setting its thread cache keeps all freed memory.
CALM = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535"}
# The function of the benchmarks that surrounds the counted code.
MEASURED = "instructions::counting::counted"
# The packages with such a benchmark.
PACKAGES = ("tiffin-proto", "tiffin-kv")
# Costs that must not grow with the number of cached pages: the maximum ratio of many to few.
FLAT = 1.1
FEW, MANY = "few cached", "many cached"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cargo", default="cargo")
    parser.add_argument("--update", action="store_true", help="record the counts as the expected values")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print(
            "SKIPPED: valgrind is not installed\n\nhint: on Debian and Ubuntu, run `apt-get install valgrind`"
        )
        return 0
    counts = {}
    for executable in build(options.cargo):
        counts |= measure(executable)
    grown = growth(counts)
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    compiler = compiler_name()
    if options.update:
        baseline[compiler] = counts
        BASELINE.write_text(json.dumps(baseline, indent=2, sort_keys=True) + "\n")
        print(f"wrote {len(counts)} counts for {compiler} into {BASELINE.relative_to(ROOT)}")
        return grown
    if compiler not in baseline:
        print(f"SKIPPED: no counts of {compiler} yet\n\nhint: run `make bench-instructions UPDATE=1`")
        return grown
    return max(grown, compare(baseline[compiler], counts))


def build(cargo: str) -> list[str]:
    """Build the benchmarks at once, so that dependencies are compiled once, and return their paths."""
    packages = [f"--package={it}" for it in PACKAGES]
    command = [cargo, "bench", "--locked", "-q", *packages, "--bench", "instructions", "--no-run"]
    built = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    artifacts = map(json.loads, built.stdout.splitlines())
    return [
        it["executable"]
        for it in artifacts
        if it.get("target", {}).get("name") == "instructions" and it["executable"]
    ]


def measure(executable: str) -> dict[str, int]:
    """The instructions of each case: Callgrind counts inside `counted`, and dumps at its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        command = [
            "valgrind",
            "--tool=callgrind",
            "--quiet",
            f"--callgrind-out-file={out}",
            "--combine-dumps=yes",
        ]
        command += ["--collect-atstart=no", f"--toggle-collect={MEASURED}", f"--dump-after={MEASURED}"]
        ran = subprocess.run([*command, executable], stdout=subprocess.PIPE, check=True, text=True, env=CALM)
        totals = re.findall(r"^totals: (\d+)", out.read_text(), re.MULTILINE)
    # The last dump is that of the program's end, when nothing is counted.
    return dict(zip(ran.stdout.splitlines(), map(int, totals[:-1]), strict=True))


def compiler_name() -> str:
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True, text=True).stdout
    fields = dict(line.split(": ", 1) for line in version.splitlines() if ": " in line)
    return f"{fields['release']} {fields['host']}"


def growth(counts: dict[str, int]) -> int:
    """Compare the cases with many cached pages with those with few."""
    pairs = [(name, name.replace(FEW, MANY)) for name in counts if FEW in name]
    worse = []
    for few, many in pairs:
        ratio = counts[many] / counts[few]
        print(f"{few.replace(f', {FEW}', ''):<40} many / few cached: {ratio:.3f}")
        if ratio > FLAT:
            worse.append(f"{many} ({ratio:.2f} times)")
    if worse:
        print(f"\nerror: grows with the number of cached pages: {', '.join(worse)}", file=sys.stderr)
        print("\nhint: run `make bench-kv` to see the effect in time", file=sys.stderr)
    return 1 if worse else 0


def compare(before: dict[str, int], now: dict[str, int]) -> int:
    worse, better = [], []
    print(f"{'instructions of':<40} {'before':>12} {'now':>12}")
    for name, count in now.items():
        change = count / before[name] - 1 if name in before else None
        shown = "new" if change is None else f"{change:+.2%}"
        print(f"{name:<40} {before.get(name, 0):>12,} {count:>12,} {shown:>8}")
        if change is None or change > TOLERANCE:
            worse.append(f"{name} ({shown})")
        elif change < -TOLERANCE:
            better.append(f"{name} ({shown})")
    worse += [f"{name} (gone)" for name in before if name not in now]
    if worse:
        print(
            f"\nerror: more than {TOLERANCE:.0%} above the recorded counts: {', '.join(worse)}",
            file=sys.stderr,
        )
    elif better:
        print(f"\nbetter than recorded: {', '.join(better)}")
    if worse or better:
        print("\nhint: to accept this, run `make bench-instructions UPDATE=1` and commit", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
