"""Sections of calls and their answers, in the format of the conformance suites.

A section is a program: each line is run, in order, in one process; a line with `-> …` is a test, and says
what the expression comes to. What stands behind `|` is how we differ, and every such line is listed in
docs/mooncake-compat.md:

- `| ours …`: the original answers what stands before, we answer this.
- `| fault`: the original crashes, hangs or cuts the value short; what stands before is our answer.
- `| relaxed …`: our answer unless leases are strict.

A section whose first line imports a module that is not installed is skipped.

A suite runs against any implementation: `pytest … --mooncake-python .venv-peer/bin/python`.
"""

import dataclasses

import pytest

STRICT = "environment=dict(TIFFIN_MASTER_LEASE_MODE='strict')"


@dataclasses.dataclass
class Line:
    """One step of a section; a test if it has an expected result."""

    code: str
    official: str = ""
    ours: str = ""
    is_fault: bool = False

    @property
    def is_test(self):
        return bool(self.official)


def read(text, is_strict):
    """The steps of a section. A step continues in the indented lines below it."""
    steps = []
    for line in text.strip().splitlines():
        if line.startswith(" "):
            steps[-1].append(line)
        else:
            steps.append([line])
    return [read_step(step, is_strict) for step in steps]


def read_step(step, is_strict):
    code, arrow, answer = " ".join(line.strip() for line in step).rpartition(" -> ")
    if not arrow:
        return Line("\n".join(step))
    official, _, remark = (part.strip() for part in answer.partition(" | "))
    kind, _, differs = remark.partition(" ")
    applies = kind == "ours" or (kind == "relaxed" and not is_strict)
    return Line(code.strip(), official, differs if applies else official, kind == "fault")


def shown(expected):
    return repr(eval(expected, {"MIB": 1 << 20}))


class Suite:
    """Sections by name; those whose name begins with `strict` have a master with strict leases."""

    def __init__(self, sections):
        self.sections = sections
        self.known = {}

    def lines(self, name):
        return read(self.sections[name], name.startswith("strict"))

    def cases(self):
        """One test for each line."""
        return [
            pytest.param(name, number, id=f"{name}-{number}-{line.code[:60]}")
            for name in self.sections
            for number, line in enumerate(self.lines(name))
        ]

    def test(self):
        """The test of the module that has this suite."""

        @pytest.mark.parametrize(("name", "number"), self.cases())
        def check(name, number, start_worker, is_ours, tmp_path_factory):
            answers = self.answers(name, start_worker, is_ours, tmp_path_factory)
            self.check(name, number, answers, is_ours)

        return check

    def answers(self, name, start_worker, is_ours, folders):
        """The result of each line of a section; a section runs once, for its first test."""
        if name not in self.known:
            self.known[name] = list(self._run(name, start_worker, is_ours, folders))
        return self.known[name]

    def _run(self, name, start_worker, is_ours, folders):
        worker = start_worker(folders.mktemp("section"))
        try:
            for line in self.lines(name):
                if line.is_fault and not is_ours:
                    yield None
                    continue
                yield worker.ask(**{"eval" if line.is_test else "run": line.code})
        finally:
            worker.end()

    def check(self, name, number, answers, is_ours):
        """Compare one answer with the expected one."""
        line, answer = self.lines(name)[number], answers[number]
        if answers[0].get("raises") == "ModuleNotFoundError":
            pytest.skip(answers[0]["text"])
        if answer is None:
            pytest.skip("the original crashes, hangs or cuts the value short here")
        if not line.is_test:
            assert answer == {}, f"{line.code} gave {answer}"
            return
        expected = line.ours if is_ours else line.official
        if expected.startswith("raises "):
            _, kind, *words = expected.split()
            assert answer.get("raises") == kind, f"{line.code} gave {answer}"
            assert all(word in answer["text"] for word in words)
        else:
            assert answer.get("value") == shown(expected), f"{line.code} gave {answer}"

    def differences(self):
        """Every line where our answer differs from the original's."""
        for name in self.sections:
            for line in self.lines(name):
                if line.is_fault:
                    yield f"{line.code}  ->  crash, hang or cut | {line.official}"
                elif line.ours != line.official:
                    yield f"{line.code}  ->  {line.official} | {line.ours}"
