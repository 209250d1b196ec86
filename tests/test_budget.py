"""The bytes that a run is said to need, against the tensors that it makes; and the refusal."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from kernels.define import MAX_ROWS
from tr.assemble import assemble, random_dflash2
from tr.budget import aside, budget, check, draft_bytes, free_bytes
from tr.config import Dflash2Draft
from tr.decode.porter import AHEAD
from tr.decode.snapshot import parts
from tr.decode.step import init_state, prefill, written
from tr.drafts.dflash2 import Dflash2
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.model.text import cache_rows
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.many import Many
from tr.overrides import load
from tr.roofline import operators_workspace
from tr.tree import tensors

RECORD = Path(__file__).parents[1] / "experiments/records/h200/prefill-int4_kv_fp8.json"
BASE = ("run=x", "device=cpu", "model=smoke", "weights=random")


def nbytes(*trees) -> int:
    return sum(t.nbytes for tree in trees for t in tensors(tree).values())


@pytest.mark.parametrize("tied", ["true", "false"])
@pytest.mark.parametrize("kv", ["bf16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("quant", ["bf16", "int4_g128"])
def test_the_plan_holds_what_the_run_allocates(quant, kv, tied):
    """Of a model whose matrices fill whole tiles and of one whose head does not."""
    for vocab in (640, 600):
        args = [*BASE, f"quant={quant}", f"kv={kv}", "draft=mtp", "kernel=reference"]
        config = load([*args, f"model.tie_embeddings={tied}", f"model.vocab={vocab}"])
        made = assemble(config, 700)
        draft = made.draft(config)
        state = init_state(made.model, draft, 700)
        items = {i.name: i.held for i in budget(config, made.shape, 700, None, 2.0).items}
        said = sum(held for name, held in items.items() if name != "workspace")
        record = nbytes(init_state(made.model, Raw(), 700).target)
        per_row = (nbytes(state.target) - record) / (draft.rows - 1)
        said -= (16 - draft.rows) * per_row  # records are planned for the most rows
        counters = 2 * 8
        held = nbytes(made.model.params, made.mtp, state.target, state.draft.cache) - counters
        assert said == pytest.approx(held, rel=1e-9)
        row = {"bf16": 64 * 2, "fp8": 64, "int8": 64 + 4, "int4": 32 + 4}[kv]
        cache = 2 * cache_rows(700) * row
        assert items["key-value cache"] == cache and items["MTP cache"] == cache


@pytest.mark.parametrize("own, row", [("same", 32 + 4), ("bf16", 128), ("int8", 64 + 4)])
def test_the_mtp_head_s_cache_has_a_format_of_its_own(own, row):
    config = load([*BASE, "kv=int4", "draft=mtp", f"draft.kv={own}", "kernel=reference"])
    made = assemble(config, 700)
    items = {i.name: i.held for i in budget(config, made.shape, 700, None, 2.0).items}
    assert items["key-value cache"] == 2 * cache_rows(700) * 36
    assert items["MTP cache"] == 2 * cache_rows(700) * row
    assert nbytes(made.draft(config).init_state(700).cache) == items["MTP cache"]


@pytest.mark.parametrize("quant", ["bf16", "int4_g128"])
def test_a_draft_s_bytes(quant):
    heads = ("draft.random.heads=2", "draft.random.kv_heads=1", "draft.random.selector_rank=64")
    config = load([*BASE, "draft=dflash2", f"quant={quant}", *heads])
    draft = assemble(config).draft(config)
    assert isinstance(draft, Dflash2)
    wide = Dense if quant == "bf16" else Int4
    layer = draft.params.layers[0]
    for matrix in (layer.qkv, layer.out, layer.mlp.down, draft.params.fc):
        assert isinstance(matrix, wide)
    for small in (draft.params.selector, layer.mlp_conv):  # 64 and 32 rows
        assert isinstance(small.projection, Dense)
    held = nbytes(draft.params, draft.init_state(1024))
    assert draft_bytes(draft.params.config, quant) == held


def test_the_published_draft_has_its_published_parameters():
    config = load(["run=x", "model=qwen3_8_27b", "weights=random"])
    assert isinstance(config.draft, Dflash2Draft)
    shape = config.model.spec()
    net = random_dflash2(config.draft.random, shape)
    assert net.taps == (5, 19, 33, 47, 61) and net.mask_token == 248070 and net.block == 8
    around = 2 * 2 * shape.max_positions * 64 + 5 * 2 * 8 * 4096 * 128 * 2  # tables and ring
    assert draft_bytes(net, "bf16") - around == 2 * 1_924_404_480
    codebooks = 2 * 2 * 248320 * 256
    assert draft_bytes(net, "int4_g128") - around - codebooks == pytest.approx(954.7e6, rel=1e-3)


def test_a_block_on_a_card_holds_its_keys_and_values_twice():
    config = load(["run=x", "model=qwen3_8_27b", "weights=random"])
    assert isinstance(config.draft, Dflash2Draft)
    net = random_dflash2(config.draft.random, config.model.spec())
    more = draft_bytes(net, "int4_g128", fused=True) - draft_bytes(net, "int4_g128")
    assert more == 5 * 2 * 8 * 128 * 5120 * 4.25 / 8


@pytest.mark.parametrize("kv", ["bf16", "fp8", "int4", "kvarn"])
def test_the_copies_of_a_state_are_planned(kv):
    """A capture's, and a snapshot's with the rows of a step's outputs that it keeps."""
    own = ("draft.random.heads=2", "draft.random.kv_heads=1", "draft.random.d_head=64")
    config = load([*BASE, "draft=dflash2", "kernel=reference", f"kv={kv}", *own])
    made = assemble(config, 1024)
    draft = made.draft(config)
    assert isinstance(draft, Dflash2)
    with torch.inference_mode():
        ids = torch.arange(600) % 600
        state = prefill(made.model, draft, init_state(made.model, draft, 1024), ids, sampling())
        capture = sum(x.nbytes for x in written(state))
        snapshot = sum(x.nbytes for x in parts(state, 1024, MAX_ROWS, 8).values())
    said = aside(made.shape, kv, 1024, draft.params.config).held / AHEAD
    outputs = nbytes(state.feed.hidden, state.feed.taps)
    assert snapshot - outputs <= capture <= said + outputs + 2000
    assert said < 1.35 * capture  # of caches whole tiles are planned


