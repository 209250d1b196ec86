"""Exports load where others load them, to the same numbers, and come back to the same bits."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from experiments import published as p
from experiments.published_cases import CASES, GATES
from kernels.registry import select
from tests.checkpoint.small import same
from tests.experiments.runs import record_of
from tests.model import oracle
from tests.model.small import random_mtp, random_params
from tests.model.test_parity import EIGHT
from tr.assemble import EMBEDDED, load_dflash2
from tr.checkpoint.exports.layouts import of_target
from tr.checkpoint.exports.pack_quantized import words_down, zero_points
from tr.checkpoint.exports.write import Written, write
from tr.checkpoint.load import Loading, Target, load_target, open_target
from tr.model import text
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.table4 import Table4
from tr.quant import folder, table
from tr.quant.grid import ends, with_zero
from tr.quant.hessian import replace_matrices
from tr.quant.recipe import Recipe, convert

RECIPES = {
    "free": Recipe("mse"),
    "integer": Recipe("mse", zero_point="integer"),
}


@pytest.fixture(scope="module")
def made(published_config, tmp_path_factory) -> dict[str, Path]:
    """Checkpoints in int4, heads included, by zero points."""
    place, found = tmp_path_factory.mktemp("made"), {}
    for name, recipe in RECIPES.items():
        change = partial(lambda recipe, _, dense: convert(dense, None, recipe), recipe)
        params, head = (
            replace_matrices(make(torch.bfloat16, published_config), change)
            for make in (random_params, random_mtp)
        )
        found[name] = place / name
        folder.save_target(place / name, published_config, params, head, (3,), {}, {})
    return found


def export(
    source: Path,
    place: Path,
    kind: str,
    plain: tuple[str, ...] = (),
    shard_bytes: int = 10**9,
) -> Written:
    place.mkdir()
    found = open_target(source)
    layout = of_target(source, found, kind, plain, shard_bytes)
    loading = Loading(found.files, found.plan, "cpu")
    return write(place, loading, found.with_tables("cpu"), layout)


def everything(target: Target) -> Any:
    return target.params, target.mtp


def leaves(target: Target) -> dict[str, Any]:
    """Matrices by key path."""
    found, _ = pytree.tree_flatten_with_path(
        everything(target), is_leaf=lambda x: isinstance(x, Dense | Int4)
    )
    return {pytree.keystr(path): x for path, x in found if isinstance(x, Dense | Int4)}


def files(place: Path) -> dict[str, Tensor]:
    return {n: t for file in place.glob("*.safetensors") for n, t in load_file(file).items()}


def ours(target: Target, prompt: Tensor) -> Tensor:
    with torch.inference_mode():
        state = text.init_state(target.params, 64, 16)
        hidden, _, _ = text.prefill(target.params, state, prompt, select("reference"))
        return target.params.head.sequence(hidden[None])[0]


def theirs(place: Path, prompt: Tensor, **options: Any) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16, **options).eval()
    with torch.inference_mode():
        return model(prompt[None]).logits[0]


def test_numbers_load_in_transformers_to_the_same_logits(made, tmp_path):
    written = export(made["free"], tmp_path / "hf", "hf")
    source, loaded = load_target(made["free"]), load_target(tmp_path / "hf")
    assert isinstance(source.params.head, Int4) and not written.coded
    right = {
        key: t.weight(torch.bfloat16) if isinstance(t, Int4) else t.weight
        for key, t in leaves(source).items()
    }
    have = {key: t.weight for key, t in leaves(loaded).items()}
    assert have.keys() == right.keys()
    assert all(torch.equal(have[key], right[key]) for key in right)
    prompt = torch.arange(20, 60)
    logits = ours(loaded, prompt)
    assert logits.std() > 0.3 and torch.equal(theirs(tmp_path / "hf", prompt), logits)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["mtp_num_hidden_layers"] == 1 and "quantization_config" not in config


def test_codes_are_what_the_library_restores(made, tmp_path):
    """By the library alone, by transformers through it, and by this project's import."""
    written = export(made["integer"], tmp_path / "ct", "compressed_tensors")
    assert {"lm_head", "mtp.fc", "model.layers.1.self_attn.k_proj"} < set(written.coded)
    assert {name.rpartition(".")[2] for name in written.numbers} == set(GATES)
    export(made["integer"], tmp_path / "hf", "hf")
    parts, right = files(tmp_path / "ct"), files(tmp_path / "hf")
    for module in written.coded:
        restored = p.decompressed(parts, module, p.integers(symmetric=False))
        assert torch.equal(restored, right.pop(f"{module}.weight")), module
    assert all(torch.equal(parts[name], t) for name, t in right.items())
    prompt = torch.arange(20, 60)
    logits = theirs(tmp_path / "hf", prompt)
    dequantised = CompressedTensorsConfig(dequantize=True)
    with pytest.warns(UserWarning, match="loading attributes"):
        other = theirs(tmp_path / "ct", prompt, quantization_config=dequantised)
    assert torch.equal(other, logits)
    source, back = load_target(made["integer"]), load_target(tmp_path / "ct")
    assert same(everything(back), everything(source)) and back.warnings == ()
    assert {h.kind for h in back.report} == {"exact", "repacked"}


