"""The malformed twins of published checkpoints, and what each is refused with.

One matrix is quantised in each, so that the name in the complaint is known.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments import published as p
from experiments.published_cases import pack_quantized

DOWN = "model.layers.0.mlp.down_proj"


def one(
    matrices: Mapping[str, Tensor], quantise: p.Quantise, quantization: Mapping[str, Any]
) -> p.Published:
    """The model with one matrix quantised."""
    chosen = {f"{DOWN}.weight": quantise}
    return p.publish(matrices, chosen.get, quantization)


def integers(**weights) -> dict:
    return p.ct_config([(["Linear"], p.integers(**weights))], ["lm_head"], "pack-quantized")


CT, CT_ASYM = integers(), integers(symmetric=False)
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
NVFP4_CONFIG = p.ct_config([(["Linear"], NVFP4)], [], "nvfp4-pack-quantized")
ORDER = torch.arange(1024).flip(0)


def make(name: str) -> tuple[p.Quantise, dict]:
    """A sound one of each format."""
    return {
        "ct": lambda: (pack_quantized(torch.bfloat16), CT),
        "ct asym": lambda: (pack_quantized(torch.bfloat16, symmetric=False), CT_ASYM),
        "gptq": lambda: (p.gptq(1, True), p.gptq_config()),
        "gptq asym": lambda: (p.gptq(1, False), p.gptq_config(sym=False)),
        "gptq v2": lambda: (p.gptq(2, True), p.gptq_config(checkpoint_format="gptq_v2")),
        "gptq v2 asym": lambda: (
            p.gptq(2, False),
            p.gptq_config(sym=False, checkpoint_format="gptq_v2"),
        ),
        "awq": lambda: (p.awq, dict(p.AWQ_CONFIG)),
        "fp8": lambda: (p.fp8_blocks(False), dict(FP8)),
        "nvfp4": lambda: (
            p.compressed(NVFP4, "nvfp4-pack-quantized", torch.bfloat16),
            NVFP4_CONFIG,
        ),
        "modelopt": lambda: (p.modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        "tokenrush": lambda: (p.tokenrush, {"quant_method": "tokenrush", "group": 128}),
    }[name]()


def drop(part: str) -> Callable[[p.Published], None]:
    def change(published: p.Published) -> None:
        del published.parts[f"{DOWN}.{part}"]

    return change


def edit(part: str, by: Callable[[Tensor], Tensor]) -> Callable[[p.Published], None]:
    def change(published: p.Published) -> None:
        name = f"{DOWN}.{part}"
        published.parts[name] = by(published.parts[name]).contiguous()

    return change


def declare(**changes) -> Callable[[p.Published], None]:
    def change(published: p.Published) -> None:
        published.quantization |= changes

    return change


def declare_weights(**changes) -> Callable[[p.Published], None]:
    def change(published: p.Published) -> None:
        own = json.loads(json.dumps(published.quantization))
        own["config_groups"]["group_0"]["weights"] |= changes
        published.quantization = own

    return change


def not_a_number(t: Tensor) -> Tensor:
    out = t.clone()
    out.view(-1)[3] = float("nan")
    return out


def half(t: Tensor) -> Tensor:
    return t[: len(t) // 2]


def narrow(t: Tensor) -> Tensor:
    return t[:, : t.shape[1] // 2]


#: by name: the sound one it comes from, what is changed, words of the complaint
TWINS = {
    "ct: no scale": ("ct", drop("weight_scale"), ["weight_scale is missing"]),
    "ct: no codes": ("ct", drop("weight_packed"), ["no known format", "weight_scale"]),
    "ct: half the codes": ("ct", edit("weight_packed", half), ["expected shape", "weight_packed"]),
    "ct: another group": ("ct", declare_weights(group_size=64), ["groups of 64", "means 128"]),
    "ct: other bits": ("ct", declare_weights(num_bits=8), ["weight_packed", "expected shape"]),
    "ct: a scale that is no number": (
        "ct",
        edit("weight_scale", not_a_number),
        ["missing numbers"],
    ),
    "ct: another shape": ("ct", edit("weight_shape", lambda t: t + 1), ["weight_shape"]),
    "ct: symmetric with zero points": (
        "ct asym",
        declare_weights(symmetric=True),
        ["weight_zero_point", "declares symmetric"],
    ),
    "ct: asymmetric without them": (
        "ct",
        declare_weights(symmetric=False),
        ["weight_zero_point is missing"],
    ),
    "ct: zero points one off": (
        "ct asym",
        edit("weight_zero_point", lambda t: t - 0x11111111),
        ["steps from their zero points"],
    ),
    "ct: reordered without an index": (
        "ct",
        declare_weights(actorder="group"),
        ["weight_g_idx is missing"],
    ),
    "gptq: read as the second version": (
        "gptq",
        declare(checkpoint_format="gptq_v2"),
        ["qzeros", "they follow gptq:"],
    ),
    "gptq: read as the first version": (
        "gptq v2",
        declare(checkpoint_format="gptq"),
        ["qzeros", "they follow gptq_v2"],
    ),
    "gptq: asymmetric, as the second": (
        "gptq asym",
        declare(checkpoint_format="gptq_v2"),
        ["steps from their zero points", "checkpoint_format"],
    ),
    "gptq: asymmetric, as the first": (
        "gptq v2 asym",
        declare(checkpoint_format="gptq"),
        ["steps from their zero points"],
    ),
    "gptq: asymmetric called symmetric": ("gptq asym", declare(sym=True), ["qzeros", "range"]),
    "gptq: reordered without an index": (
        "gptq",
        lambda q: (declare(desc_act=True)(q), drop("g_idx")(q)),
        ["g_idx is missing", "desc_act"],
    ),
    "gptq: an index past the groups": (
        "gptq",
        edit("g_idx", lambda t: t + 2),
        ["g_idx names groups outside 0 .. "],
    ),
    "gptq: another group": ("gptq", declare(group_size=64), ["groups of 64"]),
    "gptq: 3 bits": ("gptq", declare(bits=3), ["3 bits are not read"]),
    "gptq: read as AWQ": ("gptq", declare(quant_method="awq"), ["unknown", "g_idx"]),
    "gptq: no method": (
        "gptq",
        lambda q: q.quantization.clear(),
        ["no quantization_config says how"],
    ),
    "awq: read as GPTQ": ("awq", declare(quant_method="gptq", sym=False), ["qweight", "expected"]),
    "awq: another group": ("awq", declare(group_size=32), ["qzeros", "groups of 32"]),
    "awq: another layout": ("awq", declare(version="gemv"), ["AWQ version gemv"]),
    "awq: zero points one off": (
        "awq",
        edit("qzeros", lambda t: t - 0x11111111),
        ["steps from their zero points"],
    ),
    "awq: no zero points": ("awq", drop("qzeros"), ["qzeros", "is missing"]),
    "fp8: another block": (
        "fp8",
        declare(weight_block_size=[64, 64]),
        ["weight_scale_inv", "expected shape", "weight_block_size [64, 64]"],
    ),
    "fp8: no scale": ("fp8", drop("weight_scale_inv"), ["found F8_E4M3", "scales beside"]),
    "fp8: a weight that is no number": (
        "fp8",
        edit("weight", lambda t: (t.view(torch.uint8) | 127).view(torch.float8_e4m3fn)),
        ["weight holds infinite or missing numbers"],
    ),
    "fp8: a scale that is no number": (
        "fp8",
        edit("weight_scale_inv", not_a_number),
        ["weight_scale_inv", "missing numbers"],
    ),
    "nvfp4: no global scale": ("nvfp4", drop("weight_global_scale"), ["no known format"]),
    "nvfp4: a global scale of 0": (
        "nvfp4",
        edit("weight_global_scale", torch.zeros_like),
        ["weight_global_scale", "positive"],
    ),
    "nvfp4: half the scales": ("nvfp4", edit("weight_scale", narrow), ["expected shape"]),
    "modelopt: no second scale": ("modelopt", drop("weight_scale_2"), ["no known format"]),
    "tokenrush: another group": ("tokenrush", declare(group=64), ["weight.scale", "groups of 64"]),
    "tokenrush: no minimum": ("tokenrush", drop("weight.mn"), ["weight.mn", "is missing"]),
}


def complaint_misses(twin: str, complaint: str) -> list[str]:
    """Words a twin's complaint should have, its matrix's name among them, and lacks."""
    words = TWINS[twin][2]
    named = "AWQ" if "version gemv" in words[0] else DOWN
    return [word for word in [named, *words] if word not in complaint]
