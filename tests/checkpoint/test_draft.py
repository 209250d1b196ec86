"""A draft's files through the same loader, by a table of names and a skeleton without memory."""

import dataclasses
import json

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.small import same
from tr.checkpoint.load import load_into, skeleton
from tr.checkpoint.names import dflash2_table
from tr.checkpoint.save import save_from
from tr.drafts import dflash2_net as net
from tr.tree import tensors

CONFIG = net.Config(
    d_model=64,
    d_ff=96,
    layers=2,
    heads=4,
    kv_heads=2,
    d_head=16,
    vocab=80,
    block=8,
    mask_token=70,
    taps=(1, 3, 5),
    window=32,
    conv_width=2,
    conv_group=16,
    selector_rank=8,
    selector_top=4,
    eps=1e-6,
    rope_theta=1e7,
    max_positions=64,
)


def test_dflash2_roundtrip_and_published_names(tmp_path):
    params = net.init(CONFIG, torch.Generator().manual_seed(0), torch.bfloat16)
    table = dflash2_table(CONFIG.layers)
    save_from(tmp_path / "d", params, table, CONFIG.to_hf(8))
    assert net.Config.from_hf(json.loads((tmp_path / "d" / "config.json").read_text())) == CONFIG
    parts = load_file(tmp_path / "d" / "model.safetensors")
    shapes = {name: list(t.shape) for name, t in parts.items()}
    assert len(shapes) == 6 + 15 * CONFIG.layers
    assert shapes["fc.weight"] == [64, 192]
    assert shapes["layers.1.self_attn.k_proj.weight"] == [32, 64]
    assert shapes["layers.0.attention_conv.base_kernel"] == [2, 2, 64]
    assert shapes["layers.0.mlp_conv.kernel_projection.weight"] == [16, 64]
    assert shapes["candidate_selector.hidden_projection.weight"] == [8, 64]
    assert shapes["candidate_selector.predecessor_codebook"] == [80, 8]

    empty = skeleton(lambda g: net.init(CONFIG, g, torch.bfloat16))
    assert tensors(empty)["fc.weight"].is_meta
    empty = dataclasses.replace(empty, rope=params.rope)
    assert same(load_into(tmp_path / "d", empty, table)[0], params)

    renamed = {f"{n}.weight" if n.endswith("_codebook") else n: t for n, t in parts.items()}
    save_file(renamed, tmp_path / "d" / "model.safetensors")
    assert same(load_into(tmp_path / "d", empty, table)[0], params)
