"""Cache formats: what they keep of a row, that they keep it for good, and whose bits those are."""

import pytest
import torch

from kernels.codes import decode, encode, numbers
from kernels.hadamard import rotated, signs, unrotated
from kernels.registry import select
from tr.config import KV_FORMATS
from tr.nn.formats.kv.cache import FORMATS, bytes_per_token, make, rounded
from tr.nn.formats.kv.coded import Coded
from tr.nn.formats.kv.plain import Plain
from tr.nn.rope import rope
from tr.tree import map_tensors, tensors

ROWWISE = ("bf16", "fp8", "int8", "int4")
CODED = {"int8": torch.int8, "int4": torch.uint8}
HEADS, D, CAPACITY = 2, 64, 512


def rows(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(count, HEADS, D, generator=g) for _ in range(2))
    return k.bfloat16(), (v * torch.logspace(-4, 4, count)[:, None, None]).bfloat16()


def empty(name: str) -> Plain | Coded:
    cache = make(name, HEADS, CAPACITY, D, torch.zeros(0, dtype=torch.bfloat16))
    assert isinstance(cache, Plain | Coded)
    return cache


def test_the_config_s_names_are_the_formats():
    assert KV_FORMATS == tuple(FORMATS)


@pytest.mark.parametrize("name", ROWWISE)
def test_what_is_written_is_read_rounded_and_can_be_moved_away_and_back(name):
    k, v = rows(40)
    cache = empty(name)
    cache.extend(k[:25], v[:25], 7)
    cache.extend(k[25:], v[25:], 32)
    for got, x in zip(cache.read(47, torch.bfloat16), (k, v), strict=True):
        assert torch.equal(got[:, 7:], rounded(name, x).transpose(0, 1))
        assert not got[:, :7].abs().gt(1e-20).any()
    kept = map_tensors(torch.clone, cache.rows(10, 30))
    before = map_tensors(torch.clone, cache)
    cache.extend(v[:20], k[:20], 10)
    assert any(not torch.equal(a, b) for a, b in zip(cache.rows(10, 30), kept, strict=True))
    cache.put(10, kept)
    for a, b in zip(tensors(cache).values(), tensors(before).values(), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert sum(t.nbytes for t in tensors(cache).values()) == CAPACITY * bytes_per_token(
        name, HEADS, D
    )


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("d", [16, 32, 64, 128, 256, 512])
def test_no_value_is_more_than_half_a_step_off(name, d):
    x = torch.randn(200, d, generator=torch.Generator().manual_seed(d)).double()
    x[::3] *= torch.logspace(-20, 20, 67)[:, None]
    x[1, 3] = 50.0
    codes, scale = encode(x, CODED[name])
    basis = x if name == "int8" else rotated(x)
    error = (numbers(codes, torch.float64) * scale[:, None] - basis).abs()
    assert (error <= scale[:, None] * (0.5 + 1e-6)).all()
    steps = 127 if name == "int8" else 8
    assert torch.allclose(scale.double() * steps, basis.abs().amax(-1), rtol=1e-6)


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_zeros_and_the_ends_of_a_dtype_are_safe(name, dtype):
    ends = torch.finfo(dtype)
    x = torch.zeros(5, D, dtype=dtype)
    x[1], x[2, ::2], x[3, 5], x[4] = ends.max, ends.min, ends.max, ends.smallest_normal
    codes, scale = encode(x, CODED[name])
    assert scale.isfinite().all() and (scale > 0).all()
    y = decode(codes, scale)
    assert y.isfinite().all() and y[0].abs().max() < 1e-29
    if dtype == torch.float16:  # wider ones are clamped
        assert ((y - x.float()).norm(dim=-1) <= 0.2 * x.float().norm(dim=-1) + 1e-29).all()


@pytest.mark.parametrize(
    "name, kind, bound",
    [
        ("int8", "normal", 5e-5),
        ("int8", "one large dim", 7e-4),
        ("int4", "normal", 1.28e-2),
        ("int4", "one large dim", 1.28e-2),
        ("int4", "a common part", 1.28e-2),
    ],
)
def test_how_much_of_a_row_is_lost(name, kind, bound):
    """Mean square error beside the mean square, rows of 256."""
    x = torch.randn(2000, 256, generator=torch.Generator().manual_seed(1))
    if kind == "one large dim":
        x[:, 17] = 9.0
    if kind == "a common part":
        x += 1.0
    lost = (decode(*encode(x, CODED[name])) - x).square().mean() / x.square().mean()
    assert bound / 4 < lost < bound


@pytest.mark.parametrize("d", [16, 32, 64, 128, 256])
def test_the_rotation_is_orthonormal_and_flattens_spikes_and_constants(d):
    x = torch.randn(7, 3, d, dtype=torch.float64)
    assert torch.allclose(unrotated(rotated(x)), x) and torch.allclose(rotated(unrotated(x)), x)
    assert torch.allclose((rotated(x[0]) * rotated(x[1])).sum(-1), (x[0] * x[1]).sum(-1))
    assert sorted(set(signs(d, x.device).tolist())) == [-1.0, 1.0]
    most = 1.0 if d.bit_length() % 2 else 2**0.5  # an odd number of bits leaves one unpaired
    for flat in (torch.eye(d)[3] * d**0.5, torch.ones(d)):
        assert rotated(flat).abs().max() <= most * (1 + 1e-6)
    assert torch.equal(rotated(x)[2, 1], rotated(x[2, 1]))


def test_a_rotation_needs_a_power_of_two():
    with pytest.raises(ValueError, match="power of two, got 24"):
        rotated(torch.zeros(24))


def step(cache, ops, qkv: torch.Tensor, pos: int, tables) -> torch.Tensor:
    gain = torch.zeros(D, dtype=torch.bfloat16)
    q, gate = cache.store(qkv, gain, gain, tables, torch.tensor(pos), 1e-6, ops)
    return cache.attend(q, gate, torch.tensor(pos), ops)


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("variant", ["reference", "tile"])
def test_rejected_rows_leave_no_trace(name, variant):
    """Sixteen rows are stored and three kept; what comes after never sees the other thirteen."""
    ops, tables = select(variant), rope(CAPACITY, 32, 1e7, torch.bfloat16, "cpu")
    g = torch.Generator().manual_seed(3)
    qkv = torch.randn(40, (2 * 4 + 2 * HEADS) * D, generator=g).bfloat16()
    spoilt, clean = empty(name), empty(name)
    first = step(spoilt, ops, qkv[:16], 100, tables)
    assert torch.equal(step(clean, ops, qkv[:3], 100, tables), first[:3])
    again = [step(cache, ops, qkv[20:28], 103, tables) for cache in (spoilt, clean)]
    assert torch.equal(*again) and again[0].isfinite().all()
    for a, b in zip(spoilt.rows(0, 111), clean.rows(0, 111), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("name", CODED)
def test_a_step_stores_what_a_prompt_stores(name):
    """Values pass as they are; keys are normed and turned by the same functions."""
    ops, tables = select("reference"), rope(CAPACITY, 32, 1e7, torch.bfloat16, "cpu")
    _, v = rows(9)
    stored, extended = empty(name), empty(name)
    assert isinstance(stored, Coded) and isinstance(extended, Coded)
    qkv = torch.cat([torch.ones(9, (2 * 4 + HEADS) * D), v.flatten(1)], 1).bfloat16()
    step(stored, ops, qkv, 11, tables)
    extended.extend(v, v, 11)
    assert torch.equal(stored.v, extended.v) and torch.equal(stored.v_scale, extended.v_scale)