def test_what_a_prompt_takes_is_what_a_card_measured():
    """A layer's widest moment at 27B, by the record of a run that read prompts of 8 chunks."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    prefill = record["config"]["prefill"]
    config = load(["run=x", "model=qwen3_8_27b", "weights=random", "quant=int4_g128", "kv=fp8"])
    shape, chunk = config.model.spec(), record["figures"]["chunk_tokens"]
    assert isinstance(config.draft, Dflash2Draft)
    net = random_dflash2(config.draft.random, shape)
    taps = 2.0 * net.window * len(net.taps) * net.d_model
    many = Many(prefill["activations"], prefill["scratch_mib"] << 20)
    said = operators_workspace(shape, "int4_g128", 32768, chunk, many, taps).held
    measured = 1e9 * record["figures"]["lengths"]["32768"]["working_gb"]
    assert record["config"]["draft"]["strategy"] == "dflash2"
    assert measured <= said <= 1.05 * measured


def test_a_whole_window_of_the_27b_beside_its_draft():
    """Read in full with every copy on its way: 28 GB with fp8, 24 GB with 4 bits."""
    for kv, most in (("fp8", 28e9), ("int4", 24e9)):
        config = load(["model=qwen3_8_27b", "+exp=long_turn", "quant=int4_g128", f"kv={kv}"])
        shape = config.model.spec()
        assert isinstance(config.draft, Dflash2Draft)
        net = random_dflash2(config.draft.random, shape)
        card = torch.device("cuda")
        whole = budget(config, shape, shape.max_positions, net, 2.0, device=card)
        assert 0.98 * most < whole.held < most


def test_what_does_not_fit_is_refused_with_the_most_that_does(monkeypatch):
    config = load([*BASE, "draft=raw", "quant=int4_g128", "device.memory_gib=0.0075"])
    shape = config.model.spec()
    monkeypatch.setattr("tr.model.text.init", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ValueError) as refused:
        assemble(config)
    lines = str(refused.value).splitlines()
    assert "1024 tokens of cache, with quant=int4_g128 and kv=bf16, need" in lines[0]
    assert "cpu has 8.053 MB free" in lines[0]
    most = int(lines[0].split("kv.capacity_tokens=")[1].split()[0])
    assert any("key-value cache" in line for line in lines) and "total" in lines[-1]
    free = free_bytes(torch.device("cpu"), config.device.memory_gib)
    assert budget(config, shape, most, None, 4).held <= free
    assert budget(config, shape, most + 1, None, 4).held > free
    with pytest.raises(ValueError, match="not even an empty cache fits: use quant=int4_g128"):
        check(dataclasses.replace(config, device=tight(1e-6)), shape, 10, None, 4)


def tight(gib: float):
    return load([*BASE, "draft=raw", f"device.memory_gib={gib}"]).device


def test_a_checkpoint_is_measured_by_its_config_before_its_files(tmp_path):
    shape = load([*BASE]).model.spec()
    (tmp_path / "config.json").write_text(json.dumps(shape.to_hf()))
    args = ["run=x", "device=cpu", "weights=checkpoint", f"weights.path={tmp_path}", "draft=raw"]
    with pytest.raises(ValueError, match="memory: 1024 tokens of cache"):
        assemble(load([*args, "device.memory_gib=0.001"]))
    with pytest.raises(FileNotFoundError, match="model.safetensors"):
        assemble(load(args))


def test_free_memory_is_known_here():
    free = free_bytes(torch.device("cpu"))
    assert 2**20 < free < 2**50
    assert free_bytes(torch.device("cpu"), 0.5) == min(free, 2**29)
