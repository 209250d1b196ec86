"""The table format: packing loses nothing, numbers are what they are stated to be."""

import pytest
import torch

from kernels.registry import select
from kernels.table4_matmul import layout
from tests.kernels.cases import CASES
from tr.nn.formats.dense import dense
from tr.nn.formats.many import Many
from tr.nn.formats.operand import Operand
from tr.nn.formats.table4 import Table4, pack, table4, unpack
from tr.tree import tensors


def drawn(n, k, seed=0):
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=g).byte()
    groups = torch.randint(0, 256, (n, k // 32), generator=g).byte()
    return codes, groups, torch.randint(-9, 9, (n,), generator=g).to(torch.int8)


@pytest.mark.parametrize("n, k", [(1, 128), (130, 256), (64, 640)])
def test_round_trip(n, k):
    parts = drawn(n, k)
    packed = pack(*parts, [n])
    assert packed.shape == (n, k) and list(tensors(packed)) == ["tiles", "exponent"]
    for a, b in zip(unpack(packed), parts, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    assert packed.nbytes == -(-n // 64) * 64 * k * 4.25 / 8 + n


def test_every_byte_comes_back():
    """Pairs of bytes that are NaN as bfloat16, too."""
    groups = torch.arange(256).byte().repeat(2, 1)
    groups[1] = 255
    packed = pack(torch.zeros(2, 8192).byte(), groups, torch.zeros(2).to(torch.int8), [2])
    assert torch.equal(unpack(packed)[1], groups)


def test_restored_numbers_one_by_one():
    codes, groups, exponent = drawn(70, 128)
    packed = pack(codes, groups, exponent, [70])
    got = packed.weight(torch.float32)
    assert torch.equal(got, packed.weight(torch.bfloat16).float())
    assert torch.equal(got.double(), packed.weight(torch.float64))
    for n in (0, 1, 69):
        for k in range(128):
            b = int(groups[n, k // 32])
            scale = torch.tensor(0x3A00 + 3 * b, dtype=torch.int16).view(torch.bfloat16).double()
            offset = -((71 - 4 * (b % 4)) * scale).bfloat16().double()
            level = layout.LEVELS[int(codes[n, k])]
            exact = (level * scale + offset).float().bfloat16().double()
            assert got[n, k].double() == exact * 2.0 ** int(exponent[n])


def test_bytes_are_in_the_order_of_their_groups():
    """Byte i of a row's word belongs to nibble i, as kernels read it."""
    codes, groups, exponent = drawn(64, 128)
    tiles = pack(codes, groups, exponent, [64]).tiles
    words = tiles[0, 0, 64:].flatten().view(torch.int32)
    for i in range(4):
        assert torch.equal((words >> 8 * i) & 255, groups[:, i].int())


def test_views_and_choices_of_rows():
    packed = pack(*drawn(330, 256), [128, 64, 138])
    x, whole = torch.randn(2, 3, 256), packed.weight(torch.float32)
    assert torch.equal(packed.after(1).sequence(x), packed.sequence(x)[..., 128:])
    for rows in (128, 70):
        assert torch.equal(packed.first(rows).weight(torch.float32), whole[:rows])
    some = torch.tensor([329, 3, 64, 3])
    assert torch.equal(packed.take(some).weight(torch.float32), whole[some])
    with pytest.raises(ValueError, match="multiples of 64 rows, got 70"):
        pack(*drawn(140, 256), [70, 70]).after(1)


@pytest.mark.parametrize("scratch", [1, 2**29])
def test_many_tokens_by_operators_and_without(scratch, monkeypatch):
    """The restored matrix, by blocks that do not show; 8-bit activations round it once more."""
    packed = pack(*drawn(330, 256), [330])
    x = torch.randn(70, 256)
    exact = x.double() @ packed.weight(torch.float64).T
    monkeypatch.setattr("tr.nn.formats.table4.BLOCK", scratch)
    assert (packed.sequence(x) - exact).abs().max() < 1e-5 * exact.abs().max()
    ops = select()
    weight = torch.full((128, 256), torch.nan)
    packed.restore(ops)(4, 6, weight)
    assert torch.equal(weight[:74], packed.weight(torch.float32)[256:]) and not weight[74:].any()
    coarse = Table4(
        tiles=packed.tiles, exponent=packed.exponent, splits=(330,), many=Many("int8", scratch)
    )
    y = coarse.sequence(x.bfloat16(), ops)
    assert 1e-4 < ((y - exact).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize("choice", ["reference", "tile"])
def test_what_steps_call(choice):
    ops, eps = select(choice), 1e-6
    x = torch.randn(5, 128).bfloat16()
    gate_up, out = pack(*drawn(512, 128), [256, 256]), pack(*drawn(128, 256, 1), [128])
    h = gate_up.gate_up(Operand(x=x), ops)
    assert torch.equal(h.x, ops.silu_mul(gate_up.step(x, ops)))
    gain = torch.randn(128).bfloat16()
    s, y = out.add_norm(h, x, gain, eps, ops)
    want = ops.add_rms_norm(x, out.step(h.x, ops), gain, eps)
    assert torch.equal(s, want[0]) and torch.equal(y.x, want[1])
    ba = dense([4, 4], 128, torch.Generator().manual_seed(0), torch.bfloat16)
    a, b = gate_up.project_beside(y, ba, ops)
    assert torch.equal(a, gate_up.step(y.x, ops)) and torch.equal(b, ba.step(y.x, ops))


def test_random_weights_have_the_deviation_of_a_dense_matrix():
    for k in (128, 5120):
        w = table4([100, 90], k, torch.Generator().manual_seed(0)).weight(torch.float64)
        assert w.shape == (190, k) and abs(w.std() * k**0.5 - 1) < 0.08
        assert abs(w.mean()) < 0.1 * w.std()


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: pack(torch.zeros(8, 96).byte(), *drawn(8, 128)[1:], [8]), "multiple of 128"),
        (lambda: pack(16 + drawn(8, 128)[0], *drawn(8, 128)[1:], [8]), "codes must be uint8 in"),
        (lambda: pack(*drawn(8, 128), [4, 5]), r"\[4, 5\] do not add up to 8"),
        (lambda: layout.pack(drawn(8, 256)[0], drawn(8, 128)[1]), r"groups must be uint8 of shape"),
    ],
)
def test_refusals(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.interpreter
def test_what_the_kernel_refuses():
    call = CASES["table4_matmul"]
    x, tiles, exponent, splits = call.arguments(torch.float32)
    from kernels.table4_matmul.triton import launch

    for arguments, complaint in (
        ((x, tiles, exponent[:-1], splits), "exponent must be contiguous int8"),
        ((x, tiles, exponent.int(), splits), "exponent must be contiguous int8"),
        ((x, tiles, exponent, [300]), "do not fit x"),
        ((x.expand(17, 16, -1)[:, 0].contiguous(), tiles, exponent, splits), "at most 16 rows"),
    ):
        with pytest.raises(ValueError, match=complaint):
            launch(*arguments)
