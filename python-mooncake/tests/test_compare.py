"""The comparison of two implementations, `make conformance PEER=1`, on answers that are made up."""

import importlib.util
import pathlib

import conformance
import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "compare.py"
spec = importlib.util.spec_from_file_location("compare", SCRIPT)
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)

SUITE = conformance.Suite({"rows": "x = 1\nx -> 1\nx + 1 -> 2 | ours 3\nx + 2 -> 3 | fault"})
PRELUDE = {}
FAULT = {"value": "3"}


@pytest.mark.parametrize(
    ("ours", "official", "found"),
    [
        ([{"value": "1"}, {"value": "3"}, FAULT], [{"value": "1"}, {"value": "2"}, None], (2, 0)),
        ([{"value": "1"}, {"value": "3"}, FAULT], [{"value": "0"}, {"value": "2"}, None], (3, 1)),
        (
            [{"raises": "TypeError", "text": "ours"}, {"value": "3"}, FAULT],
            [{"raises": "TypeError", "text": "theirs"}, {"value": "3"}, FAULT],
            (0, 0),
        ),
        ([{"value": "1"}, {"value": "3"}, FAULT], [{"ended": -11}, {"ended": -11}, None], (3, 1)),
    ],
    ids=["listed", "one is not", "texts of exceptions", "crash"],
)
def test_rows_that_are_not_listed_are_counted(monkeypatch, capsys, ours, official, found):
    monkeypatch.setattr(compare, "suites", lambda: {"test_rows": SUITE})
    both = [{"test_rows": {"rows": [PRELUDE, *answers]}} for answers in (ours, official)]
    assert compare.compare(*both) == found
    assert capsys.readouterr().out.count(f"[{compare.NOT_LISTED}]") == found[1]
