"""Matrices that change format as they arrive: the same values, one wide matrix at a time."""

import dataclasses
import weakref
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.small import same
from tests.model.small import CONFIG, random_mtp, random_params
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target
from tr.nn import gated_delta_net
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.quant import rtn

#: 64 value heads: their gates are as wide as matrices that become int4, and must not
SHAPE = {"d_ff": 256, "k_heads": 2, "v_heads": 64, "d_k": 16, "d_v": 16, "vocab": 192}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory) -> Path:
    config = dataclasses.replace(CONFIG, tie_embeddings=request.param, **SHAPE)
    path = tmp_path_factory.mktemp("streamed") / "model"
    params = random_params(torch.bfloat16, config)
    head = random_mtp(torch.bfloat16, config)
    save_target(path, config, params, head, (3,), max_shard_bytes=2**20)
    return path


def test_quantising_on_arrival_equals_quantising_after_loading(folder):
    whole, streamed = load_target(folder), load_target(folder, arrive=rtn.arrive)
    for a, b in ((whole.params, streamed.params), (whole.mtp, streamed.mtp)):
        assert b is not None
        assert same(rtn.quantise_all(a)[0], rtn.quantise_all(b)[0])
    layer = streamed.params.layers[0]
    assert isinstance(layer.mixer, gated_delta_net.Params)
    assert isinstance(layer.mlp.gate_up, Int4) and isinstance(layer.mixer.out, Int4)
    assert isinstance(layer.mixer.in_ba, Dense) and layer.mixer.in_ba.weight.shape[0] == 128


def test_one_matrix_is_wide_at_a_time(folder):
    seen: list[weakref.ref] = []

    def arrive(name, x):
        alive = [r for r in seen if r() is not None]
        assert not alive, f"{name} arrives while an earlier matrix is still held"
        made = rtn.arrive(name, x)
        if made is not x:
            seen.append(weakref.ref(x.weight))
        return made

    load_target(folder, arrive=arrive)
    assert len(seen) > 15


def test_the_inventory_is_as_strict(folder, tmp_path):
    broken = Path(copytree(folder, tmp_path / "broken"))
    first = sorted(broken.glob("model-*.safetensors"))[0]
    parts = load_file(first)
    name = next(iter(parts))
    parts[name] = parts[name][:-1].clone()
    save_file(parts, first)
    arrived = []
    with pytest.raises(ValueError, match="expected shape"):
        load_target(broken, arrive=lambda name, x: arrived.append(name) or x)
    assert not arrived
