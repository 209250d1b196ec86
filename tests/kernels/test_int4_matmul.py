"""The packed kernel against float64, bit by bit across row counts, and compiled for other cards."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from kernels.define import VARIANTS
from kernels.int4_matmul import BENCH, inputs, layout, reference
from tr.testing import assert_as_close

if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from kernels.int4_matmul.triton import Plan, launch, plan, slots

SHAPES = [  # n, k, plan: one and several tiles, splits that share groups unevenly, padding
    (64, 128, Plan(1, 1)),
    (200, 256, Plan(4, 1)),
    (128, 640, Plan(2, 3)),
    (40, 384, Plan(1, 2)),
]
COMMON = [torch.float16, torch.bfloat16]


def exactly(x, tiles, splits):
    return reference(x.double(), tiles, splits)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("n, k, chosen", SHAPES)
def test_plain_kernel_matches_the_reference(n, k, chosen, dtype):
    for rows in (1, 7, 16):
        x, tiles, splits = inputs(rows, n, k, dtype, "cpu")
        y = launch(x, tiles, splits, chosen)
        assert_as_close(y, reference(x, tiles, splits), exactly(x, tiles, splits))


@pytest.mark.interpreter
@pytest.mark.parametrize("n, k, chosen", SHAPES)
def test_float32_error_is_what_rounding_128_plus_code_explains(n, k, chosen):
    """Each of the sums of (128 + code) s x may be rounded once per addition, at its own size."""
    x, tiles, splits = inputs(16, n, k, torch.float32, "cpu")
    codes, scale, _ = (t.double() for t in layout.unpack(tiles, n))
    sizes = (128 + codes) * scale.repeat_interleave(128, 1)
    budget = 2**-24 * 8 * (x.double().abs() @ sizes.T)
    error = (launch(x, tiles, splits, chosen) - exactly(x, tiles, splits)).abs()
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
    y = launch(x, tiles, [n], Plan(1, 1))
    assert_as_close(y, reference(x, tiles, [n]), exactly(x, tiles, [n]))


@pytest.mark.interpreter
def test_extreme_codes_scales_and_zero_rows():
    codes = torch.tensor([0, 15], dtype=torch.uint8).repeat(64, 64)
    scale = torch.tensor([2.0**-20, -(2.0**10)]).bfloat16().repeat(32)[:, None]
    tiles = layout.pack(codes, scale, torch.zeros(64, 1).bfloat16())
    x = torch.zeros(3, 128)
    x[1] = 1.0
    y = launch(x, tiles, [64], Plan(1, 1))
    assert torch.equal(y[0], torch.zeros(64)) and torch.equal(y, exactly(x, tiles, [64]).float())


@pytest.mark.parametrize("dtype", COMMON, ids=str)
@pytest.mark.parametrize("n, k, chosen", [SHAPES[1], SHAPES[2]])
@pytest.mark.interpreter
def test_a_row_has_the_same_bits_in_any_company(n, k, chosen, dtype):
    x, tiles, splits = inputs(16, n, k, dtype, "cpu")
    whole = launch(x, tiles, splits, chosen)
    for rows in (1, 2, 4, 8, 16):
        assert torch.equal(launch(x[:rows], tiles, splits, chosen), whole[:rows])
    for start in range(16):
        assert torch.equal(launch(x[start : start + 1], tiles, splits, chosen)[0], whole[start])
    x[1:] = torch.inf  # what other rows hold cannot matter either
    assert torch.equal(launch(x, tiles, splits, chosen)[0], whole[0])


@pytest.mark.interpreter
def test_slots_add_up_in_order():
    x, tiles, splits = inputs(5, 128, 640, torch.float32, "cpu")
    chosen = Plan(2, 3)
    parts = slots(x, tiles, splits, chosen, False, torch.float32)
    assert parts.shape == (3, 5, 128)
    assert torch.equal(launch(x, tiles, splits, chosen), (parts[0] + parts[1]) + parts[2])
    for part, (a, b) in zip(parts, ((0, 1), (1, 3), (3, 5)), strict=True):  # groups
        held = slice(128 * a, 128 * b)
        alone = launch(x[:, held].contiguous(), tiles[:, a:b].contiguous(), splits, Plan(2, 1))
        assert torch.equal(part, alone)


def test_plans_use_whole_blocks_and_fill_the_card():
    measured = {  # tiles, groups -> the split found best by a sweep on an H200
        (544, 40): 4,
        (256, 40): 4,
        (80, 136): 12,
        (80, 48): 12,
    }
    for (row_tiles, groups), splits in measured.items():
        assert plan(row_tiles, groups, 132) == Plan(4, splits)
    assert plan(3880, 40, 132) == Plan(4, 1)  # the head
    for row_tiles in range(1, 40):
        for groups in range(1, 20):
            p = plan(row_tiles, groups, 132)
            assert row_tiles % p.row_tiles == 0 and 1 <= p.splits <= groups


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
    with pytest.raises(ValueError, match="multiplies bfloat16|CUDA"):
        launch(x, tiles, splits, packed=True)


def test_compiled_callers_see_one_opaque_op():
    call = VARIANTS["int4_matmul"]["tile"]
    x, tiles, splits = inputs(3, 64, 128, torch.float32, "cpu")
    compiled = torch.compile(
        lambda x, t: call(x, t, splits) + 1, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(x, tiles), call(x, tiles, splits) + 1)


@pytest.mark.parametrize("variant", ["reference", "tile"])
def test_bench_runs_on_a_cpu(variant):
    case = {"rows": 2, "n": 64, "k": 128}
    call = VARIANTS["int4_matmul"][variant]
    timing = BENCH.measure(case, torch.float32, "cpu", call, rounds=3, cold_bytes=0)
    assert timing.us_min <= timing.us <= timing.us_max and timing.copies == 2
    assert timing.bytes == 2 * 128 * 4 + 4352 + 2 * 64 * 4


def test_cross_compiled_kernels_use_tensor_cores_and_fit(tmp_path):
    """For H200, RTX 5090 and RTX 3090, by the compiler alone."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cross", "90:4", "90:1", "120:4", "86:4"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports = json.loads(done.stdout.strip().splitlines()[-1])
    assert [r["capability"] for r in reports] == [90, 90, 120, 86]
    for r in reports:
        assert r["spills"] == 0 and r["stack_bytes"] == 0, r
        assert r["wgmma"] if r["capability"] == 90 else r["mma"], r
        assert r["async_copies"] > 0, r
        assert 2 * r["shared_bytes"] <= 99 * 1024, r  # two programs per processor, any card
        assert 2 * r["registers"] * 32 * r["warps"] <= 65536, r
        if r["row_tiles"] == 4:
            assert r["instructions_per_weight"] <= 2.6, r


@pytest.mark.gpu
@pytest.mark.parametrize("n, k", [(1024, 5120), (5120, 640), (200, 256)])
def test_packed_equals_plain_on_a_card(n, k):
    x, tiles, splits = inputs(16, n, k, torch.bfloat16, "cuda")
    chosen = plan(*tiles.shape[:2], 132)
    packed = launch(x, tiles, splits, chosen, packed=True)
    plain = launch(x, tiles, splits, chosen, packed=False)
    exact = exactly(x, tiles, splits)
    for y in (packed, plain):
        assert_as_close(y, reference(x, tiles, splits), exact)
    for rows in (1, 2, 4, 8):
        assert torch.equal(launch(x[:rows], tiles, splits, chosen, packed=True), packed[:rows])
    for start in range(16):
        row = launch(x[start : start + 1], tiles, splits, chosen, packed=True)
        assert torch.equal(row[0], packed[start])
    for _ in range(20):
        assert torch.equal(launch(x, tiles, splits, chosen, packed=True), packed)
    torch.library.opcheck(VARIANTS["int4_matmul"]["triton"].op, (x, tiles, splits))
