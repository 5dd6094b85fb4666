"""Counts the instructions of the hot paths under Callgrind and compares them with what they were.

Counts, unlike seconds, are the same on a busy machine. They do depend on the compiler, so
`bench/instructions.json` has a list for each; a compiler that it does not know is reported and refuses
nothing. `make bench-instructions UPDATE=1` writes the counts of this one.
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
# Code that did not change has the same count to the last instruction, unless the compiler arranges it
# differently because of other code around it, or the C library is another one.
TOLERANCE = 0.03
# What the C library does to give and take back memory depends on all that was done before, so that one
# case would disturb another: let it keep whatever is given back at hand.
CALM = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535"}
# The function of the benchmarks that surrounds what counts.
MEASURED = "instructions::counting::counted"
# The packages that have such a benchmark.
PACKAGES = ("tiffin-proto", "tiffin-kv")
# What may not grow with the number of cached pages: a case of many may cost this much more than that of few.
FLAT = 1.1
FEW, MANY = "few cached", "many cached"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cargo", default="cargo")
    parser.add_argument("--update", action="store_true", help="write the counts down as what they should be")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("SKIPPED: valgrind is not installed\n\nhint: on Debian and Ubuntu, `apt-get install valgrind`")
        return 0
    counts = {}
    for package in PACKAGES:
        counts |= measure(build(options.cargo, package))
    grown = growth(counts)
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    compiler = compiler_name()
    if options.update:
        baseline[compiler] = counts
        BASELINE.write_text(json.dumps(baseline, indent=2, sort_keys=True) + "\n")
        print(f"wrote {len(counts)} counts for {compiler} into {BASELINE.relative_to(ROOT)}")
        return grown
    if compiler not in baseline:
        print(f"SKIPPED: no counts of {compiler} yet\n\nhint: `make bench-instructions UPDATE=1` writes them")
        return grown
    return max(grown, compare(baseline[compiler], counts))


def build(cargo: str, package: str) -> str:
    """Builds the benchmark and tells where it is."""
    command = [cargo, "bench", "--locked", "-q", "-p", package, "--bench", "instructions", "--no-run"]
    built = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    artifacts = map(json.loads, built.stdout.splitlines())
    return next(
        it["executable"]
        for it in artifacts
        if it.get("target", {}).get("name") == "instructions" and it["executable"]
    )


def measure(executable: str) -> dict[str, int]:
    """Each case's instructions: Callgrind counts while in `counted`, and dumps when that is left."""
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
    # The last dump is that of the end, when nothing is collected any more.
    return dict(zip(ran.stdout.splitlines(), map(int, totals[:-1]), strict=True))


def compiler_name() -> str:
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True, text=True).stdout
    fields = dict(line.split(": ", 1) for line in version.splitlines() if ": " in line)
    return f"{fields['release']} {fields['host']}"


def growth(counts: dict[str, int]) -> int:
    """Holds the cases with many cached pages against those with few."""
    pairs = [(name, name.replace(FEW, MANY)) for name in counts if FEW in name]
    worse = []
    for few, many in pairs:
        ratio = counts[many] / counts[few]
        print(f"{few.replace(f', {FEW}', ''):<40} many / few cached: {ratio:.3f}")
        if ratio > FLAT:
            worse.append(f"{many} ({ratio:.2f} times)")
    if worse:
        print(f"\nerror: grows with the number of cached pages: {', '.join(worse)}", file=sys.stderr)
        print("\nhint: `make bench-kv` shows what that means in time", file=sys.stderr)
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
        print(f"\nerror: more than {TOLERANCE:.0%} above what they were: {', '.join(worse)}", file=sys.stderr)
    elif better:
        print(f"\nbetter than they were: {', '.join(better)}")
    if worse or better:
        print("\nhint: if it is to stay so, `make bench-instructions UPDATE=1` and commit", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
