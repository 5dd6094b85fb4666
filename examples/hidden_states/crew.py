"""The processes of a pipeline: a server, and workers that are restarted when they die."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import urllib.parse

#: The forms of `--store`.
STORES = "tiffin | tiffin://master:port | mooncake://master:port[?index=our-master:port]"


def parse(store):
    """Parse backend and address: the address of our master, if one runs, and of Mooncake's."""
    url = urllib.parse.urlsplit(store)
    if store == "tiffin":
        return None, None
    if url.scheme == "tiffin" and url.netloc:
        return url.netloc, None
    if url.scheme == "mooncake" and url.netloc:
        return urllib.parse.parse_qs(url.query).get("index", [None])[0], url.netloc
    sys.exit(f"error: invalid store `{store}`\n\nhint: use {STORES}")


@contextlib.contextmanager
def cluster(options):
    """The addresses of our master, which may be a server that ends with this process, and of Mooncake's."""
    address, mooncake = parse(options.store)
    if address is not None:
        yield address, mooncake
        return
    command = [sys.executable, "-m", "tiffin", "up", "--listen", "127.0.0.1:0", "--http", "off", "--json"]
    command += ["--memory", options.memory, "--lease-ttl", f"{options.ttl:g}s"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"XDG_STATE_HOME": folder}
        )
        try:
            yield json.loads(process.stdout.readline())["master"], mooncake
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


class Crew:
    """Workers of one kind. One that dies is restarted."""

    def __init__(self, target, count, plan):
        self._context = multiprocessing.get_context("spawn")
        self._target, self._plan = target, plan
        self.started_again = 0
        self.workers = [self._start(rank) for rank in range(count)]

    def _start(self, rank):
        worker = self._context.Process(target=self._target, args=(rank, self._plan), daemon=True)
        worker.start()
        return worker

    def tend(self):
        """Restart dead workers, and return whether all have finished."""
        for rank, worker in enumerate(self.workers):
            if worker.exitcode not in (None, 0):
                self.started_again += 1
                self.workers[rank] = self._start(rank)
        return all(worker.exitcode == 0 for worker in self.workers)

    def kill_one(self, chance):
        """Kill one running worker, if there is one."""
        working = [worker for worker in self.workers if worker.is_alive()]
        if working:
            chance.choice(working).kill()
