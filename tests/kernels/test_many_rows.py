"""Operators over a prompt's many tokens: restored weights, rows in 8 bits, hundreds of rows."""

import pytest
import torch

from kernels.define import VARIANTS
from kernels.int4_matmul import layout
from tests.kernels.cases import outputs

pytest.importorskip("triton")
interpreter = pytest.mark.interpreter
FLOAT8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tiles(n, k, seed=0):
    """Random codes with scales and minimums that differ from row to row and group to group."""
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=g).to(torch.uint8)
    scale, minimum = (torch.randn(n, k // 128, generator=g).bfloat16() for _ in range(2))
    return layout.pack(codes, scale, minimum)


@interpreter
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n, k", [(64, 128), (200, 256), (1, 384)])
def test_restored_weights_are_the_reference_s_to_the_bit(n, k, dtype):
    packed = tiles(n, k)
    for variant in ("reference", "triton"):
        weight = torch.full((n + 1, k), torch.nan, dtype=dtype)
        VARIANTS["int4_restore"][variant](packed, weight[:n])
        assert torch.equal(weight[:n], layout.dequantise(packed, n, dtype)), variant
        assert weight[n:].isnan().all()  # nothing past the last row


@interpreter
def test_what_does_not_hold_the_weights_is_refused():
    call = VARIANTS["int4_restore"]["triton"]
    for shape in ((200, 256), (64, 384), (64, 200)):
        with pytest.raises(ValueError, match="do not hold weights"):
            call(tiles(64, 256), torch.empty(shape))
    with pytest.raises(ValueError, match="got float64"):
        call(tiles(64, 256), torch.empty(64, 256, dtype=torch.float64))
    with pytest.raises(ValueError, match="weight must be contiguous"):
        call(tiles(64, 256), torch.empty(256, 64).t())


@interpreter
@pytest.mark.parametrize("form", [torch.int8, FLOAT8], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [320, 4096, 5000])
def test_rows_in_8_bits_are_the_reference_s_to_the_bit(d, dtype, form):
    x = (10 * torch.randn(7, d)).to(dtype)
    x[2], x[3, 5], x[4] = 0, 300, 1e-5
    want = VARIANTS["quantise_rows"]["reference"](x, form)
    found = VARIANTS["quantise_rows"]["triton"](x, form)
    for a, b in zip(found, want, strict=True):
        assert a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    codes, scale = want[0].float(), want[1]
    assert scale[2] == 1 and not codes[2].any()
    assert codes.abs().amax(1)[[0, 1, 3, 4]].eq(127 if form == torch.int8 else 448).all()
    step = scale[:, None] * (0.5 if form == torch.int8 else 16.0)
    assert ((codes * scale[:, None] - x.float()).abs() <= 1.0001 * step).all()


@interpreter
@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, which the interpreter runs on
@pytest.mark.parametrize("variant", ["reference", "triton"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nothing_hides_a_number_that_is_not_finite(variant, value):
    x = torch.randn(3, 4200)
    x[1, 4150] = value
    scale = VARIANTS["quantise_rows"][variant](x, FLOAT8)[1]
    assert scale.isfinite().tolist() == [True, False, True]


def test_other_formats_are_refused():
    for call in VARIANTS["quantise_rows"].values():
        with pytest.raises(ValueError, match="int8 or float8_e4m3fn, got torch.int16"):
            call(torch.ones(1, 128), torch.int16)


@interpreter
@pytest.mark.parametrize("operator", ["rms_norm", "add_rms_norm", "silu_mul"])
def test_a_row_among_hundreds_has_its_bits_alone(operator):
    x = torch.randn(150, 256)
    rest = {
        "rms_norm": (torch.randn(256), 1e-6),
        "add_rms_norm": (torch.randn(150, 256), torch.randn(256), 1e-6),
        "silu_mul": (),
    }[operator]

    def run(call, start, stop):
        cut = [a[start:stop] if torch.is_tensor(a) and a.ndim == 2 else a for a in rest]
        return outputs(call(x[start:stop], *cut))

    for name, call in VARIANTS[operator].items():
        whole = run(call, 0, 150)
        for start in (0, 77, 149):
            for a, b in zip(run(call, start, start + 1), whole, strict=True):
                assert torch.equal(a[0], b[start]), name


@pytest.mark.gpu
@pytest.mark.parametrize("n, k", [(5120, 6144), (1000, 2048)])
def test_on_a_card_they_are_the_reference_s_to_the_bit_too(n, k):
    packed = tiles(n, k).cuda()
    weight = torch.empty(n, k, dtype=torch.bfloat16, device="cuda")
    VARIANTS["int4_restore"]["triton"](packed, weight)
    assert torch.equal(weight, layout.dequantise(packed, n, torch.bfloat16))
    for form in (torch.int8, FLOAT8):
        want = VARIANTS["quantise_rows"]["reference"](weight, form)
        found = VARIANTS["quantise_rows"]["triton"](weight, form)
        for a, b in zip(found, want, strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
