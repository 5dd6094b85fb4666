"""Runs the tests of the feature store where the official `mooncake` is installed, against its own master."""

import os
import pathlib
import socket
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
UP_SECONDS_MAX = 30


def main():
    """Start the master, run the tests, end the master."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        port, metrics = first.getsockname()[1], second.getsockname()[1]
    command = [str(pathlib.Path(sys.executable).with_name("mooncake_master"))]
    command += [f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
    command += ["--metrics_host=127.0.0.1", "--default_kv_lease_ttl=5000"]
    quiet = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "2"}
    master = subprocess.Popen(command, env=os.environ | quiet, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        environment = os.environ | quiet | {"TIFFIN_TEST_MOONCAKE": f"127.0.0.1:{port}"}
        tests = [sys.executable, "-m", "pytest", "-c", str(HERE.parent / "pyproject.toml")]
        tests += [f"--rootdir={HERE.parents[1]}", str(HERE / "test_features.py")]
        tests += sorted(map(str, HERE.glob("test_feature_*.py")))
        return subprocess.call([*tests, *sys.argv[1:]], env=environment, cwd=HERE.parents[1])
    finally:
        master.terminate()
        master.wait()


def wait_for(port):
    """Wait until a server listens."""
    pause = threading.Event()
    for _ in range(UP_SECONDS_MAX * 20):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            pause.wait(0.05)
    sys.exit("error: the master of Mooncake did not listen")


if __name__ == "__main__":
    sys.exit(main())