def test_a_published_checkpoint_comes_back_byte_for_byte(matrices, lay, made, tmp_path):
    """Symmetric, negative scales among them, and asymmetric."""
    published = CASES["ct_symmetric"](matrices)
    source = lay(published)
    written = export(source, tmp_path / "again", "compressed_tensors")
    again = files(tmp_path / "again")
    assert len(written.coded) == len(published.restored)
    assert any((t < 0).any() for n, t in again.items() if n.endswith("weight_scale"))
    assert not any(n.endswith("zero_point") for n in again)
    assert again.keys() == published.parts.keys()
    assert all(torch.equal(again[n], t) for n, t in published.parts.items())

    export(made["integer"], tmp_path / "first", "compressed_tensors")
    export(tmp_path / "first", tmp_path / "second", "compressed_tensors")
    first, second = files(tmp_path / "first"), files(tmp_path / "second")
    assert any(n.endswith("zero_point") for n in first) and first.keys() == second.keys()
    assert all(torch.equal(second[n], t) for n, t in first.items())


def test_shards_patterns_and_sizes(made, tmp_path):
    place = tmp_path / "ct"
    written = export(
        made["integer"], place, "compressed_tensors", ("lm_head", "re:mtp"), shard_bytes=300_000
    )
    shards = sorted(place.glob("*.safetensors"))
    assert len(shards) > 3 and not list(place.glob("*.partial"))
    index = json.loads((place / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == written.nbytes
    assert len(index["weight_map"]) == written.tensors == len(files(place))
    declared = json.loads((place / "config.json").read_text())["quantization_config"]
    assert declared["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert "lm_head" in declared["ignore"] and "mtp.fc" in declared["ignore"]
    assert "mtp.fc.weight" in files(place) and not any(m.startswith("mtp") for m in written.coded)
    loaded = load_target(place)
    assert loaded.warnings == () and same(
        everything(loaded)[0].layers, load_target(made["integer"]).params.layers
    )


def test_the_release_layout_keeps_names_config_and_vision(tmp_path):
    oracle.save(oracle.random_model(torch.bfloat16, **EIGHT), tmp_path / "text")
    oracle.release_layout(tmp_path / "text", tmp_path / "release", torch.bfloat16)
    export(tmp_path / "release", tmp_path / "out", "hf")
    a, b = files(tmp_path / "release"), files(tmp_path / "out")
    assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert config["text_config"]["mtp_num_hidden_layers"] == 1 and "vision_config" in config
    prompt = torch.arange(20, 60)
    assert torch.equal(theirs(tmp_path / "out", prompt), theirs(tmp_path / "release", prompt))


def test_what_does_not_fit_is_refused_by_name(made, whole, tmp_path):
    words = r"model.layers.0.linear_attn.in_proj_qkv: row \d+, group \d .* no integer times .*"
    with pytest.raises(ValueError, match=words + "quant.zero_point=integer"):
        export(made["free"], tmp_path / "free", "compressed_tensors")
    assert list((tmp_path / "free").iterdir()) == []
    with pytest.raises(ValueError, match="no matrix is held as int4 codes"):
        export(whole, tmp_path / "plain", "compressed_tensors")

    plain = load_target(whole)
    coded = replace_matrices(
        plain.params, lambda _, dense: table.convert(dense, None, Recipe("mse"))
    )
    folder.save_target(tmp_path / "table", plain.config, coded, plain.mtp, (3,), {}, {})
    words = r"in_proj_qkv: it is held as table4, .*params.to=hf, .*plain=\[model.layers.0.linear"
    with pytest.raises(ValueError, match=words):
        export(tmp_path / "table", tmp_path / "x", "compressed_tensors")
    assert list((tmp_path / "x").iterdir()) == []
    export(tmp_path / "table", tmp_path / "y", "hf")
    right = coded.layers[1].mlp.down
    assert isinstance(right, Table4)
    have = files(tmp_path / "y")["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(have, right.weight(torch.bfloat16))


def test_every_zero_point_that_fits_is_found():
    g = torch.Generator().manual_seed(0)
    low = -torch.rand(4096, 1, generator=g)
    scale, minimum = ends(low, low + 1, integer=True)
    assert scale.dtype == minimum.dtype == torch.bfloat16
    zero = zero_points("x", scale, minimum)
    assert zero.unique().tolist() == list(range(16))
    assert torch.equal((-zero.float() * scale.float()), minimum.float())
    assert (scale.float() * 15 - 1).abs().max() <= 2**-4  # 4 bits of a scale, at least
    again = with_zero(scale, minimum)
    assert torch.equal(again[0], scale) and torch.equal(again[1], minimum)
    with pytest.raises(ValueError, match=r"x: row 2, group 0 has the minimum"):
        zero_points("x", scale, torch.where(torch.arange(4096)[:, None] == 2, -0.501, minimum))
    few = torch.tensor([[1, 2], [15, 0], [3, 3]], dtype=torch.uint8)
    signed = (few.int() - 8).to(torch.int8)
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    assert torch.equal(words_down(few), pack_to_int32(signed, 4, packed_dim=0))


def test_integer_zero_points_cost_little(published_config):
    """Ranges around 0 need few of the levels between: weights lose a tenth of their precision."""
    w = random_params(torch.float32, published_config).layers[0].mlp.gate_up
    assert isinstance(w, Dense)
    errors = {}
    for name, recipe in RECIPES.items():
        off = convert(w, None, recipe).weight(torch.float32) - w.weight
        errors[name] = off.square().mean().item()
    assert errors["free"] < errors["integer"] < 1.25 * errors["free"]


def test_the_experiment_writes_weights_and_draft(tmp_path):
    made = ("quant.method=rtn", "quant.zero_point=integer", "quant.draft=rtn", "device=cpu")
    record_of(tmp_path / "0", "+exp=quantize", *made, f"params.output={tmp_path / 'made'}")
    source = ("weights=checkpoint", f"weights.path={tmp_path / 'made'}", "threads=1")
    args = ("+exp=export", *source)
    place = f"params.path={tmp_path / 'ct'}"
    figures = record_of(tmp_path / "1", *args, "params.to=compressed_tensors", place)["figures"]
    assert figures["coded_matrices"] > 50 and figures["draft"]["coded_matrices"] > 15
    assert json.loads((tmp_path / "ct" / "generation_config.json").read_text())["eos_token_id"]
    assert (tmp_path / "ct" / "chat_template.jinja").is_file()
    target, same_target = load_target(tmp_path / "made"), load_target(tmp_path / "ct")
    assert same(everything(target), everything(same_target))
    drafts = [load_dflash2(tmp_path / n / "draft", target.params) for n in ("made", "ct")]
    assert isinstance(drafts[0].fc, Int4) and same(*drafts)
    record_of(tmp_path / "2", *args, f"params.path={tmp_path / 'hf'}")
    plain = load_dflash2(tmp_path / "hf" / "draft", target.params)
    assert isinstance(plain.fc, Dense)
    assert torch.equal(plain.fc.weight, drafts[0].fc.weight(torch.bfloat16))
    names = load_file(EMBEDDED / "draft" / "model.safetensors").keys()
    assert load_file(tmp_path / "hf" / "draft" / "model.safetensors").keys() == names

    record_of(tmp_path / "3", "+exp=export", "threads=1", f"params.path={tmp_path / 'same'}")
    for part in (".", "draft"):
        a, b = files(EMBEDDED / part), files(tmp_path / "same" / part)
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
    with pytest.raises(FileExistsError, match="exists"):
        record_of(tmp_path / "4", *args, place)
    with pytest.raises(ValueError, match="is the checkpoint itself"):
        record_of(tmp_path / "5", *args, f"params.path={tmp_path / 'made'}")
    with pytest.raises(ValueError, match="give params.path=FOLDER"):
        record_of(tmp_path / "6", *args)
    with pytest.raises(ValueError, match="quant=int4_g128 makes codes at load"):
        record_of(tmp_path / "7", *args, place, "quant=int4_g128")
    with pytest.raises(ValueError, match="unknown params.to 'gguf'; did you mean 'hf'"):
        record_of(tmp_path / "8", *args, place, "params.to=gguf")
    with pytest.raises(ValueError, match="tuned moves scales and minimums freely"):
        record_of(tmp_path / "9", "+exp=quantize", "quant.method=tuned", *made[1:])
