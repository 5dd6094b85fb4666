"""Fixtures of the drop-in's tests: processes that use it, ours or another implementation."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

WORKER = pathlib.Path(__file__).with_name("worker.py")
#: A process that blocks for ever is ended then; no answer takes that long on a busy machine.
ANSWER_SECONDS_MAX = 400


def pytest_addoption(parser):
    parser.addoption(
        "--mooncake-python",
        default=os.environ.get("MOONCAKE_PYTHON", sys.executable),
        help="an interpreter whose `mooncake.store` is tested instead of ours (only the conformance suite)",
    )
    parser.addoption("--answers", help="a file that gets every answer of the conformance suites, as JSON")


def pytest_sessionfinish(session):
    if path := session.config.getoption("--answers"):
        modules = {item.module for item in session.items if hasattr(item.module, "SUITE")}
        found = {pathlib.Path(module.__file__).stem: module.SUITE.known for module in modules}
        pathlib.Path(path).write_text(json.dumps(found))


class Worker:
    """A process that runs the commands of the test; see `worker.py`."""

    def __init__(self, python, folder, environment=()):
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [str(python), str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self.log, "ab"),
            text=True,
            env=dict(os.environ, TMPDIR=str(folder)) | dict(environment),
            cwd=folder,
        )

    def ask(self, **request):
        """The answer: `{"value": …}`, `{"raises": …, "text": …}`, or `{"ended": status}`."""
        guard = threading.Timer(ANSWER_SECONDS_MAX, self.process.kill)
        guard.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            guard.cancel()
        return json.loads(line) if line else {"ended": self.process.wait()}

    def run(self, code):
        answer = self.ask(run=code)
        assert answer == {}, f"{code!r} gave {answer}\n{self.tail()}"

    def eval(self, code):
        answer = self.ask(eval=code)
        assert "value" in answer, f"{code!r} gave {answer}\n{self.tail()}"
        return eval(answer["value"])

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]

    def end(self):
        # A process that has ended leaves its last request in the buffer.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start_ours(tmp_path):
    """Start a process that uses our drop-in, with the names of `worker.py`, in this environment."""
    made = []

    def start(environment=()):
        made.append(Worker(sys.executable, tmp_path, environment))
        return made[-1]

    yield start
    for worker in made:
        worker.end()


@pytest.fixture
def worker(start_ours):
    """A process that uses our drop-in, with the names of `worker.py`."""
    return start_ours()


@pytest.fixture(scope="session")
def start_worker(request):
    """Start a process that uses the implementation under test."""
    python = pathlib.Path(request.config.getoption("--mooncake-python")).absolute()
    return lambda folder, environment=(): Worker(python, folder, environment)


@pytest.fixture(scope="session")
def is_ours(request):
    """Whether our drop-in is under test, and not the original."""
    return pathlib.Path(request.config.getoption("--mooncake-python")).absolute() == pathlib.Path(
        sys.executable
    )
