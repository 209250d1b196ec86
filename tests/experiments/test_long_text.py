"""Experiments on long texts and cache formats: small runs, and how coverage counts."""

import pytest

from experiments.verbatim import coverage
from tests.experiments.runs import record_of


def test_cache_formats_beside_bf16(tmp_path):
    small = ("params.contexts=[256]", "params.texts=1", "params.positions=64")
    figures = record_of(
        tmp_path, "+exp=kv_quality", "params.kv=[fp8,int8]", "params.continued=8", *small
    )["figures"]
    found = figures["contexts"]["256"]
    assert list(found) == ["noise floor", "bf16", "fp8", "int8"]
    assert found["bf16"]["kl_mean"] == 0 and found["bf16"]["top1"] == 1
    assert 0 < found["int8"]["kl_mean"] < found["fp8"]["kl_mean"] < 0.1
    assert found["fp8"]["bytes_per_token"] * 2 == found["bf16"]["bytes_per_token"]
    assert all(1 <= found[kv]["tokens_per_step"] <= 8 for kv in ("bf16", "fp8", "int8"))


def test_a_needle_is_found_near_its_question(tmp_path):
    small = ("params.kv=[bf16]", "params.lengths=[512]", "params.depths=[0.5]", "params.trials=2")
    record = record_of(tmp_path, "+exp=needle", *small)
    cell = record["figures"]["formats"]["bf16"]["512"]
    assert cell["found"] == cell["depth_0.5"] == 1
    assert record["verdict"]["exact"] and record["verdict"]["compared_tokens"] > 4


def test_lengths_without_room_and_depths_outside_are_refused(tmp_path):
    with pytest.raises(ValueError, match="params.depths: expected 0 .. 1"):
        record_of(tmp_path, "+exp=needle", "params.depths=[2]")
    with pytest.raises(ValueError, match="params.lengths"):
        record_of(tmp_path, "+exp=needle", "params.lengths=[64]")


def test_a_document_comes_back(tmp_path):
    small = ("params.kv=[bf16]", "params.lengths=[100]", "params.trials=1")
    cell = record_of(tmp_path, "+exp=verbatim", *small)["figures"]["formats"]["bf16"]["100"]
    assert 0.5 < cell["reproduced"] <= 1 and cell["tokens_per_step"] > 2


def test_coverage_counts_blocks_in_order():
    document = list(range(20))
    assert coverage(document, document) == (1, 1)
    assert coverage(document, [99, *document]) == (1, 0)
    assert coverage(document, document[:10]) == (0.5, 0.5)
    assert coverage(document, [0, 1, 2, 99, 3, 4, 5]) == (0, 0.15)  # no block of four
    assert coverage(document, []) == (0, 0)


def test_a_sweep_over_contexts(tmp_path):
    tiny = ("model=smoke", "quant=bf16", "params.kv=[bf16,fp8]", "params.contexts=[0,64]")
    record = record_of(
        tmp_path, "+exp=context_sweep", "params.strategies=[raw,mtp]", "params.rounds=1", *tiny
    )
    found = record["figures"]["strategies"]
    assert list(found) == ["raw, bf16", "mtp, bf16", "raw, fp8", "mtp, fp8"]
    assert list(found["raw, bf16"]) == ["0", "64"]
    assert found["raw, bf16"]["64"]["wall_fraction"] > 0 and found["mtp, fp8"]["64"]["ratio"] > 1
    assert record["simulated_acceptance"] and record["verdict"] is None


def test_a_next_turn_costs_its_new_tokens(tmp_path):
    small = ("params.contexts=[300]", "params.new=9", "params.answer=6", "params.turns=1")
    found = record_of(tmp_path, "+exp=long_turn", *small)["figures"]["contexts"]["300"]
    assert found["computed_tokens"] == 10  # the answer's last token too: no step has read it
    assert found["reused_tokens"] == 300 + 2 * 6 + 9 - 1
    assert 0 < found["ttft_ms"] <= found["ttft_max_ms"]
