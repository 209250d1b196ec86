"""The table kernel's plans, its inline PTX on integers, and what other cards' compilers make of it.

Rows, places and closeness to float64 are tested for every variant in test_rows.py and test_ops.py.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from kernels.define import VARIANTS
from kernels.table4_matmul import layout, reference
from tests.kernels.cases import CASES
from tr.testing import assert_as_close

pytest.importorskip("triton")

from kernels.int4_matmul.plan import Plan  # noqa: E402
from kernels.table4_matmul import triton as k  # noqa: E402

PLANS = [Plan(1, 5), Plan(2, 3), Plan(4, 1)]


@pytest.mark.interpreter
@pytest.mark.parametrize("chosen", PLANS, ids=str)
def test_every_plan_gives_rows_alone_the_same_bits(chosen):
    x, tiles, exponent, splits = CASES["table4_matmul"].arguments(torch.float32)
    x, tiles = x[:5].clone(), torch.cat([tiles, tiles[:0]])
    tiles[:, :, layout.ROWS :].random_(-(2**15), 2**15)  # any bytes
    exponent.random_(-3, 4)
    y = k.launch(x, tiles, exponent, splits, chosen)
    exact = reference(x.double(), tiles, exponent, splits)
    assert_as_close(y, reference(x, tiles, exponent, splits), exact)
    for i in (0, 4):
        assert torch.equal(k.launch(x[i : i + 1].clone(), tiles, exponent, splits, chosen)[0], y[i])


INTEGERS = {
    "mov.b32": lambda a: a,
    "xor.b32": lambda a, b: a ^ b,
    "or.b32": lambda a, b: a | b,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "mad.lo.u32": lambda a, b, c: (a * b + c) & 0xFFFFFFFF,
}


def bf16(bits):
    """Two halves of a 32-bit number as floats, exactly."""
    halves = torch.tensor([bits & 0xFFFF, bits >> 16]).to(torch.uint16)
    return halves.view(torch.bfloat16).double()


def run(asm, registers):
    """The few instructions that the kernel's PTX is made of, one after another."""
    held = dict(registers)

    def value(name):
        return held[name] if name in held else int(name, 0)

    for line in asm.value.strip().strip("{}").split(";"):
        line = line.strip()
        if not line or line.startswith(".reg"):
            continue
        op, _, rest = line.partition(" ")
        to, *names = (name.strip() for name in rest.split(","))
        if op == "mov.u32":
            assert names == ["%lanemask_lt"]
            held[to] = 2**31 - 1  # of the last lane
            continue
        a = [value(name) for name in names]
        if op == "prmt.b32":
            data, picked = a[0].to_bytes(4, "little") + a[1].to_bytes(4, "little"), []
            for i in range(4):
                place = a[2] >> 4 * i & 15
                byte = data[place & 7]
                picked.append((255 if byte >> 7 else 0) if place & 8 else byte)
            held[to] = int.from_bytes(bytes(picked), "little")
        elif op == "fma.rn.bf16x2":
            x, y, z = (bf16(bits) for bits in a)
            out = (x * y + z).float()
            assert torch.equal(out.double(), x * y + z)  # one rounding follows
            low, high = out.bfloat16().view(torch.uint16).tolist()
            held[to] = high << 16 | low
        else:
            held[to] = INTEGERS[op](*a)
    return held


@pytest.mark.parametrize("seed", range(6))
def test_the_inline_ptx_gives_halved_weights(seed):
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (1, 128), generator=g).byte()
    groups = torch.randint(0, 256, (1, 4), generator=g).byte()
    groups[0, 0] = (0, 1, 2, 3, 254, 255)[seed]
    tiles = layout.pack(codes, groups)
    want = layout.dequantise(tiles, torch.zeros(1).to(torch.int8), torch.float64)[0]
    word = tiles[0, 0, layout.ROWS :].flatten().view(torch.int32).tolist()[0] & 0xFFFFFFFF
    shared = run(k._ROWS_SHARE, {"$12": word})
    operands = {f"${5 + 2 * i}": shared[f"${i}"] for i in range(12)}
    words = tiles[0, 0, 0].contiguous().view(torch.int32).tolist()
    for j in range(16):
        out = run(k._LOOK_UP, {**operands, "$4": words[j] & 0xFFFFFFFF})
        for i in range(4):
            pair = want[32 * i + 2 * j : 32 * i + 2 * j + 2]
            assert torch.equal(2 * bf16(out[f"${i}"]), pair), (i, j)


def test_cross_compiled_kernels_use_tensor_cores_and_fit(tmp_path):
    """For H200, RTX 5090 and RTX 3090, by the compiler alone."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.table4_compiled", "90", "120", "86"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    reports = json.loads(done.stdout.strip().splitlines()[-1])
    assert {r["capability"] for r in reports} == {90, 120, 86} and len(reports) == 4
    for r in reports:
        assert r["spills"] == 0 and r["stack_bytes"] == 0, r
        assert r["matrix"] > 0 and r["async_copies"] > 0, r
        assert r["early"] == (-1 if r["capability"] == 86 else 0), r  # 86 cannot overlap
        per_processor = 2 if r["row_tiles"] == 4 else 3  # what the plan counts on, any card
        large = r["capability"] == 90 and r["row_tiles"] == 2  # where plan.py takes more stages
        assert per_processor * r["shared_bytes"] <= (227 if large else 99) * 1024, r
        assert per_processor * r["registers"] * 32 * r["warps"] <= 65536, r
        assert r["instructions_per_weight"] <= 4.2, r
        if r["capability"] == 90:
            assert r["moved"] == 0 and r["waits"] < r["matrix"] / 2, r


@pytest.mark.gpu
@pytest.mark.parametrize("n, width", [(1024, 5120), (5120, 640), (200, 256)])
def test_packed_equals_plain_on_a_card(n, width):
    g = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(16, width, generator=g, device="cuda").bfloat16()
    tiles, exponent = layout.random(n, width, g)
    packed = k.launch(x, tiles, exponent, [n], packed=True)
    plain = k.launch(x, tiles, exponent, [n], packed=False)
    exact = reference(x.double(), tiles, exponent, [n])
    for y in (packed, plain):
        assert_as_close(y, reference(x, tiles, exponent, [n]), exact)
    for rows in (1, 2, 4, 8):
        assert torch.equal(k.launch(x[:rows], tiles, exponent, [n], packed=True), packed[:rows])
    for _ in range(20):
        assert torch.equal(k.launch(x, tiles, exponent, [n], packed=True), packed)
    torch.library.opcheck(VARIANTS["table4_matmul"]["triton"].op, (x, tiles, exponent, [n]))
