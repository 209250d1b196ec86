"""The Gluon variants without a GPU: their own code over torch; tests/kernels/gluon_on_cpu.py."""

import json
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS
from kernels.int4_matmul import layout
from kernels.int4_matmul.plan import Card
from kernels.int4_matmul.reference import group_sums
from kernels.silu_mul.reference import silu_mul
from tr.bench import Draw
from tr.testing import assert_as_close
from tr.tree import map_tensors

pytest.importorskip("triton")

import kernels.gated_delta_step.gluon as module  # noqa: E402
import kernels.gpu  # noqa: E402
import kernels.int4_matmul.gluon as int4  # noqa: E402
from kernels.int4_matmul import gluon_ring, gluon_stripes  # noqa: E402
from tests.kernels import gluon_on_cpu  # noqa: E402
from tests.kernels.gluon_on_cpu import launches  # noqa: E402

SIZES = {"k_heads": 1, "v_heads": 2, "width": 4}


@pytest.fixture(autouse=True)
def here():
    with patch.object(kernels.gpu, "INTERPRETED", True), launches():
        yield


def made(d, pending, dtype=torch.bfloat16, **other):
    sizes = {**SIZES, "d_k": d, "d_v": d, "pending": pending, **other}
    return BENCHES["gated_delta_step"].inputs(Draw("cpu", dtype), 16, **sizes)


def run(arguments, start=0, stop=16):
    """y of some rows, on copies, and all that the call may write."""
    own = map_tensors(torch.clone, arguments)
    own[:2] = (x[start:stop].clone() for x in own[:2])
    return module.gated_delta_step(*own), own[6:12]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d, pending", [(64, 0), (64, 16), (128, 5)])
def test_as_close_to_float64_as_the_reference(d, pending, dtype):
    arguments = made(d, pending, dtype, k_heads=2, v_heads=6)
    double = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    results = []
    for own, variant in ((double, "reference"), (arguments, "reference"), (arguments, "gluon")):
        own = map_tensors(torch.clone, own)
        results.append((VARIANTS["gated_delta_step"][variant](*own), *own[6:12]))
    for exact, plain, found in zip(*results, strict=True):
        assert_as_close(found, plain, exact)


@pytest.mark.parametrize("columns, d", [(64, 64), (64, 128), (32, 128)])
def test_fewer_rows_change_no_bit(columns, d):
    """With one, two and four programs to a value head, which tell each other sums of squares."""
    arguments = made(d, 3)
    with patch.object(module, "COLUMNS", columns):
        whole, written = run(arguments)
        for rows in (1, 3, 9):
            part, left = run(arguments, 0, rows)
            assert torch.equal(part, whole[:rows])
            assert torch.equal(left[0], written[0]) and torch.equal(left[1], written[1])
            for a, b, old in zip(left[2:], written[2:], arguments[8:12], strict=True):
                assert torch.equal(a[:rows], b[:rows]) and torch.equal(a[rows:], old[rows:])


def test_pending_rows_fold_in_as_if_they_had_run_one_by_one():
    arguments = made(64, 0)
    whole, single = (map_tensors(torch.clone, arguments) for _ in range(2))
    module.gated_delta_step(*whole)
    for i in range(16):
        single[12].fill_(min(i, 1))
        module.gated_delta_step(*(x[i : i + 1].clone() for x in arguments[:2]), *single[2:])
    whole[12].fill_(15)
    module.gated_delta_step(*(x[-1:].clone() for x in arguments[:2]), *whole[2:])
    for i in (6, 7):
        assert torch.equal(whole[i], single[i])
    for i in range(8, 12):
        assert torch.equal(whole[i][0], single[i][0])


def test_signals_are_left_at_zero():
    signals = torch.zeros(2 * 2 * 2 * 16 * 2 + 1, dtype=torch.int32)
    with patch.object(module, "counters", return_value=signals) as made_once:
        run(made(128, 1))
    made_once.assert_called_once_with(torch.device("cpu"), signals.numel())
    assert not signals.any()


@pytest.mark.parametrize("change", [{"d_k": 32, "d_v": 32}, {"d_v": 128}, {"width": 3}])
def test_other_shapes_are_refused_by_the_name_of_a_variant_that_takes_them(change):
    sizes = {**SIZES, "d_k": 64, "d_v": 64, "pending": 0, **change}
    arguments = BENCHES["gated_delta_step"].inputs(Draw("cpu"), 1, **sizes)
    with pytest.raises(ValueError, match="kernel.gated_delta_step=triton"):
        module.gated_delta_step(*arguments)


