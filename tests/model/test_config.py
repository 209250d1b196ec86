"""Shapes read from config.json, and the released 27B model's sizes as a check on all of them."""

import dataclasses
import math

import pytest
import torch

from tests.model.small import CONFIG
from tr.checkpoint.load import skeleton
from tr.checkpoint.names import target_table
from tr.model import mtp, text
from tr.model.config import FULL, LINEAR, ModelConfig
from tr.tree import tensors

RELEASE = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "output_gate_type": "swish",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
        },
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
    },
}


def release(**changes):
    return {**RELEASE, "text_config": {**RELEASE["text_config"], **changes}}


def count(params) -> int:
    return sum(math.prod(t.shape) for k, t in tensors(params).items() if "rope" not in k)


def test_the_release_has_its_published_size_and_tensor_count():
    config = ModelConfig.from_hf(RELEASE)
    assert [i for i, kind in enumerate(config.layer_types) if kind == FULL] == list(range(3, 64, 4))
    assert config.rotary_dim == 64
    params = skeleton(lambda g: text.init(config, g, torch.bfloat16))
    assert count(params) == 24_353_201_664 + 2 * 1_271_398_400
    assert count(skeleton(lambda g: mtp.init(config, g, torch.bfloat16))) == 424_699_392
    names = [n for s in target_table(config, True).sources.values() for n in s.names]
    assert len(names) == len(set(names)) == 851 + 15
    names = [n for s in target_table(config, False).sources.values() for n in s.names]
    assert len(names) == 851


def test_layer_types_go_before_the_interval():
    types = [LINEAR, FULL]
    config = ModelConfig.from_hf(release(num_hidden_layers=2, layer_types=types))
    assert config.layer_types == (LINEAR, FULL)


def test_what_is_written_is_read_back():
    for config in (CONFIG, dataclasses.replace(CONFIG, tie_embeddings=True, mtp_layers=0)):
        assert ModelConfig.from_hf(config.to_hf()) == config


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"model_type": "qwen3_next"}, "model_type"),
        ({"num_key_value_heads": 5}, "heads / kv_heads must divide evenly, got 24 / 5"),
        ({"linear_num_key_heads": 9}, "v_heads / k_heads"),
        ({"layer_types": [FULL]}, "expected 64 entries"),
        ({"num_hidden_layers": 1, "layer_types": ["mamba"]}, "got 'mamba'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "yarn"),
        ({"rope_parameters": {}}, "rope_theta is missing"),
        ({"output_gate_type": "sigmoid"}, "sigmoid"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"attention_bias": True}, "attention_bias"),
        ({"head_dim": None}, "head_dim is missing"),
    ],
)
def test_configs_that_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        ModelConfig.from_hf(release(**changes))
