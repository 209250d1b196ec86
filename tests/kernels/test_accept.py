"""The end of a step: what stays of it and what it writes, told again in plain Python."""

import math

import pytest
import torch

from kernels.accept.reference import MUTATES
from kernels.define import VARIANTS, Target, refusal
from tr.tree import map_tensors

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLE = {
    name: call
    for name, call in VARIANTS["accept"].items()
    if not refusal("accept", name, Target.of(DEVICE))
}
VARIANT = pytest.mark.parametrize("variant", sorted(TABLE))
VOCAB, IDS, D, POS, CAPACITY = 4500, 4300, 1100, 20, 41  # three blocks of logits, two of columns
NAMES = (
    "logits", "ids", "chosen", "drafts", "ends", "start", "last", "hidden", "squares", "taps",
    *MUTATES,
)  # fmt: skip


def made(rows: int, right: int | None = None, width: int = 0, ends=(), **changes) -> dict:
    """Arguments by name: a step whose first `right` drafts (None: all) are the target's own."""
    g = torch.Generator().manual_seed(rows)
    chosen = torch.randint(10, IDS, (rows,), generator=g)
    drafts = chosen[:-1].clone()
    if right is not None and right < rows - 1:
        drafts[right] -= 1
    history = torch.randint(10, IDS, (CAPACITY,), generator=g)
    numbers = {"start": 0, "last": 1000, "pos": POS, "behind": POS, "pending": 0, "count": 3}
    values = {
        "logits": torch.randn(rows, VOCAB, generator=g),
        "ids": IDS,
        "chosen": chosen,
        "drafts": drafts if rows > 1 else None,
        "ends": torch.tensor([*ends, *[-1] * (16 - len(ends))]),
        "hidden": torch.randn(rows, D, generator=g),
        "squares": None,
        "taps": torch.randn(rows, width, generator=g),
        "anchor": history[POS].clone(),
        "held_hidden": torch.randn(16, D, generator=g),
        "held_taps": torch.randn(16, width, generator=g),
        "history": history,
        **{name: torch.tensor(n) for name, n in numbers.items()},
        **changes,
    }
    return map_tensors(lambda x: x.to(DEVICE), values)


def run(variant: str, values: dict) -> tuple[list[int], dict]:
    """What the variant gives, and every argument as it leaves it."""
    own = map_tensors(torch.clone, values)
    return TABLE[variant](*(own[name] for name in NAMES)).tolist(), own


def kept(values: dict) -> int:
    """How many rows stay, by the rules one after the other."""
    chosen, ends = values["chosen"].tolist(), set(values["ends"].tolist()) - {-1}
    read = [int(values["anchor"])]
    read += [] if values["drafts"] is None else values["drafts"].tolist()
    if not all(map(math.isfinite, values["logits"][:, :IDS].flatten().tolist())):
        return 0
    for i, token in enumerate(read):
        at = int(values["pos"]) + i
        if at >= int(values["last"]) or (token in ends and at > int(values["start"])):
            return i
        if i and token != chosen[i - 1]:
            return i
    return len(read)


def check(variant: str, values: dict, want: int) -> None:
    rows, chosen = len(values["chosen"]), values["chosen"].tolist()
    drafts = [] if values["drafts"] is None else values["drafts"].tolist()
    assert kept(values) == want
    result, left = run(variant, values)
    assert result == [want, *chosen, *drafts]
    for name in ("pos", "behind"):
        assert int(left[name]) == POS + want
    assert int(left["pending"]) == want and int(left["count"]) == (want or 3)
    history = values["history"].clone()
    history[POS + 1 : POS + 1 + rows] = values["chosen"]
    assert torch.equal(left["history"], history)
    assert int(left["anchor"]) == int(history[POS + want])
    for name in ("hidden", "taps"):
        held = values[f"held_{name}"].clone()
        if want:
            held[:rows] = values[name]
        assert torch.equal(left[f"held_{name}"], held)
    for name in set(NAMES) - set(MUTATES):
        if torch.is_tensor(values[name]):
            torch.testing.assert_close(left[name], values[name], rtol=0, atol=0, equal_nan=True)


