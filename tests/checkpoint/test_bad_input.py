"""Damaged, incomplete and foreign checkpoints: an error that names the thing and the remedy."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tr.checkpoint.files import INDEX, SINGLE
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target


@pytest.fixture
def sharded(target, tmp_path):
    path = tmp_path / "sharded"
    save_target(path, target.config, target.params, target.mtp, target.eos, max_shard_bytes=60_000)
    return path


def shard(path, i=1):
    return sorted(path.glob("*.safetensors"))[i]


def edit_index(path, change):
    index = json.loads((path / INDEX).read_text())
    change(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def fails(path, kind, *parts):
    with pytest.raises(kind) as caught:
        load_target(path)
    for part in parts:
        assert str(part) in str(caught.value), str(caught.value)


def test_no_such_folder(tmp_path):
    fails(tmp_path / "none", FileNotFoundError, tmp_path / "none", "not a folder")


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    fails(tmp_path, FileNotFoundError, "neither", SINGLE, "it holds config.json")


def test_a_folder_without_config(stored, raw_config, write):
    path = write(stored, raw_config)
    (path / "config.json").unlink()
    fails(path, FileNotFoundError, "config.json is missing")


def test_missing_shard(sharded):
    name = shard(sharded).name
    shard(sharded).unlink()
    fails(sharded, FileNotFoundError, name, "missing", "download it again")


@pytest.mark.parametrize("kept", [0, 5, 200, -1, -1000])
def test_truncated_shard(sharded, kept):
    file = shard(sharded)
    data = file.read_bytes()
    file.write_bytes(data[:kept])
    fails(sharded, ValueError, file.name, "truncated", "download it again")


def test_a_git_lfs_pointer(sharded):
    shard(sharded).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    fails(sharded, ValueError, shard(sharded).name, "Git LFS pointer", "git lfs pull")


def test_an_index_that_lists_a_tensor_its_shard_lacks(sharded):
    name = next(iter(load_file(shard(sharded))))
    edit_index(sharded, lambda m: m.update({name: shard(sharded, 0).name}))
    fails(sharded, ValueError, name, f"not in {shard(sharded, 0).name}", shard(sharded).name)
    edit_index(sharded, lambda m: m.update({name: shard(sharded).name, "ghost": m[name]}))
    fails(sharded, ValueError, "ghost", INDEX)


def test_an_index_that_leaves_a_tensor_out(sharded):
    name = next(iter(load_file(shard(sharded))))
    edit_index(sharded, lambda m: m.pop(name))
    fails(sharded, ValueError, name, "not listed")


def test_one_tensor_in_two_shards(sharded):
    parts = load_file(shard(sharded, 0))
    name = next(iter(parts))
    other = shard(sharded, 1)
    save_file({**load_file(other), name: parts[name]}, other)
    fails(sharded, ValueError, name, "two files", other.name)


@pytest.mark.parametrize("away", ["../x.safetensors", "/etc/x", "a/b.safetensors", "", "..", 3])
def test_an_index_that_points_outside(sharded, away):
    edit_index(sharded, lambda m: m.update({next(iter(m)): away}))
    fails(sharded, ValueError, "outside the folder", repr(away))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}', "\udcff"])
def test_a_damaged_index(sharded, content):
    (sharded / INDEX).write_bytes(content.encode("utf-8", "surrogateescape"))
    fails(sharded, ValueError, INDEX)


def test_a_stale_single_file_beside_an_index(sharded, stored):
    save_file(stored, sharded / SINGLE)
    fails(sharded, ValueError, SINGLE, "stale")


def test_wrong_shape(stored, raw_config, write):
    name = "model.layers.3.self_attn.k_proj.weight"
    path = write({**stored, name: torch.zeros(32, 64)}, raw_config)
    fails(path, ValueError, f"{name}: expected shape [64, 64], found [32, 64] in {SINGLE}")


def test_a_transposed_convolution(stored, raw_config, write):
    name = "model.layers.0.linear_attn.conv1d.weight"
    path = write({**stored, name: stored[name][:, 0].contiguous()}, raw_config)
    fails(path, ValueError, name, "expected shape [160, 1, 4], found [160, 4]")


def test_unknown_and_missing_tensors_are_all_named(stored, raw_config, write):
    del stored["model.norm.weight"]
    path = write({**stored, "model.layers.0.extra.weight": torch.zeros(2, 3)}, raw_config)
    fails(
        path,
        ValueError,
        "model.norm.weight [64] is missing (for text.norm)",
        f"model.layers.0.extra.weight [2, 3] F32 in {SINGLE} is unknown",
        "config.json that belongs to these weights",
    )


def test_a_layer_too_many_is_unknown_and_the_list_is_cut(stored, raw_config, write):
    config = {**raw_config, "num_hidden_layers": 3, "layer_types": raw_config["layer_types"][:3]}
    fails(write(stored, config), ValueError, "model.layers.3.", "and 3 more")


def test_one_tensor_under_two_names(stored, raw_config, write):
    copy = {"model.language_model.norm.weight": stored["model.norm.weight"].clone()}
    fails(write(stored | copy, raw_config), ValueError, "model.norm.weight", "same tensor")


def test_integer_weights(stored, raw_config, write):
    name = "model.layers.0.mlp.down_proj.weight"
    path = write({**stored, name: stored[name].to(torch.int8)}, raw_config)
    fails(path, ValueError, name, "found I8", "quantized")


def test_an_unknown_quantization(stored, raw_config, write):
    config = {**raw_config, "quantization_config": {"quant_method": "aqlm"}}
    fails(write(stored, config), ValueError, "quant_method aqlm is not read", "known: ", "gptq")


def test_configs_that_are_not_this_model(stored, raw_config, write):
    path = write(stored, raw_config)
    for change, part in [
        ({"model_type": "llama"}, "model_type"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"dtype": "float8"}, "float8"),
        ({"dtype": None}, "declares no dtype"),
        ({"mtp_num_hidden_layers": 2}, "expected 0 or 1, got 2"),
        ({"num_key_value_heads": 0}, "kv_heads"),
        ({"hidden_size": 128}, "expected shape [80, 128], found [80, 64]"),
    ]:
        (path / "config.json").write_text(json.dumps({**raw_config, **change}))
        fails(path, ValueError, part)


@pytest.mark.parametrize("eos", [None, "x", [], [-1], [3.0], [True], {"a": 1}])
def test_bad_eos(stored, raw_config, write, eos):
    path = write(stored, raw_config)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    fails(path, ValueError, "generation_config.json", "eos_token_id")


def test_eos_past_the_vocabulary(stored, raw_config, write):
    path = write(stored, raw_config)
    (path / "generation_config.json").write_text('{"eos_token_id": [3, 80]}')
    fails(path, ValueError, "eos ids [80] exceed")
