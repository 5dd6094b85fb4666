"""What tokens and TLS cost: the same calls on three stores in turns, without a token, with one, and with TLS.

The stores are processes of their own, and the client shares no memory with them, as if they were on other
hosts. Each measurement of one store is compared with those of the others in the same round, so a disturbance
affects all; the ratios are medians over the rounds.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import tiffin

SIDES = ("plain", "token", "TLS")
TOKEN = "bench-token"
#: Name, bytes of a value, calls per measurement.
CASES = (
    ("connect and get 4 KiB", 4 << 10, 10),
    ("exists", 0, 300),
    ("get 4 KiB", 4 << 10, 300),
    ("put 4 KiB", 4 << 10, 300),
    ("get 1 MiB", 1 << 20, 60),
    ("put 1 MiB", 1 << 20, 60),
    ("get 16 MiB", 16 << 20, 6),
    ("put 16 MiB", 16 << 20, 6),
)


def run(*arguments):
    subprocess.run([sys.executable, "-m", "tiffin", *arguments], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def served(side, certificates):
    """The arguments of `connect` for a store of this kind."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIFFIN_")}
    environment |= {"XDG_STATE_HOME": str(certificates.parent / side), "TIFFIN_NODE_POOL": "off"}
    command = ["up", "--listen", "127.0.0.1:0", "--http", "off", "--memory", "512MiB", "--json"]
    options = {}
    if side != "plain":
        environment["TIFFIN_TOKEN"] = options["token"] = TOKEN
    if side == "TLS":
        for name, file in (("cert", "server.pem"), ("key", "server.key"), ("ca", "ca.pem")):
            environment[f"TIFFIN_TLS_{name.upper()}"] = str(certificates / file)
        options["tls_ca"] = str(certificates / "ca.pem")
    process = subprocess.Popen(
        [sys.executable, "-m", "tiffin", *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield {"address": json.loads(process.stdout.readline())["master"], "shared_memory": False} | options
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def measure(name, size, calls, options, store):
    """Seconds per call, the median of these calls."""
    value, buffer, times = os.urandom(size), bytearray(size), []
    store.put("key", value)
    for _ in range(calls):
        start = time.perf_counter()
        if name.startswith("connect"):
            with tiffin.connect(**options) as another:
                another.get("key")
        elif name == "exists":
            store.exists("key")
        elif name.startswith("get"):
            store.get_into("key", buffer)
        else:
            store.put("key", value)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one document instead of the table")
    arguments = parser.parse_args()
    found = {(case[0], side): [] for case in CASES for side in SIDES}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        certificates = pathlib.Path(folder) / "certs"
        run("certs", "create", str(certificates))
        options = {side: stack.enter_context(served(side, certificates)) for side in SIDES}
        stores = {side: stack.enter_context(tiffin.connect(**options[side])) for side in SIDES}
        for number in range(arguments.rounds + 1):
            for case in CASES:
                for side in SIDES[number % 3 :] + SIDES[: number % 3]:
                    taken = measure(*case, options[side], stores[side])
                    # The first round warms up.
                    if number > 0:
                        found[case[0], side].append(taken)
    rows = [row(case[0], case[1], found) for case in CASES]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| call | plain | token | TLS and token |\n|---|---|---|---|")
    for it in rows:
        cells = [f"{it['plain_us']:,.0f} µs"]
        cells += [f"{it[f'{side}_us']:,.0f} µs ({it[f'{side}_ratio']:.2f})" for side in SIDES[1:]]
        print(f"| {it['call']} | {' | '.join(cells)} |")


def row(name, size, found):
    plain = found[name, "plain"]
    made = {"call": name, "bytes": size, "plain_us": statistics.median(plain) * 1e6}
    for side in SIDES[1:]:
        times = found[name, side]
        made[f"{side}_us"] = statistics.median(times) * 1e6
        made[f"{side}_ratio"] = statistics.median(t / p for t, p in zip(times, plain, strict=True))
    return made


if __name__ == "__main__":
    main()