# n, groups, tiles of a block or 0 for stripes, programs, stages, given: which of sums and squares
INT4 = [
    pytest.param(256, 2, 4, 1, 4, (False, False), id="one block"),
    pytest.param(512, 3, 4, 2, 9, (True, False), id="a block a program"),
    pytest.param(256, 9, 2, 2, 5, (True, True), id="a low block a program, ring"),
    pytest.param(200, 7, 2, 2, 4, (False, True), id="ring, low blocks, padded"),
    pytest.param(1088, 3, 4, 2, 4, (False, True), id="two and three blocks, padded"),
    pytest.param(1280, 5, 4, 4, 4, (True, True), id="ring, one and two blocks"),
    pytest.param(1024, 4, 4, 1, 5, (False, False), id="ring, all blocks of one program"),
    pytest.param(256, 4, 0, 1, 3, (False, False), id="stripes, one block"),
    pytest.param(512, 5, 0, 5, 4, (True, True), id="stripes, shared blocks"),
    pytest.param(200, 7, 0, 5, 3, (False, True), id="stripes, ring, a shared block, padded"),
    pytest.param(512, 9, 0, 5, 3, (True, True), id="stripes, ring, shared blocks"),
    pytest.param(1088, 4, 0, 2, 2, (True, False), id="stripes over blocks, ring, padded"),
    pytest.param(1024, 4, 0, 1, 3, (False, True), id="stripes, all blocks of one program"),
]


def vary(tiles):
    """Give each output row and group a scale and a minimum of its own."""
    parameters = tiles.view(torch.bfloat16)[:, :, layout.ROWS :]
    parameters *= 0.5 + torch.rand_like(parameters)


def int4_inputs(rows, n, groups, given):
    """x, tiles, then sums and squares or None."""
    x, tiles, *parts = BENCHES["int4_gate_up"].inputs(Draw("cpu"), rows, n=n, k=128 * groups)
    vary(tiles)
    return x, tiles, *(t if wanted else None for t, wanted in zip(parts, given, strict=True))


def int4_run(operator, arguments, tall, programs, stages):
    """With so many programs and a ring of so many stages; counters must be left at zero."""
    arrivals = torch.zeros(8, dtype=torch.int32)
    deal = (tall, programs) if tall else None
    with (
        patch.multiple(int4, ring=lambda *_, **__: deal, ring_beside=lambda *_: deal),
        patch.multiple(gluon_ring, MOST_STAGES=stages, UNDER_WAY=4),
        patch.multiple(
            gluon_stripes,
            UNDER_WAY=4,
            card=lambda device: Card(programs, 0),
            counters=lambda device, n: arrivals[:n],
            slots=lambda device, n: torch.full((n,), torch.nan),
            STRIPE_TILES=stages * (2 if operator == "int4_add_norm" else 4),
        ),
    ):
        out = VARIANTS[operator]["gluon"](*arguments)
    assert not arrivals.any()
    return out


def rows_of(arguments, rows):
    """x, sums and squares of some rows, all else as it is."""
    x, tiles, *others = arguments
    own = len(x)
    return x[rows], tiles, *(t[rows] if torch.is_tensor(t) and len(t) == own else t for t in others)


def doubled(arguments):
    return [t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in arguments]


def same(some, whole):
    return all(torch.equal(a, b) for a, b in zip(some, whole, strict=True))


SOME_ROWS = [slice(1), slice(9), slice(5, 13)]


@pytest.mark.parametrize("n, groups, tall, programs, stages, given", INT4)
def test_int4_matmul(n, groups, tall, programs, stages, given):
    """As close as the reference; the same bits again, and of rows in other company."""
    x, tiles, *parts = int4_inputs(16, n, groups, given)
    arguments, deal = (x, tiles, [n], *parts), (tall, programs, stages)
    reference = VARIANTS["int4_matmul"]["reference"]
    whole = int4_run("int4_matmul", arguments, *deal)
    assert_as_close(whole, reference(*arguments), reference(*doubled(arguments)))
    assert torch.equal(int4_run("int4_matmul", arguments, *deal), whole)
    for rows in SOME_ROWS:
        y = int4_run("int4_matmul", rows_of(arguments, rows), *deal)
        assert torch.equal(y, whole[rows])


@pytest.mark.parametrize(
    "n, groups, tall, programs, stages, given",
    [
        pytest.param(256, 2, 4, 1, 10, (True, True), id="one block"),
        pytest.param(1280, 5, 4, 4, 4, (True, False), id="ring, one and two blocks"),
        pytest.param(768, 4, 4, 1, 5, (False, True), id="ring, all blocks of one program"),
        pytest.param(768, 5, 0, 4, 2, (True, False), id="stripes, ring, shared blocks"),
        pytest.param(768, 4, 0, 1, 3, (False, True), id="stripes, all blocks of one program"),
    ],
)
def test_int4_gate_up(n, groups, tall, programs, stages, given):
    arguments, deal = int4_inputs(16, n, groups, given), (tall, programs, stages)
    reference = VARIANTS["int4_gate_up"]["reference"]
    whole = int4_run("int4_gate_up", arguments, *deal)
    h, sums = whole
    assert_as_close(h, reference(*arguments)[0], reference(*doubled(arguments))[0])
    assert_as_close(sums, group_sums(h), group_sums(h.double()))
    assert same(int4_run("int4_gate_up", arguments, *deal), whole)
    for rows in SOME_ROWS:
        some = int4_run("int4_gate_up", rows_of(arguments, rows), *deal)
        assert same(some, [t[rows] for t in whole])


