"""The experiment that judges speculation: its counting, a small run, and a fault it must see."""

import sys
from pathlib import Path

import pytest

from experiments.dflash2_verify import divergence
from experiments.measure import LOOP, Job, Tally, loop_start, tally
from kernels.accept import reference
from tr import experiment
from tr.decode.stream import Counts
from tr.drafts.lookup import Lookup
from tr.report import record

WORDS = list(range(100, 200))


def test_a_loop_starts_where_a_16_gram_is_complete_again():
    assert LOOP == 16
    assert loop_start(WORDS, list(range(300, 400))) == 100
    once = WORDS[:20]
    assert loop_start([], once) == 20
    # the 16 tokens of the second round are complete with output[35]: 35 tokens come before
    assert loop_start([], once + once) == 35
    assert loop_start([], once + once[:15]) == 35 and loop_start([], once + once[:16]) == 35
    assert loop_start([], [5] * 40) == 16
    assert loop_start([], []) == 0


def test_the_prompt_counts_as_seen_but_not_as_output():
    assert loop_start(WORDS, WORDS[:40]) == 15
    assert loop_start(WORDS, [7, *WORDS[50:80]]) == 16
    # a gram that the prompt itself repeats says nothing; one that reaches into the output does
    assert loop_start(WORDS[:20] * 2, list(range(300, 340))) == 40
    assert loop_start(WORDS[:20] * 2, [WORDS[0], 300, 301]) == 0


def counts(kept: list[int], accepted: list[int], proposed: int = 7) -> Counts:
    made = 1 + sum(kept)
    return Counts(
        tokens=list(range(made)),
        kept=kept,
        accepted=accepted,
        proposed=[proposed] * len(kept),
        seconds=2.0,
    )


def test_tally_counts_steps_before_a_loop():
    total = Tally()
    assert total.tokens_per_step is None and total.tokens_per_s is None
    assert total.accepted_by_position == []
    total.add(counts([4, 1, 8], [3, 0, 7]), limit=14)  # 1 + 13: nothing loops
    assert (total.steps, total.tokens, total.looped, total.made) == (3, 13, 0, 13)
    assert total.accepted_by_position == [2 / 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3]
    assert total.tokens_per_step == 13 / 3 and total.tokens_per_s == 13 / 2.0

    total.add(counts([4, 2, 8], [3, 1, 7]), limit=8)  # the loop starts inside the last step
    assert (total.steps, total.tokens, total.looped, total.made) == (5, 19, 7, 27)
    assert total.reached == (4, 3, 3, 1, 1, 1, 1)
    assert total.tokens_per_step == 19 / 5 and total.tokens_per_s == 27 / 4.0

    total.add(counts([2, 2], [1, 1]), limit=0)  # all of it is a loop
    assert (total.steps, total.tokens, total.looped, total.made) == (5, 19, 11, 31)


def test_tally_of_other_widths_and_of_a_cut():
    total = Tally()
    total.add(counts([1, 1], [0, 0], proposed=0), limit=3)
    assert total.accepted_by_position == [] and total.tokens_per_step == 1.0
    total.add(counts([2], [3], proposed=3), limit=3)  # the last step was cut to 2 of its 4 tokens
    assert total.reached == (1, 1, 1) and total.tokens == 4
    total.add(counts([2], [1], proposed=1), limit=3)
    assert total.reached == (2, 1, 1)


def test_tallies_join():
    one, other = Tally(), Tally()
    one.add(counts([4, 1], [3, 0]), limit=6)
    other.add(counts([2, 3], [1, 2], proposed=3), limit=3)  # the second step loops
    one.join(other)
    assert (one.steps, one.tokens, one.made, one.looped, one.seconds) == (3, 7, 10, 3, 4.0)
    assert one.reached == (2, 1, 1, 0, 0, 0, 0) and one.rows == 8 + 8 + 4


def test_tally_of_jobs(monkeypatch):
    answers, used = {3: counts([4], [3]), 5: counts([2], [1])}, []

    def run(self, prompt, draft=None):
        used.append(draft)
        return answers[len(prompt)]

    monkeypatch.setattr(Job, "run", run)
    job, done = Job(None, None, None, 10, 20), []  # type: ignore[arg-type]
    prompts, drafts = [[1] * 3, [2] * 5], [Lookup(1, 1, 1), Lookup(2, 1, 1)]
    total, outputs = tally(job, prompts, True, done.append, drafts)
    assert total.tokens == 6 and done == [10, 10] and used == drafts
    assert outputs == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert tally(job, prompts, True, done.append) == (total, outputs) and used[2:] == [None, None]


