"""Caches of integer codes: the same bits from every variant, and sums that no scale can spoil."""

import json
import os
import subprocess
import sys

import pytest
import torch

from kernels.codes import encode
from kernels.define import VARIANTS
from tests.kernels.cases import COVERED
from tr.testing import assert_as_close

CODED = {"int8": torch.int8, "int4": torch.uint8}
STORE = [name for op, name in COVERED if op == "qk_rope_store"]
ATTEND = [name for op, name in COVERED if op == "attention_decode"]


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("variant", STORE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [16, 64])
def test_every_variant_stores_the_same_bits(name, variant, dtype, d):
    """Values pass as they are: zeros, the largest numbers, the smallest normal ones, others."""
    ends = torch.finfo(dtype)
    g = torch.Generator().manual_seed(1)
    v = torch.randn(6, 2, d, generator=g)
    v[0], v[1, :, ::3], v[3], v[4] = 0.0, ends.max, ends.smallest_normal, 1e-3 * v[5]
    v = v.to(dtype)
    qkv = torch.cat([torch.ones(6, 4 * d, dtype=dtype), v.flatten(1)], 1)
    gain, table = torch.zeros(d, dtype=dtype), torch.zeros(32, 4, dtype=dtype)
    k_codes, v_codes = (torch.zeros_like(encode(v[0], CODED[name])[0]) for _ in range(2))
    k_codes, v_codes = (c[:, None].repeat(1, 32, 1) for c in (k_codes, v_codes))
    scales = [torch.zeros(2, 32) for _ in range(2)]
    qkv = torch.cat([torch.ones(6, 2 * d + 2 * d, dtype=dtype), v.flatten(1)], 1)
    arguments = (qkv, gain, gain, 1 + table, table, torch.tensor(3), k_codes, v_codes, 1e-6)
    VARIANTS["qk_rope_store"][variant](*arguments, *scales)
    codes, scale = encode(v.transpose(0, 1), CODED[name])
    assert torch.equal(v_codes[:, 3:9], codes) and torch.equal(scales[1][:, 3:9], scale)
    assert not scales[1][:, :3].any() and not v_codes[:, 9:].any()


def made(name: str, rows: int, pos: int, d: int = 64) -> list[torch.Tensor]:
    """Values from 1e-12 to 1e12: fp16 weights times scales would neither hold nor tell apart."""
    g = torch.Generator().manual_seed(pos)
    q, gate, k = (torch.randn(*s, d, generator=g) for s in ((rows, 2), (rows, 2), (1, 512)))
    q, gate = q.bfloat16(), gate.bfloat16()
    v = (
        torch.randn(1, 512, d, generator=g)
        * torch.logspace(-12, 12, 512)[torch.randperm(512)][:, None]
    )
    v[0, 70:75] = 0.0
    (k, k_scale), (v, v_scale) = encode(k, CODED[name]), encode(v, CODED[name])
    return [q, gate.flatten(1), k, v, torch.tensor(pos), k_scale, v_scale]


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("variant", ATTEND)
@pytest.mark.parametrize("pos", [0, 62, 300])
def test_scales_kept_out_of_products_give_what_decoded_rows_give(name, variant, pos):
    arguments = made(name, 5, pos)
    exact = [a.double() if a.is_floating_point() else a for a in arguments]
    reference = VARIANTS["attention_decode"]["reference"]
    got = VARIANTS["attention_decode"][variant](*arguments)
    assert_as_close(got, reference(*arguments), reference(*exact))
    for i in (0, 4):
        alone = [a[i : i + 1] for a in arguments[:2]] + arguments[2:]
        alone[4] = alone[4] + i
        assert torch.equal(VARIANTS["attention_decode"][variant](*alone)[0], got[i])


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("variant", ATTEND)
def test_rows_of_zeros_are_zeros(name, variant):
    arguments = made(name, 2, 30)
    zeros, scale = encode(torch.zeros(1, 512, 64), CODED[name])
    arguments[3], arguments[6] = zeros, scale
    y = VARIANTS["attention_decode"][variant](*arguments)
    assert y.isfinite().all() and y.abs().max() < 1e-28


@pytest.mark.skipif("triton" not in ATTEND, reason="Triton is not interpreted here")
def test_scales_that_do_not_belong_are_refused():
    arguments = made("int8", 2, 30)
    for index, wrong, got in ((5, None, "got None"), (6, arguments[6][:, :256], "got .*256")):
        bad = [*arguments[:index], wrong, *arguments[index + 1 :]]
        with pytest.raises(ValueError, match=f"_scale of a torch.int8 cache must be.*{got}"):
            VARIANTS["attention_decode"]["triton"](*bad)


@pytest.fixture(scope="module")
def compiled():
    """Kernels of coded caches for cards that are not here."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.codes_compiled"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_fit_small_cards(compiled):
    assert [line["kernel"] for line in compiled].count("_attend") == 3
    for line in compiled:
        assert line["spilled"] == 0 and line["shared"] <= 101376, line
        assert (line["mma"] > 0) == (line["kernel"] == "_attend"), line


def test_a_code_costs_few_instructions(compiled):
    """An H200 has 8 a byte at its read bandwidth; here all of a loop's, and its 32 columns."""
    for line in compiled:
        if line["kernel"] == "_attend":
            assert line["instructions_per_code"] <= 4.2, line
