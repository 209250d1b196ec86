"""The malformed twin of each published checkpoint: refused by the name of the tensor."""

import pytest
import torch

from experiments import published_gguf
from experiments.published_twins import DOWN, TWINS, complaint_misses, make, one
from tr.checkpoint.load import load_target


@pytest.mark.parametrize("twin", list(TWINS))
def test_a_malformed_twin_is_refused_by_name(twin, matrices, lay):
    sound, change, _ = TWINS[twin]
    published = one(matrices, *make(sound))
    change(published)
    path = lay(published)
    with pytest.raises(ValueError) as caught:
        load_target(path)
    assert not complaint_misses(twin, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("sound", ["ct", "ct asym", "gptq", "awq", "fp8", "nvfp4", "tokenrush"])
def test_the_sound_ones_load(sound, matrices, lay):
    load_target(lay(one(matrices, *make(sound))))


def test_what_follows_a_name_and_is_unknown(matrices, lay):
    published = one(matrices, *make("gptq"))
    published.parts[f"{DOWN}.bias"] = torch.zeros(256)
    with pytest.raises(ValueError, match=f"{DOWN}.bias .* is unknown: no tensor"):
        load_target(lay(published))


def test_unknown_methods(matrices, lay):
    published = one(matrices, *make("ct"))
    published.quantization = {"quant_method": "bitsandbytes"}
    with pytest.raises(ValueError, match="quant_method bitsandbytes is not read; known: "):
        load_target(lay(published))


def test_damaged_gguf_files(matrices, published_config, whole, tmp_path):
    path = tmp_path / "model.gguf"
    few = {n: t for n, t in matrices.items() if "layers.0" in n}
    published_gguf.write(path, few, published_config, {})
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((whole / name).read_text())
    with pytest.raises(ValueError, match="model.norm.weight .* is missing"):
        load_target(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-1000])
    with pytest.raises(ValueError, match="model.gguf is truncated or damaged"):
        load_target(tmp_path)
    path.write_bytes(data.replace(b"qwen35", b"llama4"))
    with pytest.raises(ValueError, match="architecture llama4; expected qwen35"):
        load_target(tmp_path)
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(ValueError, match="2 GGUF models"):
        load_target(tmp_path)
