"""Published checkpoints load to what the formats' own libraries restore, to the last bit."""

import json

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file
from torch import Tensor

from experiments import published as p
from experiments import published_cases as cases
from experiments import published_gguf
from experiments.published_cases import GATES, pack_quantized
from tr.checkpoint.load import Target, load_target
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4, unpack
from tr.quant import rtn


def check(loaded: Target, published: p.Published, matrices: dict[str, Tensor]) -> None:
    """Every tensor equals the library's numbers, and has a line in the report."""
    assert p.differences(loaded, published, matrices) == ()
    kinds = {h.name: h for h in loaded.report}
    assert len(kinds) == len(loaded.report) == len(matrices)


def kinds(loaded: Target) -> dict[str, set[str]]:
    """Kinds in the report, by format."""
    found: dict[str, set[str]] = {}
    for h in loaded.report:
        found.setdefault(h.format, set()).add(h.kind)
    return found


IGNORES = {
    "split": [f"model.layers.0.linear_attn.{part}" for part in GATES] + ["lm_head", "re:^mtp.*"],
    "release": [f"model.language_model.layers.0.linear_attn.{part}" for part in GATES]
    + ["lm_head", "re:.*mtp.*"],
    "fused": ["model.layers.0.linear_attn.in_proj_ba", "lm_head", "mtp"],
    "regex": ["re:.*linear_attn.in_proj_[ab]$", "re:.*lm_head", "re:mtp\\..*"],
}


@pytest.mark.parametrize("ignore", list(IGNORES))
def test_symmetric_int4_is_repacked_whatever_the_ignore_list_is_called(ignore, matrices, lay):
    quantise = pack_quantized(torch.bfloat16)
    config = p.ct_config([(["Linear"], p.integers())], IGNORES[ignore], "pack-quantized")
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    loaded = load_target(lay(published))
    assert any((t < 0).any() for n, t in published.parts.items() if n.endswith("weight_scale"))
    check(loaded, published, matrices)
    assert kinds(loaded) == {"plain": {"exact"}, "pack-quantized 4 bits g128": {"repacked"}}
    assert loaded.warnings == ()
    assert isinstance(loaded.params.layers[1].mlp.down, Int4)


def test_an_empty_ignore_list_loads_with_a_warning(matrices, lay):
    quantise = pack_quantized(torch.bfloat16)
    config = p.ct_config([(["Linear"], p.integers())], [], "pack-quantized")
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    (warning,) = loaded.warnings
    assert "stored plain" in warning and "lm_head" in warning


def test_autoround_scales_in_fp16_stay_numbers_or_are_rounded_on_request(matrices, lay):
    quantise = pack_quantized(torch.float16)
    config = p.ct_config([(["Linear"], p.integers())], IGNORES["split"], "pack-quantized")
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    path = lay(published)
    loaded = load_target(path)
    check(loaded, published, matrices)
    assert kinds(loaded)["pack-quantized 4 bits g128"] == {"rounded"}
    assert "rounded to the model's dtype" in loaded.warnings[0]

    loaded = load_target(path, requantise=rtn.arrive)
    where, restored = p.held(loaded, matrices), p.by_short(published.restored)
    assert kinds(loaded)["pack-quantized 4 bits g128"] == {"requantised"}
    errors = {h.name: h for h in loaded.report}
    for short, right in restored.items():
        node, rows = where[short]
        assert isinstance(node, Int4)
        off = (node.weight(torch.float32)[rows] - right.float()).abs()
        error = errors["model." + short.removesuffix(".weight")]
        assert error.max_error and error.relative_error and error.relative_error < 2**-8
        assert off.max() <= error.max_error + right.abs().max() * 2**-11
        code = published.parts[f"model.{short.removesuffix('.weight')}.weight_packed"]
        assert torch.equal(p.pack_fields(unpack(node)[0][rows], 4), code)


