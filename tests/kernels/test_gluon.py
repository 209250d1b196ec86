"""The Gluon variants without a GPU: their own code over torch; tests/kernels/gluon_on_cpu.py."""

from unittest.mock import patch

import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tr.bench import Draw
from tr.testing import assert_as_close
from tr.tree import map_tensors

pytest.importorskip("triton")

import kernels.gated_delta_step.gluon as module  # noqa: E402
import kernels.gpu  # noqa: E402
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
