"""Every operator says what to measure it on, in shapes that its variants take."""

import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tests.kernels.compiled_cases import SHAPE
from tr.bench import Draw
from tr.overrides import load


def test_no_operator_is_left_out():
    assert set(BENCHES) == set(VARIANTS)


@pytest.mark.parametrize("operator", sorted(BENCHES))
@pytest.mark.parametrize("model", ["smoke", "tiny"])
def test_arguments_fit_the_reference(operator, model):
    shape = load([f"model={model}", "prompt=x"], "generate").model.spec()
    bench = BENCHES[operator]
    for sizes in bench.cases(shape).values():
        arguments = bench.inputs(Draw("cpu"), 2, **sizes)
        for x in arguments:
            if torch.is_tensor(x) and x.numel() > 1:
                assert x.double().std() > 0  # never zeros
        assert (
            0
            < bench.nbytes(*arguments)
            <= 4 * sum(a.nbytes for a in arguments if torch.is_tensor(a))
        )
        VARIANTS[operator]["reference"](*arguments)


def test_a_raw_step_of_the_27b_moves_what_the_roofline_says():
    """One layer's kernels at one row: matrices, recurrent state and an fp8 cache."""
    int4 = BENCHES["int4_matmul"].cases(SHAPE)
    assert {(sizes["splits"][0], sizes["k"]) for sizes in int4.values()} == {
        (16384, 5120), (5120, 6144), (14336, 5120), (34816, 5120), (5120, 17408), (248320, 5120),
        (5120, 10240),
    }  # fmt: skip
    delta = BENCHES["gated_delta_step"]
    moved = delta.nbytes(*delta.inputs(Draw("cpu"), 1, **delta.cases(SHAPE)["1 pending"]))
    assert moved == pytest.approx(2 * 48 * 128 * 128 * 4, rel=0.06)
    attention = BENCHES["attention_decode"]
    sizes = attention.cases(SHAPE)["fp8 4096 tokens"]
    moved = attention.nbytes(*attention.inputs(Draw("cpu"), 1, **sizes))
    assert moved == pytest.approx(2 * 4 * 256 * 4097, rel=0.02)
