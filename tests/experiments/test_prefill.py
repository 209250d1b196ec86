"""The prefill experiment on the embedded model: its figures, its verdict, and what it refuses."""

import pytest
import torch

from experiments.prefill import PRODUCTS, _part
from tests.experiments.runs import record_of
from tr.overrides import load
from tr.roofline import prefill_flops

ARGS = ("+exp=prefill", "device=cpu", "prefill.chunk_tokens=128", "params.rounds=1")


def test_a_record_of_a_small_run(tmp_path):
    formats = "quant=int4_g128", "params.formats=[int8]", "params.quality_tokens=100"
    record = record_of(tmp_path, *ARGS, "params.lengths=[200,70]", *formats)
    figures = record["figures"]
    assert figures["chunk_tokens"] == 128 and list(figures["lengths"]) == ["70", "200"]
    for tokens, values in figures["lengths"].items():
        assert values["tokens_per_s"] == pytest.approx(int(tokens) / values["seconds"])
        rate = figures["matmul_tflops"]
        assert values["matmul_fraction"] == pytest.approx(values["tflops"] / rate)
    chunk, *others = figures["parts"].values()
    assert chunk["tokens"] == 72 and chunk["before"] == 128
    assert sum(part["us"] for part in others) == pytest.approx(chunk["us"])
    for name, at in (("multiple of 64", 64), ("grid", 128)):
        found = figures["resume"][name]
        assert found["at"] == at and found["equal"] and found["hidden_distance"] == 0
    assert record["verdict"] == {"exact": True, "compared_tokens": 200, "first_divergence": None}
    assert set(figures["formats"]["int8"]) == {"70", "200"}
    quality = figures["quality"]["int8"]
    assert 0 < quality["kl_mean"] < 0.05 and quality["top1"] > 0.9


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["params.lengths=[9000]"], r"params.lengths: expected 1 .. 8191 tokens, got \[9000\]"),
        (["params.formats=[int4]"], "params.formats: expected bf16, int8, fp8, got 'int4'"),
        (["params.formats=[int8]"], "int4 weights, got quant=bf16; use quant=int4_g128"),
        (["prefill=fp8"], "prefill=fp8 rounds .* got quant=bf16; use quant=int4_g128"),
    ],
)
def test_what_it_refuses(tmp_path, args, complaint):
    with pytest.raises(ValueError, match=complaint):
        record_of(tmp_path, *ARGS, *args)


def test_kernels_are_named_by_their_operator_and_a_library_s_by_their_own():
    assert _part("int4_restore", "_int4_restore") == "restore"
    assert _part("gated_delta_chunk", "anything_gemm") == "delta rule"
    for name in ("nvjet_sm90_tst_128x256", "sm90_xmma_gemm_bf16", "void cutlass::device_kernel"):
        assert _part("other", name) == "matrix products" and PRODUCTS.search(name)
    assert _part("other", "vectorized_elementwise_kernel") == "elementwise"
    assert _part("silu_mul", "_silu_mul") == "elementwise"


def test_a_prompt_s_operations_are_those_of_the_27b():
    shape = load(["run=x", "model=qwen3_8_27b", "weights=random"]).model.spec()
    one = prefill_flops(shape, 1)
    assert prefill_flops(shape, 2) - one == pytest.approx(4.87e10, rel=0.002)
    attention = prefill_flops(shape, 32768) - 32768 * (prefill_flops(shape, 2) - one)
    assert attention == pytest.approx(196608 * 32768**2, rel=0.01)
    whole = prefill_flops(shape, 3000)
    assert whole == pytest.approx(
        prefill_flops(shape, 1000) + prefill_flops(shape, 2000, 1000) - 2 * 248320 * 5120
    )
    assert torch.tensor(whole).isfinite()
