"""One published checkpoint for each format and oddity, from a plain one's file tensors."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments import published as p

Make = Callable[[Mapping[str, Tensor]], p.Published]
GATES = ["in_proj_a", "in_proj_b"]
PLAIN = ["re:.*linear_attn.in_proj_[ab]$", "re:.*lm_head", "re:mtp\\..*"]
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def pack_quantized(scales: torch.dtype, **weights: Any) -> p.Quantise:
    return p.compressed(p.integers(**weights), "pack-quantized", scales)


def body(matrices: Mapping[str, Tensor], quantise: p.Quantise, config: Mapping[str, Any]):
    """The layers' matrices quantised, all else as it is."""
    return p.publish(matrices, lambda n: quantise if p.body(n) else None, config)


def integers(scales: torch.dtype, **weights: Any) -> Make:
    """compressed-tensors, pack-quantized."""
    config = p.ct_config([(["Linear"], p.integers(**weights))], PLAIN, "pack-quantized")
    return lambda matrices: body(matrices, pack_quantized(scales, **weights), config)


def mixed_widths(matrices: Mapping[str, Tensor]) -> p.Published:
    """A body of 4 bits, a head by channels of 8, an embedding of 8 in groups of 128 and a head for
    drafts of 3 bits in groups of 32, as they are published side by side.
    """
    settings = {
        "lm_head": (["re:.*lm_head$"], p.integers(8, group=None)),
        "embed": (["re:.*embed_tokens$"], p.integers(8)),
        "mtp": (["re:^mtp\\..*"], p.integers(3, group=32)),
        "body": (["Linear"], p.integers()),
    }
    made = {
        name: p.compressed(weights, "pack-quantized", torch.bfloat16)
        for name, (_, weights) in settings.items()
    }

    def chosen(name: str) -> p.Quantise | None:
        part = next((n for n in ("lm_head", "embed", "mtp") if n in name), "body")
        return made[part] if part != "body" or p.body(name) else None

    ignore = [f"model.layers.0.linear_attn.{part}" for part in GATES] + PLAIN[:1]
    config = p.ct_config(list(settings.values()), ignore, "pack-quantized")
    return p.publish(matrices, chosen, config)


def float8(scales: torch.dtype) -> Make:
    """compressed-tensors, by tensor, channel and block."""
    block = {**FLOAT8, "strategy": "block", "block_structure": [128, 128]}
    settings = {
        "mlp": (["re:.*mlp.*"], block),
        "self_attn": (["re:.*self_attn.*"], {**FLOAT8, "strategy": "tensor"}),
        "linear_attn": (["Linear"], {**FLOAT8, "strategy": "channel"}),
    }

    def make(matrices: Mapping[str, Tensor]) -> p.Published:
        made = {n: p.compressed(w, "float-quantized", scales) for n, (_, w) in settings.items()}

        def chosen(name: str) -> p.Quantise | None:
            return next((q for n, q in made.items() if n in name), None) if p.body(name) else None

        config = p.ct_config(list(settings.values()), PLAIN, "float-quantized")
        return p.publish(matrices, chosen, config)

    return make


def int8(matrices: Mapping[str, Tensor]) -> p.Published:
    weights = p.integers(8, group=None)
    config = p.ct_config([(["Linear"], weights)], PLAIN, "int-quantized")
    return body(matrices, p.compressed(weights, "int-quantized", torch.bfloat16), config)


def nvfp4(matrices: Mapping[str, Tensor]) -> p.Published:
    quantise = p.compressed(NVFP4, "nvfp4-pack-quantized", torch.bfloat16)
    config = p.ct_config([(["Linear"], NVFP4)], PLAIN, "nvfp4-pack-quantized")
    return body(matrices, quantise, config)


def modelopt(matrices: Mapping[str, Tensor]) -> p.Published:
    made = body(matrices, p.modelopt, {})
    for name, t in made.parts.items():
        if name.endswith("weight_scale"):  # a sign that some writers leave set
            made.parts[name] = (t.view(torch.uint8) | 128).view(torch.float8_e4m3fn)
    own = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "mtp*"]}
    made.extra["hf_quant_config.json"] = json.dumps({"quantization": own})
    return made


def awq(matrices: Mapping[str, Tensor]) -> p.Published:
    config = {**p.AWQ_CONFIG, "modules_to_not_convert": [*GATES, "mtp"]}
    return body(matrices, p.awq, config)


def gptq(version: int, sym: bool) -> Make:
    layout = "gptq" if version == 1 else "gptq_v2"
    config = p.gptq_config(sym=sym, checkpoint_format=layout)
    config["dynamic"] = {"-:.*in_proj_[ab]$": {}, "-:mtp\\..*": {}}
    return lambda matrices: body(matrices, p.gptq(version, sym), config)


def gptq_reordered(matrices: Mapping[str, Tensor]) -> p.Published:
    """Groups by activation, so that neighbouring inputs belong to different ones."""
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
    config = p.gptq_config(sym=False, desc_act=True, checkpoint_format="gptq_v2")
    return body(matrices, p.gptq(2, False, order), config)


def autoround(packing: str) -> Make:
    version = 1 if packing.endswith("auto_gptq") else 2
    quantise = p.awq if packing.endswith("awq") else p.gptq(version, True)
    config = {"quant_method": "auto-round", "packing_format": packing, "bits": 4}
    config |= {"group_size": 128, "sym": not packing.endswith("awq"), "data_type": "int"}
    config["extra_config"] = {
        f"model.layers.0.linear_attn.{part}": {"bits": 16, "data_type": "fp"} for part in GATES
    }

    def make(matrices: Mapping[str, Tensor]) -> p.Published:
        made = body(matrices, quantise, config)
        for name in [n for n in made.parts if n.endswith("g_idx")]:
            del made.parts[name]
        return made

    return make


def tokenrush(matrices: Mapping[str, Tensor]) -> p.Published:
    """Its engine rounds in three ways; codes, scales and minimums are what counts."""
    listed = [n for n in matrices if p.body(n) or n == "lm_head.weight"]
    made = p.publish(matrices, lambda n: p.tokenrush if n in listed else None, {})
    made.parts = {n.removeprefix("model."): t for n, t in made.parts.items()}
    own = {"format": "int4", "group": 128, "quantized": listed, "method": "gptq", "shards": 1}
    made.extra["tokenrush.json"] = json.dumps(own)
    return made


def fp8_blocks(powers_of_two: bool) -> Make:
    config = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "modules_to_not_convert": [*GATES, "mtp"],
    }
    config |= {"scale_fmt": "ue8m0"} if powers_of_two else {}
    return lambda matrices: body(matrices, p.fp8_blocks(powers_of_two), config)


CASES: dict[str, Make] = {
    "ct_symmetric": integers(torch.bfloat16),
    "ct_fp16_scales": integers(torch.float16),
    "ct_asymmetric": integers(torch.bfloat16, symmetric=False),
    "ct_mixed_widths": mixed_widths,
    "ct_float8": float8(torch.bfloat16),
    "ct_int8": int8,
    "ct_nvfp4": nvfp4,
    "modelopt_nvfp4": modelopt,
    "fp8_blocks": fp8_blocks(False),
    "fp8_powers_of_two": fp8_blocks(True),
    "gptq_v1": gptq(1, True),
    "gptq_v1_asymmetric": gptq(1, False),
    "gptq_v2_reordered": gptq_reordered,
    "autoround": autoround("auto_round"),
    "awq": awq,
    "tokenrush": tokenrush,
}
