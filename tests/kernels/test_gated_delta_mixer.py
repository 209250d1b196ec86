"""The many-token mixer, reference and kernels: float64, cuts at 64, chunks that are not full."""

import functools
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from kernels.benches import BENCHES
from kernels.define import VARIANTS, Target
from kernels.gated_delta_chunk import gated_norm, recurrent, unit
from kernels.gated_delta_chunk.reference import gated_delta_chunk as reference
from tr.bench import Draw
from tr.testing import assert_as_close
from tr.tree import map_tensors

pytest.importorskip("triton")

from kernels.gated_delta_chunk.triton_launch import Plan, launch  # noqa: E402

interpreter = pytest.mark.interpreter
HEADS = {"k_heads": 1, "v_heads": 2, "d_k": 32, "d_v": 32, "width": 4}
QKVZ, BA, A_LOG, DT_BIAS, H, TAIL = 0, 1, 3, 4, 6, 7
BF16 = torch.bfloat16
FORMS = {
    "reference": reference,
    "chunks of 64": functools.partial(launch, plan=Plan(chunk=64, columns=64, stages=1)),
    "chunks of 32": functools.partial(launch, plan=Plan(chunk=32, columns=16, stages=1)),
}
EVERY = pytest.mark.parametrize("form", FORMS)
KERNELS = [name for name in FORMS if name != "reference"]


def inputs(tokens, dtype=BF16, seed=0, device="cpu", **sizes):
    draw = Draw(device, dtype, seed)
    return BENCHES["gated_delta_chunk"].inputs(draw, 1, tokens, **{**HEADS, **sizes})


def run(call, arguments):
    """Rows, state and tail, from copies of the arguments."""
    own = map_tensors(torch.clone, arguments)
    return call(*own), own[H], own[TAIL]


def in_parts(call, arguments, lengths):
    own, rows = map_tensors(torch.clone, arguments), []
    for qkvz, ba in zip(own[QKVZ].split(lengths), own[BA].split(lengths), strict=True):
        rows.append(call(qkvz.contiguous(), ba.contiguous(), *own[2:]))
    return torch.cat(rows), own[H], own[TAIL]


