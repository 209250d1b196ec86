"""serve_load and serve_cost on the embedded model, and what they say of a server that errs."""

import pytest

from experiments import serve_cost, serve_load
from tests.experiments.runs import record_of, run

SMALL = ("device=cpu", "threads=1", "max_new_tokens=6")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(serve_load, "TEXTS", 1)


def load(folder, run, **params):
    few = {"sequential": 9, "clients": 4, "waiting": 2, "seconds": 2, "within": 0.5}
    args = [f"params.{name}={value}" for name, value in {**few, **params}.items()]
    return run(folder, "+exp=serve_load", *SMALL, *args)


def test_load(tmp_path):
    record = load(tmp_path, record_of, grown=1)
    figures, crowd = record["figures"], record["figures"]["concurrent"]
    assert record["verdict"]["exact"] and record["verdict"]["compared_tokens"] >= 9 * 3
    assert figures["sequential"] == {"answered": 9} and figures["stuck_jobs"] == 0
    assert crowd["answered"] > 0 and crowd["left"] > 0 and crowd["refused"] > 0
    assert figures["engine"]["failed"] == 0 and figures["longest_wait_s"] > 0


def test_memory_that_grows_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(serve_load, "under_load", lambda *_: (100.0, 106.0, 1.0))
    code, record = load(tmp_path, run, sequential=1)
    failure = record["verdict"]["first_divergence"]["failure"]
    assert code == 1 and failure == "memory grew by 6.0 %, from 100 to 106 MiB"


QUIET = {"status": 200, "text": "seven", "tokens": 2, "left": False, "ended": True}


@pytest.mark.parametrize(
    "told, exact, answered, left, refused, failures",
    [
        ({}, True, 1, 0, 0, 0),
        ({"text": "eight"}, False, 1, 0, 0, 0),
        ({"tokens": 3}, False, 1, 0, 0, 0),
        ({"text": "sev", "left": True, "ended": False}, True, 0, 1, 0, 0),
        ({"text": "sex", "left": True, "ended": False}, False, 0, 1, 0, 0),
        ({"status": 429, "ended": False}, True, 0, 0, 1, 0),
        ({"ended": False}, True, 0, 0, 0, 1),
        ({"failed": "internal error"}, True, 0, 0, 0, 1),
        ({"status": 500}, True, 0, 0, 0, 1),
    ],
)
def test_what_a_request_was_told(told, exact, answered, left, refused, failures):
    tally = serve_load.Tally()
    tally.hear(serve_load.Asked("chat 0", "/", {}), QUIET, {**QUIET, **told})
    assert (tally.first is None) == exact
    assert (tally.answered, tally.left, tally.refused) == (answered, left, refused)
    assert len(tally.failures) == failures


def test_cost(tmp_path):
    few = ("params.contexts=[40]", "params.pairs=2")
    record = record_of(tmp_path, "+exp=serve_cost", *SMALL, *few)
    found = record["figures"]["contexts"]["40"]
    assert record["verdict"] == {"exact": True, "compared_tokens": 48, "first_divergence": None}
    for name in ("chat", "messages"):
        told = found[name]
        assert told["direct"]["tokens_per_s"] > 0 and told["http"]["first_ms"] > 0
        lost = told["again_lost_ms"]
        assert lost["low"] <= lost["median"] <= lost["high"]


def test_a_loss_is_that_of_pairs():
    """A machine that slows down does not look like a loss, and an outlier does not either."""
    slow = [1, 1, 2, 2, 40, 4, 8, 8]

    def told(factor):
        return [
            {"first": 0.1 * s * factor, "seconds": 0.5 * s * factor, "tokens": 4, "cpu": s}
            for s in slow
        ]

    own, other = ({"first": told(f), "again": told(f)} for f in (1.0, 1.25))
    other["again"][4]["seconds"] = 1e3
    found = serve_cost.compare(own, other)
    assert found["speed_lost_fraction"]["median"] == pytest.approx(0.2)
    assert found["first_lost_fraction"] == pytest.approx(
        {"median": 0.25, "low": 0.25, "high": 0.25}
    )
    assert found["cpu_more_fraction"]["median"] == 0
    assert serve_cost.middle(range(100)) == {"median": 49.5, "low": 40, "high": 59}
