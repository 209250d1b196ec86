"""Strategies compared: one small run, the turns they take, medians, rules, and a fault."""

import pytest

from experiments import draft_compare as compare
from experiments.measure import Job
from experiments.strategies import Strategy
from tests.experiments.runs import record_of
from tr.decode.stream import Counts
from tr.drafts.lookup import Lookup
from tr.drafts.raw import Raw
from tr.model.sampling import sampling

SMALL = ("device=cpu", "params.prompts=1", "params.rounds=1", "params.steps=1", "max_new_tokens=10")
NAMES = ["raw", "mtp", "dflash2", "dflash2_lookup"]
VALUES = {"tokens_per_step", "step_ms", "tokens_per_s", "rows_per_step", "tokens"} | {
    "table_tokens_per_s",
    "table_tokens_per_s_by_turn",
}


def text(raw: list[int], runs: dict[str, list[Counts]], family: str = "essay") -> compare.Text:
    return compare.Text(family, [1, 2], sampling(), raw, runs)


def counts(kept: list[int], proposed: list[int], seconds: float) -> Counts:
    made = list(range(1 + sum(kept)))
    accepted = [k - 1 for k in kept]
    ran = ["x"] * len(kept)
    return Counts(made, kept, proposed, accepted, ran, seconds=seconds)


@pytest.fixture
def few_turns(monkeypatch):
    monkeypatch.setattr(compare, "TURNS", 3)


def test_a_small_run(tmp_path, few_turns):
    few = "params.strategies=[mtp,dflash2,dflash2_lookup]"
    record = record_of(tmp_path, "+exp=draft_compare", "prompts=math", few, *SMALL)
    figures = record["figures"]
    assert list(figures["strategies"]) == NAMES
    raw = figures["strategies"]["raw"]["math"]
    for name, families in figures["strategies"].items():
        values = families["math"]
        both = VALUES | {"accepted_by_position"}
        assert set(values) == both | {f"sampled_{v}" for v in both} | {"speedup"}
        assert 1 <= values["tokens"] == raw["tokens"] < 10
        assert values["speedup"] == pytest.approx(values["tokens_per_s"] / raw["tokens_per_s"])
        assert values["tokens_per_s"] > 0 and values["step_ms"] > 0
        assert (values["tokens_per_step"] == 1) == (name == "raw")
        assert len(values["accepted_by_position"]) >= (0 if name == "raw" else 3)
    both = figures["dflash2_lookup_over_dflash2"]["math"]
    found = figures["strategies"]
    speeds = [found[n]["math"]["tokens_per_s"] for n in ("dflash2_lookup", "dflash2")]
    assert both["speed_ratio"] == pytest.approx(speeds[0] / speeds[1])
    assert "auto_over_best" not in figures and "steps' own times" in figures["judged_by"]
    for prefix in ("", "sampled_"):
        steps = figures[f"{prefix}steps"]
        assert list(steps) == NAMES and steps["raw"]["1"]["ratio"] == 1
        assert "4" in steps["mtp"] and "8" in steps["dflash2"]
        assert any("(dflash2)" in kind for kind in steps["dflash2_lookup"])
        table = 1e3 / steps["raw"]["1"]["step_ms"]
        assert raw[f"{prefix}table_tokens_per_s"] == pytest.approx(table)
        assert len(raw[f"{prefix}table_tokens_per_s_by_turn"]) == compare.TURNS
        blocks = [steps["dflash2"]["8"], steps["dflash2_lookup"]["8 (dflash2)"]]
        assert blocks[0] == blocks[1]  # timed once
    # greedy and sampled, one prompt, an untimed round and a timed one, three strategies
    assert record["verdict"]["exact"] and record["verdict"]["compared_tokens"] <= 2 * 2 * 3 * 10
    assert not record["simulated_acceptance"]
    assert (tmp_path / "out" / "step_ms.png").exists()


def test_a_random_model_has_one_family(tmp_path, few_turns):
    few = ("weights=random", "model=smoke", "draft=raw", "params.strategies=['oracle rate=0.9']")
    record = record_of(tmp_path, "+exp=draft_compare", *few, *SMALL)
    values = record["figures"]["strategies"]["oracle rate=0.9"]
    assert list(values) == ["random"] and values["random"]["tokens_per_step"] > 1
    assert record["simulated_acceptance"] and record["figures"]["step_context"] == 128