def token_by_token(arguments):
    """Rows and state of the recurrence, all in float64."""
    wide = [t.double() if torch.is_tensor(t) else t for t in arguments]
    qkvz, ba, conv, a_log, dt_bias, norm, h, tail, eps = wide
    v_heads, d_k, d_v = h.shape
    x, z = qkvz.split([len(conv), v_heads * d_v], 1)
    window = torch.cat([tail, x])
    c = F.silu(sum(conv[:, j] * window[j : j + len(x)] for j in range(conv.shape[1])))
    keys = (len(conv) - v_heads * d_v) // 2
    q, k, v = c.split([keys, keys, v_heads * d_v], 1)
    q, k, v = (t.unflatten(1, (-1, d)).transpose(0, 1) for t, d in ((q, d_k), (k, d_k), (v, d_v)))
    q, k = (t.repeat_interleave(v_heads // len(t), 0) for t in (q, k))
    b, a = ba.split(v_heads, 1)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    gates = g.t()[None], b.sigmoid().t()[None]
    o, end = recurrent(unit(q)[None], unit(k)[None], v[None], *gates, h[None])
    y = gated_norm(o[0].transpose(0, 1), z.unflatten(1, (v_heads, d_v)), norm, eps)
    return y.flatten(1), end[0]


def assert_near(found, plain, exact):
    """As `assert_as_close`; and on the average at most 1.5 times as far as the reference is.

    Both round the convolution and its silu. Per product the kernels round one more operand, or
    two: unit q and k, the inverse, u, h, each by half a unit at most and independently.
    """
    for a, b, c in zip(found, plain, exact, strict=False):
        assert_as_close(a, b, c)
        far, allowed = ((x.double() - c).square().mean().sqrt() for x in (a, b))
        assert far <= 1.5 * allowed, (far, allowed)


@interpreter
@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize(
    "dtype, tokens, sizes",
    [
        (BF16, 1, {}),
        (BF16, 150, {"v_heads": 3, "d_k": 16, "d_v": 64}),
        (BF16, 130, {"v_heads": 1, "d_k": 128}),
        (torch.float16, 64, {}),
        (torch.float32, 70, {}),
    ],
    ids=str,
)
def test_as_close_to_the_recurrence_in_float64_as_the_reference(form, dtype, tokens, sizes):
    arguments = inputs(tokens, dtype, **sizes)
    plain, found = run(reference, arguments), run(FORMS[form], arguments)
    assert_near(found, plain, token_by_token(arguments))
    assert torch.equal(found[2], plain[2])


@interpreter
@EVERY
@pytest.mark.parametrize("lengths", [[64, 66], [128, 2]], ids=str)
def test_a_cut_at_a_multiple_of_64_changes_no_bit(form, lengths):
    arguments = inputs(sum(lengths), v_heads=1)
    whole, parts = run(FORMS[form], arguments), in_parts(FORMS[form], arguments, lengths)
    for a, b in zip(parts, whole, strict=True):
        assert torch.equal(a, b)


@interpreter
@pytest.mark.parametrize("form", ["reference", "chunks of 64"])
def test_512_tokens_in_one_call_or_two(form):
    arguments = inputs(512, d_k=16, d_v=16, v_heads=1)
    whole = run(FORMS[form], arguments)
    for lengths in ([256, 256], [64, 448]):
        for a, b in zip(in_parts(FORMS[form], arguments, lengths), whole, strict=True):
            assert torch.equal(a, b)


@interpreter
@EVERY
def test_a_tail_of_tokens_older_than_the_call(form):
    """Calls of fewer tokens than the convolution looks back on."""
    arguments = inputs(7)
    parts, whole = in_parts(FORMS[form], arguments, [1, 2, 1, 3]), run(FORMS[form], arguments)
    assert torch.equal(parts[2], whole[2]) and torch.equal(whole[2], arguments[QKVZ][-3:, :128])
    assert (parts[0] - whole[0]).abs().max() <= 2**-7 * whole[0].abs().max()


@interpreter
@EVERY
def test_keys_that_repeat_and_gates_that_stay_open(form):
    """The system is then all ones below its diagonal: powers of it would be binomials."""
    arguments = inputs(128, torch.float32)
    arguments[QKVZ][:, :64] = 4.0 + 0.01 * torch.randn(128, 64)
    arguments[BA][:, :2], arguments[A_LOG][:] = 8.0, -9.0
    plain, exact = run(reference, arguments), token_by_token(arguments)
    found = run(FORMS[form], arguments)
    for a, b, c in zip(found, plain, exact, strict=False):
        assert a.isfinite().all()
        assert (a - c).abs().max() <= 4 * (b - c).abs().max() + 1e-4 * c.abs().max()


@interpreter
@EVERY
def test_gates_that_close_at_once_leave_nothing_and_no_infinity(form):
    arguments = inputs(40)
    arguments[A_LOG][:], arguments[DT_BIAS][:] = 6.0, 10.0
    y, h, _ = run(FORMS[form], arguments)
    arguments[H] = torch.zeros_like(arguments[H])
    for a, b in zip((y[1:], h), (run(FORMS[form], arguments)[0][1:], h), strict=True):
        assert a.isfinite().all() and torch.equal(a, b)


@interpreter
@EVERY
def test_what_is_not_a_number_shows_in_its_head_and_nowhere_else(form):
    arguments = inputs(70)
    arguments[QKVZ][65, 64 + 3] = torch.nan  # a value of head 0, in the second chunk
    y, h, _ = run(FORMS[form], arguments)
    assert y[:64].isfinite().all() and y[:, 32:].isfinite().all() and h[1].isfinite().all()
    assert y[65:, :32].isnan().all() and h[0].isnan().any()


@interpreter
@pytest.mark.parametrize(
    "index, change, complaint",
    [
        (QKVZ, lambda x: x[:, ::2], "qkvz must be contiguous"),
        (TAIL, lambda x: x.half(), "needs one dtype"),
        (H, lambda x: x.new_zeros(2, 24, 32), "got 24 and 32; use kernel.gated_delta_chunk=ref"),
        (H, lambda x: x.new_zeros(2, 256, 32), "keys up to 128, got 256"),
    ],
    ids=["strides", "dtype", "width", "wide keys"],
)
def test_what_the_kernels_refuse(index, change, complaint):
    arguments = inputs(5)
    arguments[index] = change(arguments[index])
    with pytest.raises(ValueError, match=complaint):
        VARIANTS["gated_delta_chunk"]["triton"](*arguments)


def test_chunks_of_every_plan_fill_64_tokens():
    for card in (Target(), *(Target("cuda", c) for c in ((8, 0), (8, 6), (9, 0), (12, 0)))):
        for dtype in (BF16, torch.float16, torch.float32):
            assert 64 % Plan.of(card, dtype).chunk == 0


@pytest.fixture(scope="module")
def compiled():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiled_chunk", "90", "86", "120"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_for_other_cards_neither_spill_nor_overflow_shared_memory(compiled):
    assert {(line["capability"], line["kernel"]) for line in compiled} == {
        *((90, kernel) for kernel in ("_inputs", "_systems", "_pass", "_finish")),
        *((card, kernel) for card in (86, 120) for kernel in ("_systems", "_pass")),
    }
    for line in compiled:
        assert line["spilled"] == 0, line
        assert line["shared"] <= (232448 if line["capability"] == 90 else 101376), line
        products = line["kernel"] in ("_systems", "_pass")
        assert (line["wgmma"] > 0) == (products and line["capability"] == 90), line
        assert (line["mma"] > 0) == (products and line["capability"] != 90), line


def test_the_pass_hands_its_products_on_in_registers(compiled):
    """Every left operand on Hopper: shared memory holds what was loaded, and rows to store."""
    (line,) = (x for x in compiled if (x["capability"], x["kernel"]) == (90, "_pass"))
    assert line["wgmma"] == line["from_registers"] == 28


@pytest.mark.gpu
def test_the_27b_s_shape_on_a_card():
    call = VARIANTS["gated_delta_chunk"]["triton"]
    sizes = {"k_heads": 16, "v_heads": 48, "d_k": 128, "d_v": 128}
    arguments = inputs(512 + 37, device="cuda", **sizes)
    whole = run(call, arguments)
    wide = [t.double() if torch.is_tensor(t) else t for t in arguments]
    assert_near(whole, run(reference, arguments), run(reference, wide)[:2])
    for lengths in ([549], [256, 293], [64, 485], [448, 101]):
        for a, b in zip(in_parts(call, arguments, lengths), whole, strict=True):
            assert torch.equal(a, b)