@pytest.mark.parametrize(
    "raw, spec, where",
    [
        ([1, 2, 3], [1, 5, 3], (1, 2, 5)),
        ([1, 2, 3], [1, 2], (2, 3, None)),
        ([1, 2], [1, 2, 9], (2, None, 9)),
        ([], [4], (0, None, 4)),
    ],
)
def test_divergence(raw, spec, where):
    assert tuple(divergence(raw, spec).values()) == where
    assert list(divergence(raw, spec)) == ["position", "raw", "speculative"]


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run a small one in an empty folder: exit code, standard output, the folder of its files."""

    def call(*args: str) -> tuple[int, str, Path]:
        small = ("params.prompts=1", "max_new_tokens=16", "params.sampled_tokens=16")
        own = ("kv.capacity_tokens=1024", "threads=1", *args)
        monkeypatch.setattr(sys, "argv", ["experiment", "+exp=dflash2_verify", *small, *own])
        monkeypatch.chdir(tmp_path)
        code = experiment.main()
        out = capsys.readouterr().out
        return code, out, Path(out.splitlines()[-1])

    return call


FAMILY = {
    "tokens_per_step",
    "sampled_tokens_per_step",
    "accepted_by_position",
    "sampled_accepted_by_position",
    "raw_tokens_per_s",
    "speculative_tokens_per_s",
    "sampled_speculative_tokens_per_s",
    "speedup",
    "prompts",
    "counted_tokens",
    "looped_tokens",
    "refused_drafts",
}
MTP, REFERENCE = {"mtp_tokens_per_step", "mtp_tokens_per_s"}, {"raw_reference_tokens_per_s"}


def test_a_small_run(command):
    code, out, folder = command("device=cpu")
    made = record.load(folder / "record.json")
    assert code == 0 and list(made) == list(record.KEYS)
    # greedy and sampled: 4 families, 1 prompt, at most 16 tokens, unless one ends by itself
    verdict = made["verdict"]
    assert verdict["exact"] and verdict["first_divergence"] is None
    assert 64 < verdict["compared_tokens"] <= 128
    figures = made["figures"]
    assert (figures["draft"], figures["rows"]) == ("dflash2", 8)
    assert list(figures["families"]) == ["essay", "code", "math", "copy"]
    for family in figures["families"].values():
        assert set(family) == FAMILY | MTP | REFERENCE
        assert 1 <= family["tokens_per_step"] <= 8 and family["prompts"] == 1
        shares = family["accepted_by_position"]
        assert len(shares) == 7 and shares == sorted(shares, reverse=True)
        assert family["raw_tokens_per_s"] > 0 and family["speculative_tokens_per_s"] > 0
        fastest = max(family["raw_tokens_per_s"], family["raw_reference_tokens_per_s"])
        assert family["speedup"] == pytest.approx(family["speculative_tokens_per_s"] / fastest)
    assert figures["families"]["copy"]["looped_tokens"] == 0
    assert {"record.json", "report.md"} < {p.name for p in folder.iterdir()}
    assert any(p.suffix == ".png" for p in folder.rglob("*"))
    assert made["simulated_acceptance"] is False and made["config"]["run"] == "dflash2_verify"
    assert f"{verdict['compared_tokens']} tokens compared" in out


QUICK = ("params.reference=false", "params.mtp=false")


@pytest.mark.parametrize("draft, rows", [("mtp", 4), ("lookup", 8), ("oracle", 8), ("raw", 1)])
def test_another_strategy_gives_the_same_report(command, draft, rows):
    code, _, folder = command(f"draft={draft}", "prompts=math", *QUICK)
    made = record.load(folder / "record.json")
    assert code == 0 and made["verdict"]["exact"]
    assert (made["figures"]["draft"], made["figures"]["rows"]) == (draft, rows)
    assert made["simulated_acceptance"] is (draft == "oracle")
    family = made["figures"]["families"]["math"]
    assert set(family) == FAMILY and family["prompts"] == 1
    assert draft == "lookup" or len(family["accepted_by_position"]) == rows - 1
    assert (family["tokens_per_step"] > 1) == (draft != "raw") or draft == "lookup"


def test_a_model_that_is_not_exact_is_found_out(command, monkeypatch):
    """Accepting one draft too many makes the text depend on the draft."""
    accepted = reference.accepted

    def careless(drafts, chosen):
        right = accepted(drafts, chosen)
        return (right + 1).clamp(max=len(drafts))

    monkeypatch.setattr(reference, "accepted", careless)
    code, out, folder = command("prompts=essay", *QUICK)
    assert code == 1 and "NOT exact" in out
    verdict = record.load(folder / "record.json")["verdict"]
    assert verdict["exact"] is False
    first = verdict["first_divergence"]
    assert set(first) == {"family", "prompt", "mode", "position", "raw", "speculative"}
    assert (first["family"], first["prompt"], first["mode"]) == ("essay", 0, "greedy")
    assert first["raw"] != first["speculative"] and 1 <= first["position"] < 16
