"""Packed tiles: how near they are, what no tile may break, and the Triton kernels' own forms."""

import re

import numpy as np
import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS
from kernels.kvarn import edge, first_seen, keys, pack_keys, pack_values, tile_bytes, values
from tr.bench import Draw
from tr.testing import assert_as_close

interpreter = pytest.mark.interpreter


def packed(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows [heads, 128, d] as a packed tile gives them back; kind k4, v2 or v4."""
    zero = x.new_zeros(len(x), x.shape[2])
    if kind == "k4":
        return keys(*pack_keys(x, zero), zero)
    return values(*pack_values(x, zero, int(kind[1])), zero)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("kind, most", [("k4", 0.0092), ("v2", 0.141), ("v4", 0.0104)])
def test_bell_shaped_rows_keep_their_size_and_little_is_lost(kind, most, size):
    x = size * torch.randn(4, 128, 256)
    y = packed(x, kind)
    assert (y - x).square().sum() < most * x.square().sum()
    gains = (x * y).sum((1, 2)) / x.square().sum((1, 2))
    assert (gains - 1).abs().max() < 2e-3  # nothing shrinks


@pytest.mark.parametrize("kind, most", [("k4", 0.012), ("v2", 0.16), ("v4", 0.014)])
def test_loud_dims_and_quiet_tokens_do_not_drown_the_others(kind, most):
    dims, tokens = torch.exp(torch.randn(256)), torch.exp(torch.randn(128, 1))
    x = torch.randn(4, 128, 256) * dims * tokens
    error = (packed(x, kind) - x) / (dims * tokens)
    assert error.square().mean() < most


@pytest.mark.parametrize("kind", ["k4", "v2", "v4"])
def test_tiles_that_break_nothing(kind):
    ones = torch.ones(1, 128, 64)
    assert not packed(0 * ones, kind).any()
    assert torch.equal(packed(3 * ones, kind), 3 * ones)
    spike = 0 * ones
    spike[0, 5, 7] = 65504.0
    assert (packed(spike, kind) - spike).abs().max() < 64
    near = 100 * ones + 1e-3 * torch.randn(1, 128, 64)  # a step 1e5 times smaller than the middle
    assert (packed(near, kind) - near).abs().max() < 0.1
    for x in (6e-8 * ones, 65504 * torch.randn(1, 128, 64).sign(), torch.randn(1, 128, 64) ** 9):
        y = packed(x, kind)
        assert y.isfinite().all() and y.abs().max() <= 4 * x.abs().max()


def test_bytes_are_those_of_the_fields():
    for d, bits, size in ((256, 2, 26_880), (256, 4, 35_072)):
        x, m = torch.randn(1, 128, d), torch.zeros(1, d)
        made = [*pack_keys(x, m), *pack_values(x, m, bits)]
        assert sum(t.nbytes for t in made) == tile_bytes(d, bits) == size


@interpreter
@pytest.mark.parametrize("d, bits", [(32, 2), (64, 4), (256, 2)])
def test_triton_packs_what_the_reference_packs(d, bits):
    """Sums in another order tip few codes. One tile is zero, one constant, one loud in places."""
    made = BENCHES["kvarn_pack"].inputs(
        Draw("cpu", torch.float32), 16, kv_heads=2, d=d, value_bits=bits, pos=400, tokens=500
    )
    source = made[3] * torch.exp(0.4 * torch.randn(d))
    source[:, :, 256:384] = 0
    source[:, 1, 384:512] = 2
    source[:, :, 520] *= 30
    made[3] = source.half()
    want, got = ([a.clone() if torch.is_tensor(a) else a for a in made] for _ in range(2))
    VARIANTS["kvarn_pack"]["reference"](*want)
    VARIANTS["kvarn_pack"]["triton"](*got)
    tiles = list(first_seen(400, 500))
    assert tiles == [2, 3, 4, 5]
    for i in (5, 6):
        assert (got[i] != want[i]).float().mean() < 1e-3
        assert torch.equal(got[i][:, :2], made[i][:, :2]) and torch.equal(
            got[i][:, 6:], made[i][:, 6:]
        )
    for i in (7, 8, 9):
        a, b = got[i].float(), want[i].float()
        assert (a - b).abs().max() <= 2e-3 * b.abs().max()
    again = [a.clone() if torch.is_tensor(a) else a for a in got]
    VARIANTS["kvarn_pack"]["triton"](*again)
    assert all(torch.equal(a, b) for a, b in zip(got[5:], again[5:], strict=True))


@interpreter
@pytest.mark.parametrize("pos, bits", [(0, 2), (125, 2), (250, 4), (378, 2), (900, 4)])
def test_attention_at_the_ends_of_tiles(pos, bits):
    """Three splits; exact rows begin, fill up and are seen packed."""
    made = BENCHES["kvarn_attention"].inputs(
        Draw("cpu", torch.float32), 16, heads=4, kv_heads=2, d=64, value_bits=bits, pos=pos,
        capacity=1024,
    )  # fmt: skip
    made[2:4] = [a + 2 for a in made[2:4]]
    table = VARIANTS["kvarn_attention"]
    double = [a.double() if a.is_floating_point() else a for a in made]
    exact, reference = table["reference"](*double), table["reference"](*made)
    for name in ("tile", "triton"):
        assert_as_close(table[name](*made), reference, exact)


@interpreter
@pytest.mark.parametrize("pos, rows, bits", [(3000, 1, 2), (653, 5, 4)])
def test_attention_takes_nothing_from_tiles_that_no_row_sees(pos, rows, bits):
    """Their scales are NaN and their codes all ones: tile 0, and those from the first exact one."""
    made = BENCHES["kvarn_attention"].inputs(
        Draw("cpu", torch.float32), rows, heads=2, kv_heads=1, d=64, value_bits=bits, pos=pos
    )
    want = VARIANTS["kvarn_attention"]["triton"](*made)
    unseen = [0, *range(edge(pos + rows - 1), made[4].shape[1])]
    for codes, scales in zip(made[4:6], made[6:8], strict=True):
        codes[:, unseen] = -1
        scales[:, unseen] = torch.nan
    assert torch.equal(VARIANTS["kvarn_attention"]["triton"](*made), want)


@pytest.mark.parametrize("bits", [2, 4])
def test_forms_of_words_are_exact(bits):
    """The constants of the inline forms, on every word of 16 bits: masks, shifts, scales."""
    from kernels.kvarn_attention.triton import _form

    words = np.arange(2**16, dtype=np.uint16)
    for place in range(0, 16 // bits, 2):
        form = _form(bits, place)
        shift = re.search(r"shr\.u32 word, \$2, (\d+);", form)
        word = words >> np.uint16(int(shift[1]) if shift else 0)
        masks = [int(m, 16) for m in re.findall(r"and\.b32 n, word, (0x\w+);", form)]
        scales = [int(m, 16) for m in re.findall(r"mov\.b32 \w+, (0x\w+);", form)]
        for n, (mask, scale) in enumerate(zip(masks, scales, strict=True)):
            assert mask >> 16 == mask & 0xFFFF and scale >> 16 == scale & 0xFFFF
            value = (word & np.uint16(mask & 0xFFFF)).view(np.float16)
            found = value.astype(np.float64) * np.uint16(scale & 0xFFFF).view(np.float16)
            code = (words >> np.uint16(bits * (place + n))) & np.uint16(2**bits - 1)
            assert (found == code * 2.0**-9).all()
