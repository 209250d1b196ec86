"""The int4 format: packing loses nothing, and both forms multiply by the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.int4_matmul import layout
from kernels.registry import select
from tr.nn.formats.dense import dense
from tr.nn.formats.int4 import Int4, int4, pack, unpack
from tr.nn.formats.operand import Operand
from tr.tree import map_tensors, tensors


def drawn(n, k, seed=0):
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=g).to(torch.uint8)
    scale, minimum = (torch.randn(n, k // 128, generator=g).bfloat16() for _ in range(2))
    return codes, scale, minimum


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=25)
def test_round_trip(n, groups, seed):
    parts = drawn(n, 128 * groups, seed)
    packed = pack(*parts, [n])
    assert packed.shape == (n, 128 * groups)
    for a, b in zip(unpack(packed), parts, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    assert torch.equal(packed.scale, parts[1]) and torch.equal(packed.minimum, parts[2])
    again = layout.pack(*layout.unpack(packed.tiles, n))
    assert torch.equal(again, packed.tiles)


def test_layout_is_what_kernels_read():
    """Word j of a row: inputs j, 32 + j, 64 + j, 96 + j from the low nibble up; then parameters."""
    codes, scale, minimum = drawn(130, 256)
    tiles = pack(codes, scale, minimum, [130]).tiles
    assert tiles.shape == (3, 2, 68, 32) and tiles[0, 0].nbytes == 4352
    word = int(tiles[1, 1, 5, 7]) & 0xFFFF
    row = codes[64 + 5, 128:]
    assert [(word >> 4 * i) & 15 for i in range(4)] == [int(row[32 * i + 7]) for i in range(4)]
    pairs = tiles[1, 1, 64:].view(torch.bfloat16).flatten().unflatten(0, (64, 2))
    assert torch.equal(pairs, torch.stack([scale[64:128, 1], minimum[64:128, 1]], -1))
    assert not tiles[2, :, 2:64].any()  # past the last row
    assert not layout.scale_of(tiles)[130:].any() and not layout.minimum_of(tiles)[130:].any()


def test_one_and_or_makes_two_operand_elements():
    """What the packed kernel's PTX does to a 32-bit register, on integers: 128 + code, exactly."""
    codes, scale, minimum = drawn(64, 128)
    words = pack(codes, scale, minimum, [64]).tiles[0, 0, :64].contiguous().view(torch.int32)
    for i in range(4):
        bits = ((words >> 4 * i) & 0x000F000F) | 0x43004300
        elements = bits.view(torch.bfloat16).float()
        assert torch.equal(elements, 128.0 + codes[:, 32 * i : 32 * i + 32])


def test_weight_is_codes_times_scale_plus_minimum():
    codes, scale, minimum = drawn(70, 256)
    packed = pack(codes, scale, minimum, [70])
    spread = [t.double().repeat_interleave(128, 1) for t in (scale, minimum)]
    exact = codes * spread[0] + spread[1]
    assert torch.equal(packed.weight(torch.float64), exact)
    assert torch.equal(packed.weight(torch.float32), exact.float())
    assert torch.equal(packed.weight(torch.bfloat16), exact.float().bfloat16())


def test_sequence_and_step_agree_and_blocks_do_not_show(monkeypatch):
    packed = pack(*drawn(330, 256), [200, 130])
    x = torch.randn(2, 3, 256)
    y = packed.sequence(x)
    exact = x.double() @ packed.weight(torch.float64).T
    assert y.shape == (2, 3, 330) and (y - exact).abs().max() < 1e-5 * exact.abs().max()
    monkeypatch.setattr("tr.nn.formats.int4.BLOCK", 1)
    assert (packed.sequence(x) - exact).abs().max() < 1e-5 * exact.abs().max()
    rows = packed.step(x[0], select())
    assert (rows - exact[0]).abs().max() < 1e-5 * exact.abs().max()
    x.requires_grad_()
    packed.sequence(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_stacked_matrices_from_one_on():
    packed = pack(*drawn(330, 256), [128, 64, 138])
    x = torch.randn(2, 3, 256)
    assert torch.equal(packed.after(1).sequence(x), packed.sequence(x)[..., 128:])
    assert torch.equal(packed.after(2).sequence(x), packed.sequence(x)[..., 192:])
    with pytest.raises(ValueError, match="multiples of 64 rows, got 70"):
        pack(*drawn(140, 256), [70, 70]).after(1)


@pytest.mark.parametrize("choice", ["reference", "tile"])
@pytest.mark.parametrize("width", [256, 192])  # groups of 128, and a width without them
def test_fused_forms_are_their_parts(choice, width):
    """On a CPU bit by bit: the norm is finished, the sums only ride along."""
    ops, eps = select(choice), 1e-6
    gate_up = pack(*drawn(2 * width, 128), [width, width])
    out = pack(*drawn(width, 256, 1), [width])
    x = Operand(x=torch.randn(5, 128).bfloat16())
    h = gate_up.gate_up(x, ops)
    assert torch.equal(h.x, ops.silu_mul(gate_up.step(x.x, ops)))
    mixed, residual = torch.randn(5, 256).bfloat16(), torch.randn(5, width).bfloat16()
    gain = torch.randn(width).bfloat16()
    s, y = out.add_norm(Operand(x=mixed), residual, gain, eps, ops)
    want = ops.add_rms_norm(residual, out.step(mixed, ops), gain, eps)
    assert torch.equal(s, want[0]) and torch.equal(y.whole(ops), want[1])
    if width == 256:
        assert h.sums is not None and y.squares is not None
        head = pack(*drawn(64, 256, 2), [64])
        assert torch.equal(head.project(y, ops), head.step(want[1], ops))
        ba = dense([4, 4], 256, torch.Generator().manual_seed(0), torch.bfloat16)
        a, b = head.project_beside(y, ba, ops)
        assert torch.equal(a, head.step(want[1], ops)) and torch.equal(b, ba.step(want[1], ops))


def test_random_weights_have_the_deviation_of_a_dense_matrix():
    made = int4([100, 90], 512, torch.Generator().manual_seed(0))
    w = made.weight(torch.float64)
    assert w.shape == (190, 512) and abs(w.std() * 512**0.5 - 1) < 0.02 and abs(w.mean()) < 1e-3
    assert not layout.scale_of(made.tiles)[190:].any()
    assert torch.equal(made.weight(torch.float32).isfinite().all(), torch.tensor(True))


def test_it_is_a_pytree_of_one_tensor():
    packed = pack(*drawn(64, 128), [64])
    assert list(tensors(packed)) == ["tiles"]
    other = map_tensors(torch.clone, packed)
    assert isinstance(other, Int4) and other.splits == (64,)


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: pack(torch.zeros(8, 100).byte(), *drawn(8, 128)[1:], [8]), "multiple of 128"),
        (lambda: pack(16 + drawn(8, 128)[0], *drawn(8, 128)[1:], [8]), "codes must be uint8 in"),
        (lambda: pack(*drawn(8, 128), [4, 5]), r"\[4, 5\] do not add up to 8"),
        (lambda: layout.pack(drawn(8, 256)[0], *drawn(8, 128)[1:]), "scale must be bfloat16"),
        (lambda: int4([8], 100, torch.Generator()), "multiple of 128, got 100"),
    ],
)
def test_refusals(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