def test_strategies_take_turns(monkeypatch):
    order = []

    def run(self, prompt, draft=None):
        assert draft is not None
        order.append((draft.name, self.tokens))
        return counts([1], [0], 1.0)

    monkeypatch.setattr(Job, "run", run)
    kept = {"raw": Strategy(Raw()), "a": Strategy(Lookup(1, 1, 1, "a")), "b": Strategy(Raw("b"))}
    job, one = Job(None, Raw(), sampling(), 10, 20), text([5, 6, 7], {})  # type: ignore[arg-type]
    for n in range(4):
        compare.turn(job, one, kept, n)
    names = "".join(name[0] for name, _ in order)
    assert names == "rab" + "abr" + "bra" + "rab"
    assert {tokens for _, tokens in order} == {3}
    assert {name: len(runs) for name, runs in one.runs.items()} == {"raw": 4, "a": 4, "b": 4}


def test_speeds_are_of_medians_and_the_untimed_round_does_not_count():
    first = text([], {"x": [counts([4, 2], [7, 3], s) for s in (100.0, 3.0, 1.0, 2.0)]})
    other = text([], {"x": [counts([3], [7], s) for s in (100.0, 9.0, 0.5, 1.0)]})
    slow = [1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 3.0, 2.0, 2.0]  # a turn's load, on every step
    steps = {("x", 8): [2.0 * n for n in slow], ("x", 4): [0.5 * n for n in slow]}
    values = compare.measured([first, other], "x", steps)
    each = [pytest.approx(1e3 * 9 / (2.0 + 0.5 + 2.0) / n) for n in slow]
    assert values["table_tokens_per_s_by_turn"] == each
    assert values["table_tokens_per_s"] == each[1]
    assert values["tokens_per_step"] == 9 / 3 and values["tokens_per_s"] == 9 / (2.0 + 1.0)
    assert values["step_ms"] == 1e3 * 3.0 / 3 and values["rows_per_step"] == (8 + 4 + 8) / 3
    assert values["tokens"] == 9
    assert values["accepted_by_position"] == pytest.approx([1, 2 / 3, 1 / 3, 0, 0, 0, 0])
    empty = compare.measured([], "x", steps)
    assert empty["tokens_per_s"] is None and empty["table_tokens_per_s"] is None
    assert empty["table_tokens_per_s_by_turn"] == []


def test_what_counts_of_a_text():
    class Fixed:
        sampling = sampling()

        def run(self, prompt):
            return Counts(tokens=[7] * 40)

    assert len(compare.written(Fixed(), "copy", [1]).raw) == 40  # type: ignore[arg-type]
    assert len(compare.written(Fixed(), "essay", [1]).raw) == 16  # type: ignore[arg-type]
    assert len(compare.written(Fixed(), "essay", [7] * 20).raw) == 2  # type: ignore[arg-type]


def speeds(sampled: float = 1.0, **by_family: float | None) -> dict:
    """Speeds by the table, less in every turn; the timed rounds say the opposite, for nothing."""
    found = {}
    for family, speed in by_family.items():
        turns = [speed * n for n in (1.1, 1.0, 0.8)] if speed else []
        values = {"table_tokens_per_s": speed, "tokens_per_step": 2.0}
        values["tokens_per_s"] = speed and 1e4 / speed
        drawn: dict = {key: v and v * sampled for key, v in values.items()}
        drawn["table_tokens_per_s_by_turn"] = [v * sampled for v in turns]
        values["table_tokens_per_s_by_turn"] = turns
        found[family] = values | {f"sampled_{key}": v for key, v in drawn.items()}
    return found


def test_the_two_rules():
    figures = {
        "strategies": {
            "raw": speeds(code=100.0, copy=50.0),
            "dflash2": speeds(code=200.0, copy=100.0),
            "dflash2_lookup": speeds(code=193.0, copy=141.0),
            "oracle rate=0.9": speeds(code=900.0, copy=900.0),
            "auto": speeds(code=195.0, copy=135.0),
        }
    }
    compare.judged(figures, ["code", "copy"])
    tail = figures["dflash2_lookup_over_dflash2"]
    assert (tail["code"]["asked_ratio"], tail["code"]["met"]) == (0.97, False)
    assert (tail["copy"]["asked_ratio"], tail["copy"]["met"]) == (1.4, True)
    assert tail["copy"]["table_speed_ratio"] == 1.41
    assert tail["copy"]["speed_ratio"] == pytest.approx(1 / 1.41)
    auto = figures["auto_over_best"]
    assert (auto["code"]["best"], auto["code"]["met"]) == ("dflash2", True)
    assert (auto["copy"]["best"], auto["copy"]["met"]) == ("dflash2_lookup", False)
    assert figures["strategies"]["auto"]["copy"]["speedup"] == pytest.approx(50 / 135)
    empty = {"strategies": {"raw": speeds(code=None), "auto": speeds(code=None)}}
    compare.judged(empty, ["code"])
    assert empty["auto_over_best"]["code"]["met"] is False