def test_asymmetric_int4(matrices, lay):
    published = cases.CASES["ct_asymmetric"](matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["pack-quantized 4 bits g128"] <= {"exact", "repacked"}


def test_quantised_head_embedding_and_mtp_in_groups_of_their_own(matrices, lay):
    published = cases.mixed_widths(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded) == {
        "plain": {"exact"},
        "pack-quantized 4 bits g128": {"repacked"},
        "pack-quantized 8 bits g256": {"exact"},
        "pack-quantized 8 bits g128": {"exact"},
        "pack-quantized 3 bits g32": {"exact"},
    }
    assert loaded.warnings == ()


@pytest.mark.parametrize("scales", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_float_quantized_by_tensor_channel_and_block(scales, matrices, lay):
    published = cases.float8(scales)(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    kind = "exact" if scales == torch.bfloat16 else "rounded"
    assert kinds(loaded)["float-quantized"] == {kind}


def test_integers_of_8_bits_beside_a_scale(matrices, lay):
    published = cases.int8(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["float-quantized"] == {"exact"}


def test_what_no_codes_hold_is_requantised_on_request(matrices, lay):
    quantise = p.fp8_blocks(False)
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    path = lay(published)
    loaded = load_target(path, requantise=rtn.arrive)
    assert kinds(loaded) == {"plain": {"exact"}, "fp8 blocks": {"requantised"}}
    assert "requantised to int4" in loaded.warnings[-1]
    numbers, codes = load_target(path).params, loaded.params
    for a, b in zip(numbers.layers, codes.layers, strict=True):
        assert isinstance(a.mlp.down, Dense) and isinstance(b.mlp.down, Int4)
        made, figures = rtn.quantise(a.mlp.down)
        assert torch.equal(made.tiles, b.mlp.down.tiles)
    (last,) = [h for h in loaded.report if h.name == "model.layers.1.mlp.down_proj"]
    assert last.relative_error == pytest.approx(figures.relative_error, rel=1e-5)
    assert isinstance(codes.lm_head, Dense)


def test_parts_of_one_matrix_may_lie_in_several_shards(matrices, lay):
    quantise = pack_quantized(torch.bfloat16)
    config = p.ct_config([(["Linear"], p.integers())], IGNORES["split"], "pack-quantized")
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    path, shards = lay(published), ({}, {}, {})
    for i, (name, t) in enumerate(sorted(published.parts.items())):
        shards[i % 3][name] = t
    weight_map = {}
    for i, parts in enumerate(shards):
        save_file(parts, path / f"model-{i}.safetensors")
        weight_map |= dict.fromkeys(parts, f"model-{i}.safetensors")
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check(load_target(path), published, matrices)


def test_nvfp4(matrices, lay):
    published = cases.nvfp4(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["nvfp4-pack-quantized"] == {"exact"}


def test_modelopt_nvfp4(matrices, lay):
    published = cases.modelopt(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["modelopt nvfp4"] == {"exact"}
    assert {name.rpartition(".")[2] for name in loaded.skipped} == {"input_scale"}


def test_awq(matrices, lay):
    published = cases.awq(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert "awq 4 bits g128" in kinds(loaded)
    assert all("stored plain" not in warning for warning in loaded.warnings)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sym", [True, False])
def test_gptq(version, sym, matrices, lay):
    published = cases.gptq(version, sym)(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert all("stored plain" not in warning for warning in loaded.warnings)


def test_gptq_in_bfloat16_keeps_its_codes(matrices, lay):
    quantise = p.gptq(2, True, dtype=torch.bfloat16)
    config = p.gptq_config(checkpoint_format="gptq_v2")
    published = p.publish(matrices, lambda n: quantise if p.body(n) else None, config)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["gptq 4 bits g128"] == {"repacked"}


def test_gptq_whose_groups_are_reordered_by_activation(matrices, lay):
    published = cases.gptq_reordered(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert "gptq 4 bits reordered" in kinds(loaded)


@pytest.mark.parametrize("packing", ["auto_round", "auto_round:auto_gptq", "auto_round:auto_awq"])
def test_autoround(packing, matrices, lay):
    published = cases.autoround(packing)(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)


def test_tokenrush(matrices, lay):
    published = cases.tokenrush(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["tokenrush int4 4 bits g128"] == {"repacked"}
    assert loaded.warnings == ()


@pytest.mark.parametrize("powers", [False, True], ids=["fp32", "ue8m0"])
def test_fp8_blocks(powers, matrices, lay):
    published = cases.fp8_blocks(powers)(matrices)
    loaded = load_target(lay(published))
    check(loaded, published, matrices)
    assert kinds(loaded)["fp8 blocks"] == {"exact"} and loaded.warnings == ()


def test_gguf(matrices, published_config, whole, tmp_path):
    types = {
        "embed_tokens.weight": Type.Q4_K,
        "lm_head.weight": Type.Q6_K,
        "down_proj.weight": Type.Q4_0,
        "out_proj.weight": Type.BF16,
        "in_proj_a.weight": Type.F32,
        "gate_proj.weight": Type.Q5_1,
        "q_proj.weight": Type.IQ4_XS,
        "k_proj.weight": Type.Q5_K,
    }
    restored = published_gguf.write(
        tmp_path / "model-Q4_K_M.gguf", matrices, published_config, types
    )
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((whole / name).read_text())
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"vision")
    loaded = load_target(tmp_path)
    published = p.Published({}, {}, restored)
    check(loaded, published, matrices)
    found = kinds(loaded)
    assert found["gguf BF16"] == {"exact"} and found["gguf Q8_0"] == {"rounded"}
    where = p.held(loaded, matrices)
    for short in ("layers.0.linear_attn.A_log", "layers.0.linear_attn.dt_bias", "mtp.norm.weight"):
        node, _ = where[short]
        assert torch.equal(node, p.by_short(matrices)[short]), short  # back to the publisher's bits


def test_gptq_awq_and_compressed_tensors_agree_on_every_zero_point(matrices, lay, tmp_path):
    """True zero points 0, 7, 8 and 15 of one matrix, by four layouts."""
    weight = matrices["model.layers.0.mlp.down_proj.weight"].clone().float()
    shift = torch.tensor([1.0, -1.0, 0.06, -0.06, 0.0]) * weight.abs().max()
    weight = (weight + shift.repeat(len(weight) // 5 + 1)[: len(weight), None]).bfloat16()
    zero = p.asymmetric(weight, 4, p.GROUP)[1]
    assert {0, 15} <= set(zero.unique().tolist())
    name = "model.layers.0.mlp.down_proj.weight"
    whole = {**matrices, name: weight}
    seen = []
    for i, (quantise, config) in enumerate(
        [
            (p.gptq(1, False), p.gptq_config(sym=False)),
            (p.gptq(2, False), p.gptq_config(sym=False, checkpoint_format="gptq_v2")),
            (p.awq, p.AWQ_CONFIG),
            (
                pack_quantized(torch.float16, symmetric=False),
                p.ct_config([(["Linear"], p.integers(symmetric=False))], [], "pack-quantized"),
            ),
        ]
    ):
        published = p.publish(whole, lambda n, q=quantise: q if n == name else None, config)
        path = lay(published)
        seen.append(load_target(path).params.layers[0].mlp.down.weight)
        path.rename(tmp_path / str(i))
    assert all(torch.equal(seen[0], other) for other in seen[1:])
