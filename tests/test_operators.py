"""Operators of a run: refused at build where a size or a card is wrong, by a name that works."""

import dataclasses

import pytest

from kernels.define import Target
from kernels.registry import Ops
from tr.operators import operators, sizes
from tr.overrides import load

HOPPER, AMPERE = Target("cuda", (9, 0)), Target("cuda", (8, 6))
BASE = ("run=x", "weights=random", "draft=raw")
pytest.importorskip("triton")


def picked(*args: str, target: Target = HOPPER, capacity: int = 8192) -> tuple[Ops, tuple]:
    config = load([*BASE, *args])
    return operators(config, config.model.spec(), capacity, target)


def test_sizes_name_operators_and_what_int4_takes():
    shape = load([*BASE, "model=qwen3_8_27b"]).model.spec()
    found = sizes(shape, "int4_g128", ["fp8", "bf16"], 200_000)
    assert set(found) <= {f.name for f in dataclasses.fields(Ops)}
    pairs = {(size["n"], size["k"]) for size in found["int4_matmul"]}
    assert {(16384, 5120), (5120, 17408), (248320, 5120), (5120, 10240)} <= pairs
    head = {"d_head": 256, "rotary": 64, "capacity": 200_192}
    assert found["attention_decode"] == [
        {**head, "float8": 1, "narrow d_head": 256, "4-bit codes": 0},
        {**head, "float8": 0},
    ]
    assert found["gated_delta_step"][0]["channels"] == 10240
    assert sizes(shape, "bf16", ["bf16"], 10)["int4_matmul"] == []


@pytest.mark.parametrize("kv", ["bf16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("model", ["smoke", "tiny", "qwen3_8_27b"])
def test_a_hopper_card_takes_every_operator_without_a_fallback(model, kv):
    ops, warnings = picked(f"model={model}", "quant=int4_g128", f"kv={kv}")
    assert warnings == ()
    assert ops.attention_decode.support.devices[0] == "cuda"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "args, target, complaint",
    [
        (
            ["kv=fp8"],
            AMPERE,
            "kv=fp8 needs compute capability 8.9, this is cuda 8.6; use kv=int8 or kv=bf16",
        ),
        (
            ["kv=int8", "draft=mtp", "draft.kv=fp8"],
            AMPERE,
            "draft.kv=fp8 needs compute capability 8.9, .*; use draft.kv=int8 or draft.kv=bf16",
        ),
        (
            ["model=smoke", "model.d_head=32", "kv=int8", "kernel=triton"],
            HOPPER,
            "narrow d_head to be a power of two from 64 on, got 32; use kernel.attention_decode=",
        ),
        (
            ["model=smoke", "model.d_head=24", "kv=int4"],
            Target(),
            "kv=int4 needs heads whose width is a power of two from 16 on, got 24; use kv=int8",
        ),
        (
            ["kv=fp8", "kernel=triton"],
            AMPERE,
            "needs compute capability 8.9 for a float8 cache.*use kernel.attention_decode=tile",
        ),
        (
            ["model=smoke", "model.d_head=24", "kernel=triton"],
            HOPPER,
            "d_head to be a power of two from 2 on, got 24; use kernel.qk_rope_store=reference",
        ),
        (
            ["model=smoke", "model.d_head=24", "kernel=tile"],
            Target(),
            "d_head to be a multiple of 32, got 24; use kernel.attention_decode=reference",
        ),
        (
            ["model=smoke", "model.d_ff=200", "kernel=tile"],
            Target(),
            "d_ff to be a multiple of 64, got 200; use kernel.silu_mul=reference",
        ),
        (
            ["model=smoke", "model.d_k=40", "kernel.gated_delta_step=triton"],
            HOPPER,
            "needs d_k to be a power of two from 16 on, got 40; use kernel.gated_delta_step=",
        ),
        (
            ["model=smoke", "model.d_ff=200", "quant=int4_g128"],
            HOPPER,
            "mlp down has 200 columns, not a multiple of 128; use quant=bf16",
        ),
        (
            ["model=smoke", "model.d_model=16448", "kernel=triton"],
            HOPPER,
            "takes d up to 16384, got 16448; use kernel.rms_norm=reference",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_a_name_that_can(args, target, complaint):
    with pytest.raises(ValueError, match=complaint):
        picked(*args, target=target)


def test_auto_falls_back_with_a_warning():
    ops, warnings = picked("model=smoke", "model.d_head=24", target=Target())
    assert "kernel.attention_decode=tile needs d_head to be a multiple of 32, got 24" in warnings[0]
    assert "; reference runs" in warnings[0] and len(warnings) == 1
    assert picked("model=smoke", target=Target())[1] == ()
    assert picked("model=smoke", "kernel=tile", target=Target())[1] == ()
    _, warnings = picked("model=smoke", "model.d_head=24")
    assert {w.split()[0] for w in warnings} == {
        "kernel.attention_decode=triton",
        "kernel.attention_decode=tile",
        "kernel.attention_prefill=gluon",
        "kernel.attention_prefill=triton",
        "kernel.kv_restore=triton",
        "kernel.qk_rope_store=triton",
    }
    ops, warnings = picked("kv=fp8", "kernel.attention_decode=tile", target=AMPERE)
    assert warnings == ()
    for kv in ("int8", "int4"):
        assert picked(f"kv={kv}", target=AMPERE)[1] == ()


def test_a_fast_choice_that_an_operator_lacks_is_a_warning():
    _, warnings = picked("model=smoke", "kernel=triton")
    for said in warnings:
        assert said.startswith("kernel=triton: ") and "has no such variant" in said
