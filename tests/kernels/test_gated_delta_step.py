"""The step operator against its formula, and the two public failures that concern it."""

import pytest
import torch
import torch.nn.functional as F

from kernels.define import VARIANTS
from kernels.gated_delta_chunk import recurrent, unit
from tests.kernels.cases import CASES, COVERED, DELTA, ROWS

TABLE = VARIANTS["gated_delta_step"]
HERE = [name for operator, name in COVERED if operator == "gated_delta_step"]
VARIANT = pytest.mark.parametrize("variant", HERE)


def single_head(rows, b, dtype, h=0.0, d=128):
    """Arguments for one head of width d, whose convolution passes its last input on."""
    g = torch.Generator().manual_seed(0)
    qkvz = torch.randn(rows, 4 * d, generator=g)
    qkvz[:, :d] = 4.0
    ba = torch.tensor([[b, 0.5]]).expand(rows, 2)
    fp32 = torch.zeros(0)
    state = [torch.full((1, d, d), h), fp32.new_zeros(1, 3 * d).to(dtype)]
    records = [
        fp32.new_zeros(rows, 3 * d).to(dtype),
        fp32.new_zeros(rows, 1, d),
        fp32.new_zeros(rows, 1, d),
        fp32.new_zeros(rows, 1),
    ]
    now = torch.tensor([0.0, 1.0]).repeat(3 * d, 1)
    weights = [t.to(dtype) for t in (now, torch.zeros(1), torch.zeros(1), torch.ones(d))]
    inputs = [qkvz.to(dtype), ba.to(dtype).contiguous()]
    return [*inputs, *weights, *state, *records, torch.tensor(0), 1e-6]


@VARIANT
@pytest.mark.parametrize("b", [-0.5, 0.5, 3.0])
def test_beta_is_rounded_to_the_activation_dtype_in_every_row(variant, b):
    """One rule for decode and verify: sigmoid(b) in bfloat16, as transformers has it."""
    first = []
    for rows in (1, 4, 8):
        arguments = single_head(rows, b, torch.bfloat16)
        y = TABLE[variant](*arguments)
        value = F.silu(arguments[0][0, 256:384].float()).bfloat16().float()
        beta = torch.tensor(b).bfloat16().sigmoid().float()
        assert torch.equal(arguments[10][0, 0], beta * value)  # u of the empty state
        first.append((y[0], arguments[10][0]))
    assert b != 0.5 or beta == 0.62109375
    for y, u in first[1:]:
        assert torch.equal(y, first[0][0]) and torch.equal(u, first[0][1])


@VARIANT
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_large_states_give_finite_rows(variant, dtype):
    arguments = single_head(8, 0.5, dtype, h=300.0)
    assert TABLE[variant](*arguments).isfinite().all()
    assert all(t.isfinite().all() for t in arguments[6:12])


@VARIANT
def test_thousands_of_steps_stay_near_float64(variant):
    """The fp32 state neither drifts nor blows up; a bfloat16 one would be off by percents."""
    steps, d = 4096 if variant != "triton" else 96, 128  # the interpreter is slow
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(steps, 4 * d, generator=g).bfloat16()
    ba = torch.randn(steps, 2, generator=g).bfloat16()
    arguments = single_head(ROWS, 0.0, torch.bfloat16)
    arguments[3] = torch.full((1,), -3.0).bfloat16()  # slow decay: a_log
    for start in range(0, steps, ROWS):
        arguments[:2] = inputs[start : start + ROWS], ba[start : start + ROWS]
        TABLE[variant](*arguments)
        arguments[12] = torch.tensor(ROWS)
    arguments[:2] = inputs[:1], ba[:1]
    TABLE[variant](*arguments)  # absorbs the last rows
    c = F.silu(inputs[:, : 3 * d].float()).bfloat16().double()
    q, k, v = (t[None, None] for t in c.split(d, -1))
    decay = -arguments[3].double().exp() * F.softplus(ba[:, 1].double())
    beta = ba[:, 0].sigmoid().double()
    empty = torch.zeros(1, 1, d, d, dtype=torch.float64)
    _, exact = recurrent(unit(q), unit(k), v, decay[None, None], beta[None, None], empty)
    h = arguments[6]
    assert h.dtype == torch.float32 and h.isfinite().all()
    assert (h - exact[0]).abs().max() < 1e-5 * exact.abs().max()


@VARIANT
def test_pending_rows_fold_in_as_if_they_had_run_one_by_one(variant):
    call = TABLE[variant]
    whole = CASES["gated_delta_step"].cut(
        CASES["gated_delta_step"].arguments(torch.bfloat16), 0, ROWS
    )
    whole[12] = torch.tensor(0)
    single = [t.clone() if torch.is_tensor(t) else t for t in whole]
    call(*whole)
    for i in range(ROWS):
        arguments = [whole[0][i : i + 1], whole[1][i : i + 1], *single[2:]]
        arguments[12] = torch.tensor(min(i, 1))
        call(*arguments)
    pending = ROWS - 1
    last = [whole[0][-1:], whole[1][-1:], *whole[2:12], torch.tensor(pending), whole[13]]
    call(*last)
    for i in (6, 7):
        assert torch.equal(whole[i], single[i])
    for i in range(8, 12):
        assert torch.equal(whole[i][0], single[i][0])


def test_value_heads_read_consecutive_key_heads():
    """Value head h reads key head h // (v_heads / k_heads): changing key head 1 moves heads 3-5."""
    arguments = CASES["gated_delta_step"].arguments(torch.float32)
    arguments = CASES["gated_delta_step"].cut(arguments, 0, 1)
    changed = [t.clone() if torch.is_tensor(t) else t for t in arguments]
    k_heads, v_heads, d = DELTA["k_heads"], DELTA["v_heads"], DELTA["d_k"]
    changed[0][:, k_heads * d + d : 2 * k_heads * d] += 1.0  # key head 1
    a, b = (TABLE["reference"](*x).view(v_heads, d) for x in (arguments, changed))
    assert torch.equal(a[:3], b[:3]) and not torch.equal(a[3:], b[3:])
    assert arguments[0].shape[1] == 2 * k_heads * d + 2 * v_heads * d


def test_tile_refuses_widths_that_do_not_fill_vectors():
    arguments = single_head(1, 0.0, torch.float32, d=16)
    with pytest.raises(ValueError, match="kernel.gated_delta_step=reference"):
        TABLE["tile"](*arguments)
