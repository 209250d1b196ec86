"""Every spelling of one model that is in circulation loads to the same params."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.small import random_target, same
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target


def nested(config):
    """A vision-language config.json around a text one."""
    config = dict(config)
    tied = config.pop("tie_word_embeddings")
    del config["architectures"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": tied,
        "text_config": config,
        "vision_config": {"depth": 1},
    }


def bare(name):
    return name.removeprefix("model.")


def vision_language(name):
    if name.startswith(("lm_head", "mtp")):
        return name
    return f"model.language_model.{bare(name)}"


def head_inside(name):
    return name if name.startswith("mtp") else f"model.language_model.{bare(name)}"


def mtp_inside(name):
    return f"model.{name}" if name.startswith("mtp") else name


@pytest.mark.parametrize("rename", [bare, vision_language, head_inside, mtp_inside, str])
@pytest.mark.parametrize("wrap", [nested, dict], ids=["nested", "flat"])
def test_prefixes_and_config_forms(rename, wrap, stored, raw_config, target, write):
    path = write({rename(n): t for n, t in stored.items()}, wrap(raw_config))
    loaded = load_target(path)
    assert loaded.config == target.config
    assert same(loaded.params, target.params) and same(loaded.mtp, target.mtp)


def test_rotary_fields_may_be_flat(stored, raw_config, target, write):
    rope = raw_config.pop("rope_parameters")
    assert load_target(write(stored, {**raw_config, **rope})).config == target.config


def test_vision_tensors_are_skipped_by_name(stored, raw_config, target, write):
    vision = {"model.visual.patch_embed.proj.weight": torch.zeros(4, 3)}
    path = write({vision_language(n): t for n, t in stored.items()} | vision, nested(raw_config))
    loaded = load_target(path)
    assert loaded.skipped == tuple(vision) and same(loaded.params, target.params)


def test_the_mtp_head_is_skipped_where_unwanted_or_not_in_the_config(stored, raw_config, write):
    names = {n for n in stored if n.startswith("mtp.")}
    path = write(stored, raw_config)
    loaded = load_target(path, with_mtp=False)
    assert loaded.mtp is None and set(loaded.skipped) == names
    (path / "config.json").write_text(json.dumps({**raw_config, "mtp_num_hidden_layers": 0}))
    loaded = load_target(path)
    assert loaded.mtp is None and set(loaded.skipped) == names


def test_a_missing_mtp_head_is_left_out_with_a_warning(stored, raw_config, target, write):
    path = write({n: t for n, t in stored.items() if not n.startswith("mtp.")}, raw_config)
    loaded = load_target(path)
    assert loaded.mtp is None and same(loaded.params, target.params)
    (warning,) = loaded.warnings
    assert "has no mtp.* tensors" in warning and "draft=mtp is unavailable" in warning
    assert load_target(path, with_mtp=False).warnings == ()


def test_half_an_mtp_head_is_an_error(stored, raw_config, write):
    del stored["mtp.fc.weight"]
    path = write(stored, raw_config)
    with pytest.raises(ValueError, match=r"mtp\.fc\.weight \[64, 128\] is missing"):
        load_target(path)


def test_a_tied_head_that_is_declared_untied(stored, raw_config, write):
    del stored["lm_head.weight"]
    with pytest.raises(ValueError, match="lm_head.weight .* set tie_word_embeddings to true"):
        load_target(write(stored, raw_config))


def test_shards_that_no_index_lists_are_named(stored, raw_config, write):
    path = write(stored, raw_config)
    save_file({"x": torch.zeros(1)}, path / "model_extra_tensors.safetensors")
    (warning,) = load_target(path).warnings
    assert "model_extra_tensors.safetensors" in warning


def test_a_tied_head_may_be_in_the_file_if_it_equals_the_embedding(tmp_path, write):
    target = random_target(tied=True)
    save_target(tmp_path / "m", target.config, target.params, target.mtp, target.eos)
    parts = load_file(tmp_path / "m" / "model.safetensors")
    assert "lm_head.weight" not in parts
    embed = parts["model.embed_tokens.weight"]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    path = write({**parts, "lm_head.weight": embed.clone()}, config)
    loaded = load_target(path)
    assert loaded.params.lm_head is None and loaded.skipped == ()
    assert same(loaded.params, target.params)


def test_a_tied_head_that_differs_is_refused(stored, raw_config, write):
    path = write(stored, {**raw_config, "tie_word_embeddings": True})
    with pytest.raises(ValueError, match="lm_head.weight differs from model.embed_tokens.weight"):
        load_target(path)


def test_older_releases_keep_some_tensors_in_float32(stored, raw_config, target, write):
    wide = {
        n: t.float() if n.endswith(("A_log", "linear_attn.norm.weight")) else t
        for n, t in stored.items()
    }
    loaded = load_target(write(wide, raw_config))
    assert same(loaded.params, target.params)
    assert loaded.warnings == (
        "6 tensors are stored wider than bfloat16 and were rounded to it, "
        "model.layers.0.linear_attn.A_log among them",
    )


def test_eos_falls_back_to_config_json_with_a_warning(stored, raw_config, write):
    path = write(stored, {**raw_config, "eos_token_id": 7})
    assert load_target(path).eos == (3, 7)
    (path / "generation_config.json").unlink()
    loaded = load_target(path)
    assert loaded.eos == (7,) and "no generation_config.json" in loaded.warnings[0]


def test_config_survives_its_own_spelling(target):
    for tied in (False, True):
        config = dataclasses.replace(target.config, tie_embeddings=tied)
        assert type(config).from_hf(config.to_hf()) == config
        assert type(config).from_hf(nested(config.to_hf())) == config
