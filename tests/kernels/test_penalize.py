"""Penalties and bias by counting in plain Python, and rows as texts of their own."""

import pytest
import torch

from kernels.define import VARIANTS, Target, refusal
from tests.kernels.cases import CASES, ROWS

HERE = [v for v in sorted(VARIANTS["penalize"]) if not refusal("penalize", v, Target("cpu"))]
VARIANT = pytest.mark.parametrize("variant", HERE)
IDS, POSITION, START = 12, 20, 8


def inputs(rows: int, presence=1.5, frequency=0.3, repetition=1.2, bias=None):
    g = torch.Generator().manual_seed(rows)
    history = torch.randint(0, 6, (40,), generator=g)
    tokens = torch.cat([history[POSITION - 1 : POSITION], torch.randint(0, IDS, (rows - 1,))])
    bias = bias or {}
    ids = torch.tensor([-1, *bias, -1], dtype=torch.int64)
    values = torch.tensor([9.0, *bias.values(), 9.0])
    scalars = [torch.tensor(float(x)) for x in (presence, frequency, repetition)]
    logits = torch.randn(rows, IDS + 3, generator=g)
    start = torch.tensor(START)
    return [logits, torch.tensor(POSITION), tokens, history, start, *scalars, ids, values, IDS]


def by_counting(logits, position, tokens, history, start, p, f, r, bias_ids, bias, ids):
    shift = dict(zip(bias_ids.tolist(), bias, strict=True))
    out = torch.empty(len(logits), ids)
    for i in range(len(logits)):
        drafts = tokens[1 : i + 1].tolist()
        prompt = history[: int(start)].tolist()
        written = history[int(start) : int(position)].tolist() + drafts
        for t in range(ids):
            x, n = logits[i, t].float(), written.count(t)
            if n or t in prompt:
                x = x / r if x > 0 else x * r
            x = x - f * n
            x = x - p if n else x
            out[i, t] = x + shift[t] if t in shift else x
    return out


@VARIANT
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"presence": 0, "frequency": 0, "repetition": 1}, {"presence": -2, "repetition": 0.5},
        {"bias": {3: 2.0, 11: -100.0, 0: 0.5}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_by_counting(variant, settings, rows):
    arguments = inputs(rows, **settings)
    got = VARIANTS["penalize"][variant](*arguments)
    assert got.dtype == torch.float32 and torch.equal(got, by_counting(*arguments))


@VARIANT
def test_what_counts_as_what(variant):
    """Prompt tokens are repeated but not written; what stands at and past `position` is nothing."""
    history = torch.tensor([4, 4, 5, 5, 5, 6, 7, 7])
    call, none = VARIANTS["penalize"][variant], torch.zeros(0, dtype=torch.int64)
    for settings, want in (
        ((0.5, 0.0, 1.0), [2, 2, 2, 2, 2, 1.5, 2, 2]),
        ((0.0, 0.25, 1.0), [2, 2, 2, 2, 2, 1.5, 2, 2]),
        ((0.0, 0.0, 2.0), [2, 2, 2, 2, 1, 1, 2, 2]),
    ):
        scalars = [torch.tensor(x) for x in settings]
        text = torch.tensor(5), history[4:5], history, torch.tensor(3)
        got = call(torch.full((1, 8), 2.0), *text, *scalars, none, torch.zeros(0), 8)
        assert got[0].tolist() == want, settings


@VARIANT
def test_a_row_is_its_own_text(variant):
    """Row i equals one row at position + i whose history holds the drafts; one below 0 is none."""
    arguments = inputs(6)
    whole = VARIANTS["penalize"][variant](*arguments)
    logits, _, tokens, history, *rest = arguments
    for i in range(6):
        longer = history.clone()
        longer[POSITION : POSITION + i] = tokens[1 : i + 1]
        alone = [logits[i : i + 1], torch.tensor(POSITION + i), tokens[i : i + 1], longer, *rest]
        assert torch.equal(VARIANTS["penalize"][variant](*alone)[0], whole[i])
    tokens[2:] = -1
    missing = VARIANTS["penalize"][variant](logits, torch.tensor(POSITION), tokens, history, *rest)
    assert torch.equal(missing[:2], whole[:2]) and missing.isfinite().all()


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_variants_agree_to_the_bit(dtype):
    case, table = CASES["penalize"], VARIANTS["penalize"]
    arguments = case.cut(case.arguments(dtype), 0, ROWS)
    assert torch.equal(table["triton"](*arguments), table["reference"](*arguments))


@pytest.mark.interpreter
def test_what_triton_refuses():
    def refuses(index, value, complaint):
        arguments = inputs(3)
        arguments[index] = value
        with pytest.raises(ValueError, match=complaint):
            VARIANTS["penalize"]["triton"](*arguments)

    refuses(10, 99, "ids must be 1 .. 15, the width of logits, got 99")
    refuses(2, torch.tensor([1]), "a token for each of 3 rows, got 1")
    refuses(0, torch.randn(3, 30)[:, ::2], "rows of logits must be contiguous")
    refuses(0, torch.randn(17, 15), "at most 16 rows, got 17")
