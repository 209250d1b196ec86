"""The packed kernel against float64, bit by bit across row counts, and compiled for other cards."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from kernels.define import VARIANTS
from kernels.int4_matmul import bench, layout, reference
from tr.bench import Draw
from tr.testing import assert_as_close

if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from kernels.gpu import counters
from kernels.int4_matmul.launch import card
from kernels.int4_matmul.plan import H200, LEAST, TABLE, Card, Plan, plan, ring, ring_beside
from kernels.int4_matmul.triton_launch import (
    launch,
    launch_add_norm,
    launch_beside,
    launch_gate_up,
)
from kernels.rms_norm.reference import times_unit

SHAPES = [  # n, k, plan: one and several tiles, stripes across blocks, padding
    (64, 128, Plan(1, 1)),
    (200, 256, Plan(4, 1)),
    (128, 640, Plan(2, 3)),
    (40, 384, Plan(1, 2)),
    (200, 384, Plan(1, 7)),
]
COMMON = [torch.float16, torch.bfloat16]


def inputs(rows, n, k, dtype, device):
    return bench.inputs(Draw(device, dtype), rows, [n], k)


def exactly(x, tiles, splits):
    return reference(x.double(), tiles, splits)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("n, k, chosen", SHAPES)
def test_plain_kernel_matches_the_reference(n, k, chosen, dtype):
    for rows in (1, 7, 16):
        x, tiles, splits = inputs(rows, n, k, dtype, "cpu")
        y = launch(x, tiles, splits, chosen=chosen)
        assert_as_close(y, reference(x, tiles, splits), exactly(x, tiles, splits))


@pytest.mark.interpreter
@pytest.mark.parametrize("n, k, chosen", SHAPES)
def test_float32_error_is_what_rounding_128_plus_code_explains(n, k, chosen):
    """Each of the sums of (128 + code) s x may be rounded once per addition, at its own size."""
    x, tiles, splits = inputs(16, n, k, torch.float32, "cpu")
    codes, scale, _ = (t.double() for t in layout.unpack(tiles, n))
    sizes = (128 + codes) * scale.repeat_interleave(128, 1)
    budget = 2**-24 * 8 * (x.double().abs() @ sizes.T)
    error = (launch(x, tiles, splits, chosen=chosen) - exactly(x, tiles, splits)).abs()
    assert (error <= budget).all()


@pytest.mark.interpreter
def test_offsets_of_groups_stay_in_float32():
    """With large means (m - 128 s) sum(x) dominates; in bfloat16 it would be off by a percent."""
    n, k = 64, 256
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (n, k), generator=g).to(torch.uint8)
    scale = (0.01 + 0.001 * torch.rand(n, 2, generator=g)).bfloat16()
    tiles = layout.pack(codes, scale, -7.5 * scale)
    x = (3 + torch.randn(16, k, generator=g)).half()
    y = launch(x, tiles, [n], chosen=Plan(1, 1))
    assert_as_close(y, reference(x, tiles, [n]), exactly(x, tiles, [n]))


@pytest.mark.interpreter
def test_extreme_codes_scales_and_zero_rows():
    codes = torch.tensor([0, 15], dtype=torch.uint8).repeat(64, 64)
    scale = torch.tensor([2.0**-20, -(2.0**10)]).bfloat16().repeat(32)[:, None]
    tiles = layout.pack(codes, scale, torch.zeros(64, 1).bfloat16())
    x = torch.zeros(3, 128)
    x[1] = 1.0
    y = launch(x, tiles, [64], chosen=Plan(1, 1))
    assert torch.equal(y[0], torch.zeros(64)) and torch.equal(y, exactly(x, tiles, [64]).float())


@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("n, k, chosen", [SHAPES[1], SHAPES[2]])
@pytest.mark.interpreter
def test_a_row_has_the_same_bits_in_any_company(n, k, chosen, dtype):
    x, tiles, splits = inputs(16, n, k, dtype, "cpu")
    whole = launch(x, tiles, splits, chosen=chosen)
    for rows in (1, 2, 4, 8, 16):
        assert torch.equal(launch(x[:rows], tiles, splits, chosen=chosen), whole[:rows])
    for start in range(16):
        assert torch.equal(
            launch(x[start : start + 1], tiles, splits, chosen=chosen)[0], whole[start]
        )
    x[1:] = torch.inf  # what other rows hold cannot matter either
    assert torch.equal(launch(x, tiles, splits, chosen=chosen)[0], whole[0])


@pytest.mark.interpreter
def test_slots_add_up_in_order():
    """Three programs own the units 0, 1-2 and 3-4 of a block."""
    x, tiles, splits = inputs(5, 128, 640, torch.float32, "cpu")
    total = torch.zeros(5, 128)
    for a, b in ((0, 1), (1, 3), (3, 5)):
        held = x[:, 128 * a : 128 * b].contiguous()
        total += launch(held, tiles[:, a:b].contiguous(), splits, chosen=Plan(2, 1))
    assert torch.equal(launch(x, tiles, splits, chosen=Plan(2, 3)), total)


@pytest.mark.interpreter
def test_whoever_arrives_last_finishes_the_block(monkeypatch):
    """Programs in reverse order: the same bits, and counters that are back at 0."""
    from triton.runtime import interpreter

    x, tiles, splits = inputs(3, 320, 640, torch.float16, "cpu")
    chosen = Plan(1, 7)
    forward = launch(x, tiles, splits, chosen=chosen)
    builder, n = interpreter.interpreter_builder, chosen.programs
    place = builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: place(n - 1 - x, y, z))
    assert torch.equal(launch(x, tiles, splits, chosen=chosen), forward)
    assert not counters(torch.device("cpu"), 8).any()


FUSED = [Plan(4, 1), Plan(4, 3), Plan(2, 5), Plan(2, 1)]


def unnormed(rows, n, k, dtype):
    x, tiles, _ = inputs(rows, n, k, dtype, "cpu")
    return x, tiles, x.float().unflatten(1, (-1, 128)).sum(-1), torch.rand(rows, k // 128)


def double(*tensors):
    return [t.double() for t in tensors]


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("chosen", FUSED, ids=str)
def test_an_unfinished_norm_is_finished_by_its_reader(chosen, dtype):
    """The sums by group, taken from the producer, are those the kernel would take itself."""
    x, tiles, sums, squares = unnormed(5, 256, 384, dtype)
    weight = (torch.randn(40, 384) * 384**-0.5).to(dtype)
    y, z = launch_beside(x, tiles, [256], weight, sums, squares, chosen)
    call = VARIANTS["int4_matmul_beside"]["reference"]
    want = call(x, tiles, [256], weight, [40], sums, squares)
    exact = call(x.double(), tiles, [256], weight.double(), [40], *double(sums, squares))
    for got, b, c in zip((y, z), want, exact, strict=True):
        assert_as_close(got, b, c)
    assert_as_close(launch(x, tiles, [256], None, squares, chosen), want[0], exact[0])
    for i in range(5):
        row, s, q = (t[i : i + 1] for t in (x, sums, squares))
        alone = launch_beside(row, tiles, [256], weight, s, q, chosen)
        assert torch.equal(alone[0][0], y[i]) and torch.equal(alone[1][0], z[i])


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("chosen", FUSED, ids=str)
def test_residual_and_norm_in_one_launch(chosen, dtype):
    x, tiles, sums, _ = unnormed(11, 256, 384, dtype)
    residual, gain = torch.randn(11, 256).to(dtype), 0.1 * torch.randn(256).to(dtype)
    s, normed, after, squares = launch_add_norm(x, tiles, residual, gain, 1e-6, sums, chosen)
    call = VARIANTS["int4_add_norm"]["reference"]
    want = call(x, tiles, residual, gain, 1e-6, sums)
    exact = call(*double(x), tiles, *double(residual, gain), 1e-6, *double(sums))
    assert_as_close(s, want[0], exact[0])
    assert_as_close(times_unit(normed, squares), want[1], exact[1])
    assert (after - normed.float().unflatten(1, (-1, 128)).sum(-1)).abs().max() < 1e-4
    assert torch.equal(times_unit(want[1], want[3]), want[1])  # the reference leaves nothing
    for i in range(11):
        row = x[i : i + 1], tiles, residual[i : i + 1], gain, 1e-6, sums[i : i + 1], chosen
        for a, b in zip(launch_add_norm(*row), (s, normed, after, squares), strict=True):
            assert torch.equal(a[0], b[i])


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_gate_and_up_in_one_launch(programs, dtype):
    chosen = Plan(4, programs)
    x, tiles, sums, squares = unnormed(9, 768, 256, dtype)
    h, after = launch_gate_up(x, tiles, sums, squares, chosen)
    call = VARIANTS["int4_gate_up"]["reference"]
    want = call(x, tiles, sums, squares)
    assert_as_close(h, want[0], call(x.double(), tiles, *double(sums, squares))[0])
    assert (after - h.float().unflatten(1, (-1, 128)).sum(-1)).abs().max() < 1e-4
    for i in range(9):
        row, s, q = (t[i : i + 1] for t in (x, sums, squares))
        for a, b in zip(launch_gate_up(row, tiles, s, q, chosen), (h, after), strict=True):
            assert torch.equal(a[0], b[i])


@pytest.mark.parametrize(
    "n, k, paired, deal",
    [
        pytest.param(34816, 5120, True, None, id="gate and up"),
        pytest.param(248320, 5120, False, None, id="head"),
        pytest.param(131072, 5120, False, (4, 128), id="a draft's slice of it"),
        pytest.param(14336, 5120, False, (2, 112), id="qkv"),
        pytest.param(16384, 5120, False, (2, 128), id="delta in"),
        pytest.param(6144, 5120, False, None, id="a draft's qkv"),
        pytest.param(5120, 25600, False, None, id="a draft's fc"),
        pytest.param(34816, 1280, True, (4, 132), id="blocks too short for stripes"),
        pytest.param(132 * 256 * 30 + 64, 5120, False, (4, 132), id="too many of them"),
    ],
)
def test_whole_blocks_where_they_come_out_even(n, k, paired, deal):
    assert ring(n // 64, k // 128, H200, paired) == deal


def test_a_dense_matrix_takes_processors():
    assert ring_beside(256, H200, 3) == (2, 128)
    assert ring_beside(258, H200, 3) == (2, 129)
    assert ring_beside(258, Card(2, 0), 3) == (2, 1)


def test_plans_deal_the_27b_evenly():
    """Every program of an H200 has the same number of units, give or take one, at least LEAST."""
    for (n, k), deal in TABLE.items():
        chosen = plan(n // 64, k // 128, H200, unit=2)
        units = n // 64 // chosen.row_tiles * (k // 128)
        assert chosen.programs == min(deal.per_processor * 132, units // LEAST)
        assert units / chosen.programs >= 3
        assert (n // 64) % chosen.row_tiles == 0
    assert plan(256, 40, H200, spare=6).programs == 3 * 132 - 6
    small = plan(256, 40, Card(132, 100 * 1024), spare=6)
    assert replace(small, stages=4) == plan(256, 40, H200, spare=6) != small
    for row_tiles in range(1, 40):
        for groups in range(1, 20):
            chosen = plan(row_tiles, groups, H200)
            assert row_tiles % chosen.row_tiles == 0
            assert 1 <= chosen.programs <= row_tiles // chosen.row_tiles * groups
    with pytest.raises(ValueError, match="192 output rows are not whole blocks of 256"):
        plan(3, 2, H200, unit=4)


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda x, t: (x.expand(17, -1).contiguous(), t, [64]), "at most 16 rows, got 17"),
        (lambda x, t: (x[:, :128].contiguous(), t, [64]), "do not fit x"),
        (lambda x, t: (x, t, [65]), "do not fit x"),
        (lambda x, t: (x, t[:, :, :66].contiguous(), [64]), "do not fit x"),
        (lambda x, t: (x.expand(3, -1), t, [64]), "x must be contiguous"),
        (lambda x, t: (torch.cat([x[0], x[0]])[1:257][None], t, [64]), "multiple of 16 bytes"),
    ],
)
@pytest.mark.interpreter
def test_refusals(change, complaint):
    x, tiles, _ = inputs(1, 64, 256, torch.float32, "cpu")
    with pytest.raises(ValueError, match=complaint):
        launch(*change(x, tiles))


def test_packed_takes_bfloat16_only():
    x, tiles, splits = inputs(
        1, 64, 256, torch.float16, "cuda" if torch.cuda.is_available() else "cpu"
    )
    with pytest.raises(ValueError, match="multiply bfloat16|CUDA"):
        launch(x, tiles, splits, packed=True)


def test_compiled_callers_see_one_opaque_op():
    call = VARIANTS["int4_matmul"]["tile"]
    x, tiles, splits = inputs(3, 64, 128, torch.float32, "cpu")
    compiled = torch.compile(
        lambda x, t: call(x, t, splits) + 1, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(x, tiles), call(x, tiles, splits) + 1)


def test_bytes_are_rows_tiles_and_results():
    x, tiles, splits = inputs(2, 64, 128, torch.float32, "cpu")
    assert bench.nbytes(x, tiles, splits) == 2 * 128 * 4 + 4352 + 2 * 64 * 4


def test_cross_compiled_kernels_use_tensor_cores_and_fit(tmp_path):
    """For H200, RTX 5090 and RTX 3090, by the compiler alone."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cross", "90", "120", "86"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports = json.loads(done.stdout.strip().splitlines()[-1])
    assert {r["capability"] for r in reports} == {90, 120, 86} and len(reports) >= 11
    for r in reports:
        assert r["spills"] == 0 and r["stack_bytes"] == 0, r
        assert r["wgmma"] if r["capability"] == 90 else r["mma"], r
        assert r["async_copies"] > 0, r
        assert r["early"] == (-1 if r["capability"] == 86 else 0), r  # 86 cannot overlap
        per_processor = 2 if r["row_tiles"] == 4 else 3  # what the plan counts on, any card
        large = r["capability"] == 90 and r["row_tiles"] == 2  # where plan.py takes more stages
        assert per_processor * r["shared_bytes"] <= (227 if large else 99) * 1024, r
        assert per_processor * r["registers"] * 32 * r["warps"] <= 65536, r
        few, many = (set(r["reductions"][columns]) for columns in ("8", "16"))
        assert few <= many, r  # sums are taken in one order for all row counts
        if r["row_tiles"] == 4:
            assert r["instructions_per_weight"] <= 2.6, r


@pytest.mark.gpu
@pytest.mark.parametrize("n, k", [(1024, 5120), (5120, 640), (200, 256)])
def test_packed_equals_plain_on_a_card(n, k):
    x, tiles, splits = inputs(16, n, k, torch.bfloat16, "cuda")
    chosen = plan(*tiles.shape[:2], card(x.device))
    packed = launch(x, tiles, splits, chosen=chosen, packed=True)
    plain = launch(x, tiles, splits, chosen=chosen, packed=False)
    exact = exactly(x, tiles, splits)
    for y in (packed, plain):
        assert_as_close(y, reference(x, tiles, splits), exact)
    for rows in (1, 2, 4, 8):
        assert torch.equal(
            launch(x[:rows], tiles, splits, chosen=chosen, packed=True), packed[:rows]
        )
    for start in range(16):
        row = launch(x[start : start + 1], tiles, splits, chosen=chosen, packed=True)
        assert torch.equal(row[0], packed[start])
    for _ in range(20):
        assert torch.equal(launch(x, tiles, splits, chosen=chosen, packed=True), packed)
    torch.library.opcheck(VARIANTS["int4_matmul"]["triton"].op, (x, tiles, splits))
