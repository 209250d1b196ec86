"""What a float8 cache holds: every bfloat16 number, by the reference and by the Triton kernel."""

import pytest
import torch

from kernels.define import VARIANTS
from kernels.qk_rope_store import as_cached
from tests.kernels.cases import CASES, COVERED, ROWS

FLOAT8 = torch.float8_e4m3fn


def every_number() -> torch.Tensor:
    """The 65,280 finite bfloat16 numbers, zeros in the place of the others; [65536]."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.bfloat16)
    return torch.where(x.isfinite(), x, 0.0)


def test_rounding_is_to_the_nearest_even_and_stays_where_it_is():
    x = every_number()
    stored = as_cached(x, FLOAT8)
    values = torch.arange(127, dtype=torch.uint8).view(FLOAT8).double()  # 0 .. 448, in order
    at = x.double().abs().clamp(max=448)
    above = torch.searchsorted(values, at).clamp(max=126)
    low, high = values[(above - 1).clamp(min=0)], values[above]
    down = (at - low < high - at) | ((at - low == high - at) & (above % 2 == 1))
    assert torch.equal(stored.double().abs(), torch.where(down, low, high))
    assert torch.equal(stored.double().sign(), torch.where(stored.double() == 0, 0, x.sign()))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.equal(as_cached(stored.to(dtype), FLOAT8).view(torch.uint8), codes(stored))
    assert as_cached(x, torch.bfloat16) is x


def codes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


@pytest.mark.parametrize("variant", sorted(VARIANTS["qk_rope_store"]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_variant_stores_the_same_bits(variant, dtype, device):
    """All numbers pass as values, which nothing else touches: 16 rows of 4 heads of 1024."""
    rows, kv_heads, d = 16, 4, 1024
    v = every_number().to(dtype).view(rows, kv_heads * d)
    v = v.nan_to_num(posinf=60000.0, neginf=-60000.0)  # fp16 ends earlier
    qkv = torch.cat([torch.zeros(rows, 4 * 2 * d, dtype=dtype), v.new_ones(v.shape), v], 1)
    gain = torch.zeros(d, dtype=dtype)
    cos, sin = torch.ones(rows, 8, dtype=dtype), torch.zeros(rows, 8, dtype=dtype)
    cache = torch.zeros(2, kv_heads, 512, d, dtype=FLOAT8, device=device)
    arguments = [x.to(device) for x in (qkv, gain, gain.clone(), cos, sin, torch.tensor(0))]
    VARIANTS["qk_rope_store"][variant](*arguments, cache[0], cache[1], 1e-6, None, None)
    want = as_cached(v.view(rows, kv_heads, d).transpose(0, 1), FLOAT8)
    assert torch.equal(codes(cache[1, :, :rows].cpu()), codes(want.contiguous()))


@pytest.mark.parametrize("variant", [name for op, name in COVERED if op == "attention_decode"])
def test_a_row_over_a_float8_cache_is_its_own(variant):
    case, call = CASES["attention_decode"], VARIANTS["attention_decode"][variant]
    arguments = case.arguments(torch.bfloat16)
    arguments[2:4] = [as_cached(a, FLOAT8) for a in arguments[2:4]]
    whole = call(*case.cut(arguments, 0, ROWS))
    assert whole.isfinite().all()
    for start, stop in ((0, 1), (0, 8), (7, 8), (13, 16)):
        assert torch.equal(call(*case.cut(arguments, start, stop)), whole[start:stop])


@pytest.mark.parametrize("variant", [name for op, name in COVERED if op == "qk_rope_store"])
def test_a_row_is_stored_as_among_sixteen(variant):
    case, call = CASES["qk_rope_store"], VARIANTS["qk_rope_store"][variant]
    arguments = case.arguments(torch.bfloat16)
    arguments[6:8] = [as_cached(a, FLOAT8) for a in arguments[6:8]]
    together = case.cut(arguments, 0, ROWS)
    call(*together)
    for row in (0, 5, 15):
        alone, at = case.cut(arguments, row, row + 1), int(arguments[5]) + row
        call(*alone)
        for i in (6, 7):
            assert torch.equal(codes(alone[i][:, at]), codes(together[i][:, at]))
