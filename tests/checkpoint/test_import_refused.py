"""The malformed twin of each published checkpoint: refused by the name of the tensor."""

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.checkpoint import gguf_file
from tests.checkpoint import publish as p
from tests.checkpoint.test_imports import pack_quantized
from tr.checkpoint.load import load_target

DOWN = "model.layers.0.mlp.down_proj"


def one(matrices: dict[str, Tensor], quantise: p.Quantise, quantization: dict) -> p.Published:
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
        ["g_idx names groups outside 0 .. 2"],
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


@pytest.mark.parametrize("twin", list(TWINS))
def test_a_malformed_twin_is_refused_by_name(twin, matrices, lay):
    sound, change, words = TWINS[twin]
    published = one(matrices, *make(sound))
    change(published)
    path = lay(published)
    with pytest.raises(ValueError) as caught:
        load_target(path)
    for word in [DOWN if "version gemv" not in words[0] else "AWQ", *words]:
        assert word in str(caught.value), str(caught.value)


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
    gguf_file.write(path, few, published_config, {})
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
