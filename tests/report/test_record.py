"""Records are whole or refused by name."""

import json

import pytest

from tr.report import record
from tr.report.record import Outcome, Verdict


def built(figures=None, **outcome):
    made = Outcome(figures or {"step_ms": 1.5}, **outcome)
    return record.build(made, "decode", "command", {"seed": 1}, 1, {"name": "cpu"})


def test_round_trip(tmp_path):
    made = built({"contexts": {"0": {"step_ms": 2.0, "rows": [1, 2]}}}, verdict=Verdict(True, 9))
    record.save(made, tmp_path / "new" / "record.json")
    assert record.load(tmp_path / "new" / "record.json") == json.loads(json.dumps(made))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    "figures, message",
    [
        ({"a": {"step_ms": float("inf")}}, "figure a.step_ms is inf"),
        ({"a": [1.0, float("nan")]}, "figure a.1 is nan"),
        ({"a": {"b": object()}}, "figure a.b is a object, not a number"),
    ],
)
def test_figures_must_be_finite_numbers(figures, message):
    with pytest.raises(ValueError, match=message):
        built(figures)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:-40], "is not whole JSON"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "record schema 2, expected 1"),
        (lambda text: text.replace('"verdict"', '"verdikt"'), "it lacks verdict"),
        (lambda text: text.replace('"seed": 1,\n  "figures"', '"seed": "1",\n  "figures"'), "seed"),
        (lambda text: "[]", "has no schema number"),
    ],
)
def test_a_bad_file_is_named(tmp_path, change, message):
    path = tmp_path / "record.json"
    record.save(built(), path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        record.load(path)
    assert str(path) in str(caught.value)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "record.json"
    record.save(built(), path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        record.save({"speed": float("nan")}, path)
    with pytest.raises(TypeError):
        record.write(path, 3)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
