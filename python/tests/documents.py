"""Runs the commands and programs of a Markdown document.

A fenced block marked `console` is a terminal: a line that starts with `$ ` is a command, the lines below
it are what it prints. `…` stands for anything in a line, and alone on a line for any number of lines. A
command shown with no output may print what it likes. One that ends in ` &` stays in the background to the
end of the document, and the next one waits until it has printed what is shown. A command may only fail
where an `error:` is shown. Warnings in a server's log depend on the machine and need not be shown.

A port that a document names is the reader's to change: each stands for one that is free here, and so do the
ports that the commands use where none is named.

A block marked `python` is a program; one that starts with `>>> ` is a session in the interpreter. Any
other mark (`sh`, `text`, …) is not run.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

#: A command that takes longer hangs.
SECONDS_MAX = 600
ANYTHING = "…"
WARNING = re.compile(r"\d{4}-\d\d-\d\dT\S+Z +WARN ")
PORT = re.compile(r"(?<=127\.0\.0\.1:)[1-9]\d*|(?<=localhost:)[1-9]\d*|(?<=port=)[1-9]\d*")
#: The default addresses of servers and clients.
DEFAULT_PORTS = {"TIFFIN_MASTER_LISTEN": "7400", "TIFFIN_MASTER_HTTP": "7401", "TIFFIN_MASTER": "7400"}


@dataclasses.dataclass
class Block:
    """A fenced block that can be run, and the line on which it starts."""

    line: int
    kind: str
    text: str


@dataclasses.dataclass
class Step:
    """One command of a terminal and its expected output."""

    command: str
    shown: list


def blocks(document):
    """The blocks of a document that can be run."""
    found = []
    for match in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
        if match[1] in ("console", "python"):
            found.append(Block(document.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


def steps(console):
    """The commands of a terminal; one that ends in a backslash continues in the next line."""
    found = []
    for line in console.splitlines():
        if found and found[-1].command.endswith("\\") and not found[-1].shown:
            found[-1].command = f"{found[-1].command}\n{line.removeprefix('> ')}"
        elif line.startswith("$ "):
            found.append(Step(line[2:], []))
        elif found:
            found[-1].shown.append(line)
        else:
            raise AssertionError(f"a console block starts with {line!r}, which is not a command")
    return found


def pattern(shown):
    """The expected output as a regular expression."""
    lines = []
    for line in shown:
        if line.strip() == ANYTHING:
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append("[^\n]*".join(map(re.escape, line.split(ANYTHING))) + r"\s*?\n")
    return "".join(lines)


class Reader:
    """Run a document in an empty folder, with the wheels installed."""

    def __init__(self, folder, environment=()):
        self.folder = folder
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = dict(os.environ, PATH=path, HOME=str(folder), NO_COLOR="1") | dict(environment)
        # Named nodes would leave their memory behind, for a next start that never comes.
        self.environment.setdefault("TIFFIN_NODE_POOL", "off")
        self.background = []
        self.ports = {}
        for variable, port in DEFAULT_PORTS.items():
            self.environment[variable] = f"127.0.0.1:{self.port(port)}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def follow(self, document):
        """Run every block; an AssertionError names the line of the first block with another output."""
        for block in blocks(PORT.sub(lambda match: self.port(match[0]), document)):
            try:
                self.console(block.text) if block.kind == "console" else self.python(block.text)
            except AssertionError as error:
                raise AssertionError(f"the block on line {block.line}: {error}") from None

    def port(self, named):
        """The port of this machine that replaces a port of the document."""
        if named not in self.ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.ports[named] = str(free.getsockname()[1])
        return self.ports[named]

    def console(self, text):
        for step in steps(text):
            if step.command.rstrip().endswith("&"):
                self.start(step)
            else:
                self.run(step)

    def run(self, step):
        command = ["bash", "-o", "pipefail", "-c", step.command]
        status, output = self.finish(command)
        failure_is_shown = any("error:" in line for line in step.shown)
        assert (status == 0) != failure_is_shown, f"`{step.command}` ended with {status}:\n{output}"
        matches = not step.shown or re.fullmatch(pattern(step.shown), output)
        assert matches, f"`{step.command}` shows\n{indent(step.shown)}\nand printed\n{output}"

    def start(self, step):
        command = ["bash", "-c", f"exec {step.command.rstrip().rstrip('&')}"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        self.background.append(process)
        output = []
        settled = threading.Event()

        def listen():
            for line in process.stdout:
                if not WARNING.match(line):
                    output.append(line)
                if re.match(pattern(step.shown), "".join(output)):
                    settled.set()
            settled.set()

        threading.Thread(target=listen, daemon=True).start()
        if step.shown:
            settled.wait(SECONDS_MAX)
            came = re.match(pattern(step.shown), "".join(output))
            assert came, f"`{step.command}` shows\n{indent(step.shown)}\nand printed\n{''.join(output)}"

    def python(self, text):
        in_interpreter = text.startswith(">>> ")
        program = f"text = {text!r}\n{DOCTEST}" if in_interpreter else text
        # A program without an address makes its own store; the commands have a default address.
        environment = {name: value for name, value in self.environment.items() if name not in DEFAULT_PORTS}
        status, output = self.finish([sys.executable, "-c", program], environment)
        assert status == 0, f"the program ended with {status}:\n{output}"

    def finish(self, command, environment=None):
        """The status and output of a command that must end in time."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                env=environment or self.environment,
                timeout=SECONDS_MAX,
            )
        except subprocess.TimeoutExpired as late:
            raise AssertionError(
                f"{command[-1]!r} had not ended after {SECONDS_MAX} s: {late.output}"
            ) from None
        return done.returncode, done.stdout


DOCTEST = """
import doctest, sys
test = doctest.DocTestParser().get_doctest(text, {}, "the document", None, 0)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
sys.exit(runner.run(test).failed)
"""


def indent(lines):
    return "\n".join(f"    {line}" for line in lines)