@VARIANT
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_rows_stay_up_to_the_first_wrong_draft(variant, rows):
    for right in sorted({0, 1, rows // 2, rows - 2, rows - 1} & set(range(rows))):
        check(variant, made(rows, right, 48 * (right % 2)), right + 1)


@VARIANT
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_keeps_nothing(variant, rows, bad):
    """Wherever it stands among the real tokens; those behind them may hold anything."""
    for row, token in ((0, 0), (rows - 1, IDS - 1), (rows // 2, 2048)):
        values = made(rows, width=48)
        values["logits"][row, token] = bad
        check(variant, values, 0)
        check(variant, made(rows), rows)  # and no later step
    values = made(rows, width=48)
    values["logits"][:, IDS:] = bad
    check(variant, values, rows)


@VARIANT
def test_the_text_ends_inside_a_block(variant):
    """By a token, behind `start`; by the last position; at the anchor itself, which keeps none."""
    drafts = made(8)["drafts"].tolist()
    for i in (0, 3, 6):  # draft i stands at POS + 1 + i
        check(variant, made(8, ends=[5, drafts[i]]), i + 1)
        check(variant, made(8, ends=[drafts[i]], start=torch.tensor(POS + i)), i + 1)
        check(variant, made(8, ends=[drafts[i]], start=torch.tensor(POS + 1 + i)), 8)
        check(variant, made(8, 2, ends=[drafts[i]]), min(i + 1, 3))
    for rows in (1, 8):
        here = int(made(rows)["anchor"])
        check(variant, made(rows, ends=[here]), 0)
        check(variant, made(rows, ends=[here], start=torch.tensor(POS)), rows)
        for last, want in ((POS - 1, 0), (POS, 0), (POS + 1, 1), (POS + 5, 5), (POS + 8, 8)):
            check(variant, made(rows, last=torch.tensor(last)), min(want, rows))
    full = made(16, ends=[*range(1, 16), int(made(16)["drafts"][14])])  # no place is empty
    check(variant, full, 15)


@VARIANT
@pytest.mark.parametrize("missing", [-1, -2])
def test_a_place_without_a_draft_ends_its_block(variant, missing):
    for i in (0, 2, 6):
        values = made(8)
        values["drafts"][i] = missing
        check(variant, values, i + 1)
        values["drafts"][:] = missing
        check(variant, values, 1)


@VARIANT
@pytest.mark.parametrize("rows, width", [(1, 0), (1, 48), (8, 0), (8, 48)])
def test_a_norm_left_open_is_ended(variant, rows, width):
    """As `unfold_norm` of the same variant would, to the bit; in Triton, whatever the rows."""
    g = torch.Generator().manual_seed(1)
    squares = torch.rand(rows, 40, generator=g)
    values = made(rows, width=width, squares=squares)
    _, left = run(variant, values)
    unfold = VARIANTS["unfold_norm"][variant]
    want = unfold(values["hidden"], values["squares"])
    assert torch.equal(left["held_hidden"][:rows], want)
    assert torch.equal(left["held_hidden"][rows:], values["held_hidden"][rows:])
    assert torch.equal(left["held_taps"][:rows], values["taps"])
    if variant == "triton":
        one = unfold(values["hidden"][-1:].clone(), values["squares"][-1:].clone())
        assert torch.equal(one[0], left["held_hidden"][rows - 1])
    values["last"].zero_()
    assert torch.equal(run(variant, values)[1]["held_hidden"], values["held_hidden"])


@pytest.mark.skipif("triton" not in TABLE, reason="needs Triton")
def test_what_triton_refuses_and_leaves_alone():
    def refuses(complaint, **changes):
        with pytest.raises(ValueError, match=complaint):
            run("triton", {**made(8), **changes})

    refuses("8 chosen tokens and 7 drafts for 8 rows of logits, got 8 and 0", drafts=None)
    refuses("ids must be 1 .. 4500", ids=4501)
    refuses("at most 16 rows, got 17", **{**made(17), "held_hidden": made(8)["held_hidden"]})
    refuses("one dtype", hidden=made(8)["hidden"].half())
    refuses("held_hidden must hold 8 rows of 1100", held_hidden=made(8)["held_hidden"][:4])
    short = made(8)
    short["history"] = short["history"][: POS + 4].contiguous()
    before = short["history"].clone()
    _, left = run("triton", {**short, "last": torch.tensor(0, device=DEVICE)})
    assert torch.equal(left["history"][POS + 1 :], short["chosen"][:3])
    assert torch.equal(left["history"][: POS + 1], before[: POS + 1])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_captured_steps_follow_each_other(rows):
    """One graph, replayed: each step goes on where the last one ended, until the text does."""
    values = made(rows, history=torch.zeros(400, dtype=torch.int64), last=torch.tensor(POS + 90))
    run("triton", values)
    own = map_tensors(torch.clone, values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = TABLE["triton"](*(own[name] for name in NAMES))
    for name, x in values.items():
        if name in MUTATES:
            own[name].copy_(x)
    place = POS
    while place < POS + 90:
        graph.replay()
        want = min(rows, POS + 90 - place)
        place += want
        assert int(result[0]) == want and int(own["pos"]) == place
        assert torch.equal(own["held_hidden"][:rows], values["hidden"])
    graph.replay()
    assert int(result[0]) == 0 and int(own["pos"]) == int(own["behind"]) == place