@pytest.mark.parametrize(
    "n, groups, programs, stages, beside, given",
    [
        pytest.param(256, 3, 2, 9, 32, (False, True), id="one piece"),
        pytest.param(200, 9, 2, 4, 70, (True, True), id="ring, three pieces, padded"),
        pytest.param(640, 2, 4, 9, 8, (True, False), id="one and two blocks, less than a piece"),
    ],
)
def test_int4_matmul_beside(n, groups, programs, stages, beside, given):
    x, tiles, *parts = int4_inputs(16, n, groups, given)
    weight = Draw("cpu")(beside, 128 * groups).mul_((128 * groups) ** -0.5)
    arguments, deal = (x, tiles, [n], weight, [beside], *parts), (2, programs, stages)
    reference = VARIANTS["int4_matmul_beside"]["reference"]
    whole = int4_run("int4_matmul_beside", arguments, *deal)
    exact = reference(*doubled(arguments))
    for found, plain, want in zip(whole, reference(*arguments), exact, strict=True):
        assert_as_close(found, plain, want)
    assert same(int4_run("int4_matmul_beside", arguments, *deal), whole)
    alone = (x, tiles, [n], *parts)
    assert torch.equal(int4_run("int4_matmul", alone, *deal), whole[0])
    for rows in SOME_ROWS:
        some = int4_run("int4_matmul_beside", rows_of(arguments, rows), *deal)
        assert same(some, [t[rows] for t in whole])


@pytest.mark.parametrize("tall", [4, 0])
def test_int4_gate_up_rounds_as_its_parts_do(tall):
    """With one program, whose sums do not depend on how output rows are dealt to blocks; another
    library's exponential may tip a rounding.
    """
    x, tiles, *parts = int4_inputs(1, 256, 5, (True, True))
    both = int4_run("int4_matmul", (x, tiles, [256], *parts), tall, 1, 4)
    h, _ = int4_run("int4_gate_up", (x, tiles, *parts), tall, 1, 4)
    want = silu_mul(both)
    torch.testing.assert_close(h, want, rtol=2**-7, atol=0.0)
    assert (h != want).float().mean() < 0.02


@pytest.mark.parametrize(
    "groups, programs, stages, summed",
    [
        pytest.param(5, 4, 3, True, id="shared blocks, ring"),
        pytest.param(7, 1, 4, False, id="all blocks of one program"),
    ],
)
def test_int4_add_norm(groups, programs, stages, summed):
    bench = BENCHES["int4_add_norm"]
    arguments = bench.inputs(Draw("cpu"), 16, n=640, k=128 * groups)
    vary(arguments[1])
    arguments[4] = 0.5  # an eps that shows
    if not summed:
        arguments[5] = None
    deal, reference = (0, programs, stages), VARIANTS["int4_add_norm"]["reference"]
    whole = int4_run("int4_add_norm", arguments, *deal)
    plain, exact = (bench.meaning(reference(*a)) for a in (arguments, doubled(arguments)))
    for found, near, want in zip(bench.meaning(whole), plain, exact, strict=True):
        assert_as_close(found, near, want)
    assert_as_close(whole[2], group_sums(whole[1]), group_sums(whole[1].double()))
    assert same(int4_run("int4_add_norm", arguments, *deal), whole)
    for rows in SOME_ROWS:
        some = int4_run("int4_add_norm", rows_of(arguments, rows), *deal)
        assert same(some, [t[rows] for t in whole])


def test_int4_add_norm_of_few_groups_is_left_to_triton():
    """A stripe would meet several blocks within the ring."""
    arguments = BENCHES["int4_add_norm"].inputs(Draw("cpu"), 2, n=384, k=256)
    with patch.object(int4, "add_norm_in_triton") as triton:
        found = VARIANTS["int4_add_norm"]["gluon"](*arguments)
    triton.assert_called_once_with(*arguments)
    assert found is triton.return_value


LOOPS = {  # tensor core steps of a consumer's round, at most so many instructions
    "_int4_ring_gluon": (48, 260),
    "_int4_stripes_gluon": (64, 460),
}


def test_int4_loops_for_an_h200(tmp_path):
    """By the compiler alone: a consumer's round keeps all it has in registers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cross", "gluon"],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reports = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("[{")))
    assert {r["kernel"] for r in reports} == set(LOOPS)
    for report in reports:
        steps, most = LOOPS[report["kernel"]]
        loop = report["loop"]
        assert loop["HMMA"] == steps, report
        assert not {"LDL", "STL"} & set(loop), report
        assert sum(loop.values()) <= most, report
        assert report["shared_bytes"] <= 227 * 1024, report
        assert report["early"] == 0, report


def test_a_wait_that_nothing_ends_is_an_error():
    barrier = gluon_on_cpu.Barrier(2)
    barrier.arrive(1, expected=64)
    with (
        patch.object(gluon_on_cpu, "PATIENCE", 0.01),
        pytest.raises(TimeoutError, match="1 of 2 arrivals and 64 bytes are missing"),
    ):
        barrier.wait(0)
