"""Random models of transformers' Qwen3_5 classes, saved in the layouts that are in circulation."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


def random_model(dtype: torch.dtype, seed: int = 0, **shape: Any) -> Qwen3_5ForCausalLM:
    """Weights are drawn anew: the usual initialisation leaves norms and gains without effect."""
    sections = shape["head_dim"] // 8  # a quarter of the head turns, in pairs
    config = Qwen3_5TextConfig(
        **shape,
        max_position_embeddings=512,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [sections - 2 * (sections // 3), sections // 3, sections // 3],
            "mrope_interleaved": True,
        },
        eos_token_id=0,
    )
    g = torch.Generator().manual_seed(seed)
    model = Qwen3_5ForCausalLM(config)
    for name, p in model.named_parameters():
        fan_in = p.shape[-1]
        if name.endswith("A_log"):
            p.data.uniform_(-2, 2, generator=g)
        elif p.ndim > 1:
            p.data.normal_(0, fan_in**-0.5, generator=g)
        else:
            p.data.add_(0.2 * torch.randn(p.shape, generator=g))
    return model.to(dtype)


def save(model: Qwen3_5ForCausalLM, folder: Path, **options: Any) -> Qwen3_5ForCausalLM:
    """Save by transformers, and load again: that keeps its rotary frequencies in float32."""
    model.save_pretrained(folder, **options)
    return Qwen3_5ForCausalLM.from_pretrained(folder, dtype=model.dtype).eval()


def release_layout(source: Path, folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A text model's folder rewritten as the vision-language releases are; returns its mtp tensors.

    An MTP head with random weights and one vision tensor join it.
    """
    parts = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    g = torch.Generator().manual_seed(1)

    def like(t: torch.Tensor) -> torch.Tensor:
        scale = t.shape[-1] ** -0.5 if t.ndim > 1 else 0.2
        return (scale * torch.randn(t.shape, generator=g)).to(dtype)

    last, d = f"model.layers.{config['num_hidden_layers'] - 1}.", config["hidden_size"]
    mtp = {
        n.replace(last, "mtp.layers.0."): like(t) for n, t in parts.items() if n.startswith(last)
    }
    mtp["mtp.fc.weight"] = like(torch.empty(d, 2 * d))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        mtp[f"mtp.{name}.weight"] = like(torch.empty(d))
    text = {
        n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: t
        for n, t in parts.items()
    }
    vision = {"model.visual.pos_embed.weight": torch.zeros(16, 32, dtype=dtype)}
    folder.mkdir()
    save_file({**text, **mtp, **vision}, folder / "model.safetensors", metadata={"format": "pt"})
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": str(dtype).removeprefix("torch."),
        "tie_word_embeddings": config["tie_word_embeddings"],
        "text_config": {**config, "mtp_num_hidden_layers": 1},
        "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 32},
    }
    (folder / "config.json").write_text(json.dumps(outer))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0]}')
    return mtp
