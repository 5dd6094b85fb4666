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


def test_section_without_its_module_is_not_compared(monkeypatch, capsys):
    """Its other rows run without what the first line imports, so that their answers mean nothing."""
    monkeypatch.setattr(compare, "suites", lambda: {"test_rows": SUITE})
    missing = {"raises": "ModuleNotFoundError", "text": "No module named 'torch'"}
    values = [{"value": "1"}, {"value": "3"}, FAULT]
    ours = {"test_rows": {"rows": [missing, *values]}}
    for official in ([missing, *values], [PRELUDE, {"value": "0"}, {"value": "2"}, None]):
        assert compare.compare(ours, {"test_rows": {"rows": official}}) == (0, 0)
        assert compare.compare({"test_rows": {"rows": official}}, ours) == (0, 0)
    assert capsys.readouterr().out == ""