def test_a_rule_asks_for_greedy_and_sampled_texts():
    """And each has its own best strategy."""
    found = {
        "raw": speeds(code=100.0),
        "lookup": speeds(0.5, code=210.0),
        "mtp": speeds(code=150.0),
        "auto": speeds(0.7, code=209.0),
    }
    compare.judged({"strategies": found}, ["code"])
    values = compare.rule(found, "auto", ["raw", "lookup", "mtp"], "code", 0.97)
    assert (values["best"], values["sampled_best"]) == ("lookup", "mtp")
    assert values["table_speed_ratio"] == pytest.approx(209 / 210)
    assert values["sampled_table_speed_ratio"] == pytest.approx(0.7 * 209 / 150)
    assert values["met"] and not compare.rule(found, "auto", ["mtp"], "code", 0.98)["met"]


def test_the_median_turn_counts_and_the_middle_half_is_told():
    found = {"auto": speeds(code=100.0), "mtp": speeds(code=100.0)}
    for prefix in ("", "sampled_"):
        turns = [90.0, 99.0, 100.0, 101.0, 120.0]
        found["auto"]["code"][f"{prefix}table_tokens_per_s_by_turn"] = turns
        found["mtp"]["code"][f"{prefix}table_tokens_per_s_by_turn"] = [100.0] * 5
    values = compare.rule(found, "auto", ["mtp"], "code", 0.97)
    for prefix in ("", "sampled_"):
        assert values[f"{prefix}table_speed_ratio"] == 1.0
        assert values[f"{prefix}table_speed_ratio_range"] == [0.99, 1.01]
    assert values["met"]
    none = {"auto": speeds(code=None), "mtp": speeds(code=None)}
    assert compare.rule(none, "auto", ["mtp"], "code", 0.9)["table_speed_ratio_range"] == [None] * 2


def test_a_kind_of_step_is_a_program_and_its_rows():
    run = counts([2, 1], [7, 3], 1.0)
    run.ran = ["block", "copy"]
    assert compare.kinds(run) == [("block", 8), ("copy", 4)]
    block, long = [4.0, 5.0, 9.0], [6.0, 6.0, 7.0]
    steps = {"raw": {("raw", 1): [2.0, 1.0, 3.0]}}
    steps["chain"] = {("dflash2", 8): block, ("chain", 16): long}
    assert compare.table(steps) == {
        "raw": {"1": {"step_ms": 2.0, "ratio": 1.0}},
        "chain": {
            "16": {"step_ms": 6.0, "ratio": 3.0},
            "8 (dflash2)": {"step_ms": 5.0, "ratio": 2.5},
        },
    }


def test_steps_that_do_the_same_work_are_one_kind():
    plain, own = Strategy(Raw()), Strategy(Raw(), plain=False)
    one = compare.work("lookup", plain, "lookup", 1)
    assert (
        one == compare.work("mtp tokens=4", own, "mtp", 1) == compare.work("raw", plain, "raw", 1)
    )
    copied = compare.work("auto", plain, "copy + dflash2_lookup", 16)
    assert copied == compare.work("chain", plain, "copy", 16)
    assert copied != compare.work("chain", plain, "copy", 8)
    long = compare.work("dflash2_lookup", plain, "dflash2_lookup", 16)
    assert long == compare.work("chain", plain, "chain", 16)
    assert long != compare.work("chain after=2", own, "chain", 16)


def test_a_wrong_token_is_found():
    right, wrong = counts([2], [3], 1.0), counts([2], [3], 1.0)
    wrong.tokens = [0, 9, 2]
    kept = {"raw": Strategy(Raw()), "mtp": Strategy(Raw())}
    fine = text([0, 1, 2], {"raw": [right] * 2, "mtp": [right] * 2})
    bad = text([0, 1, 2], {"raw": [right] * 2, "mtp": [right, wrong]}, "code")
    assert compare.compare({"greedy": [fine]}, kept) == (6, None)
    compared, first = compare.compare({"greedy": [fine], "sampled": [fine, bad]}, kept)
    assert compared == 18 and first is not None
    assert (first["strategy"], first["family"], first["mode"]) == ("mtp", "code", "sampled")
    assert (first["text"], first["position"], first["speculative"]) == (1, 1, 9)


def test_a_prompt_without_room_is_refused(tmp_path):
    with pytest.raises(ValueError, match="raise kv.capacity_tokens, which is 64"):
        record_of(tmp_path, "+exp=draft_compare", "kv.capacity_tokens=64", *SMALL)
