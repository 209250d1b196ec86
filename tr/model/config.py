"""The model's shape: read from and written to a checkpoint's `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tr.nn import attention, gated_delta_net

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class ModelConfig:
    """Widths and counts of one hybrid model; `vocab` counts matrix rows, padding rows included."""

    vocab: int
    d_model: int
    d_ff: int
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    d_head: int
    rotary_dim: int
    rope_theta: float
    k_heads: int
    v_heads: int
    d_k: int
    d_v: int
    conv_width: int
    eps: float
    tie_embeddings: bool
    max_positions: int
    mtp_layers: int

    def __post_init__(self) -> None:
        for name, whole, part in (
            ("heads / kv_heads", self.heads, self.kv_heads),
            ("v_heads / k_heads", self.v_heads, self.k_heads),
            ("rotary_dim / 2", self.rotary_dim, 2),
        ):
            if part < 1 or whole % part:
                raise ValueError(f"model config: {name} must divide evenly, got {whole} / {part}")
        for kind in self.layer_types:
            if kind not in (LINEAR, FULL):
                raise ValueError(
                    f"model config: layer type must be {LINEAR} or {FULL}, got {kind!r}"
                )

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def attention(self) -> attention.Spec:
        return attention.Spec(self.heads, self.kv_heads, self.d_head, self.eps)

    @property
    def delta(self) -> gated_delta_net.Spec:
        return gated_delta_net.Spec(
            self.k_heads, self.v_heads, self.d_k, self.d_v, self.conv_width, self.eps
        )

    @property
    def matrices(self) -> dict[str, tuple[int, int, int]]:
        """Large matrices of the text path, stacked as they are read: name -> (count, rows,
        columns)."""
        linear, full = self.layer_types.count(LINEAR), self.layer_types.count(FULL)
        value, key = self.v_heads * self.d_v, self.k_heads * self.d_k
        inner, kv = self.heads * self.d_head, self.kv_heads * self.d_head
        return {
            "delta in_qkvz": (linear, 2 * key + 2 * value, self.d_model),
            "delta out": (linear, self.d_model, value),
            "attention qkv": (full, 2 * inner + 2 * kv, self.d_model),
            "attention out": (full, self.d_model, inner),
            "mlp gate_up": (self.layers, 2 * self.d_ff, self.d_model),
            "mlp down": (self.layers, self.d_model, self.d_ff),
            "lm_head": (1, self.vocab, self.d_model),
        }

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Parse a `config.json`: a vision-language one (`text_config`) or a text one.

        Rotary fields may sit in `rope_parameters`, in the older `rope_scaling`, or flat beside the
        others. Raises ValueError naming a missing field or an unsupported value.
        """
        text = dict(config.get("text_config") or config)
        kind = text.get("model_type", "qwen3_5_text")
        if kind not in ("qwen3_5", "qwen3_5_text"):
            raise ValueError(f"model_type: expected qwen3_5 or qwen3_5_text, got {kind!r}")
        rope = {**text, **(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
        rope_type = rope.get("rope_type", "default")
        if rope_type != "default":
            raise ValueError(f"rope_type: only default is supported, got {rope_type!r}")
        gate = text.get("output_gate_type", "swish")
        if gate not in ("swish", "silu"):
            raise ValueError(f"output_gate_type: expected swish or silu, got {gate!r}")
        if text.get("attention_bias", False) or not text.get("attn_output_gate", True):
            raise ValueError("attention_bias=true and attn_output_gate=false are not supported")

        def need(source: Mapping[str, Any], key: str) -> Any:
            if source.get(key) is None:
                raise ValueError(f"config.json: {key} is missing; take the checkpoint's own file")
            return source[key]

        n, d_head = need(text, "num_hidden_layers"), need(text, "head_dim")
        interval = text.get("full_attention_interval", 4)
        types = text.get("layer_types") or [
            FULL if (i + 1) % interval == 0 else LINEAR for i in range(n)
        ]
        if len(types) != n:
            raise ValueError(
                f"layer_types: expected {n} entries (num_hidden_layers), got {len(types)}"
            )
        tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        return cls(
            vocab=need(text, "vocab_size"),
            d_model=need(text, "hidden_size"),
            d_ff=need(text, "intermediate_size"),
            layer_types=tuple(types),
            heads=need(text, "num_attention_heads"),
            kv_heads=need(text, "num_key_value_heads"),
            d_head=d_head,
            rotary_dim=int(d_head * rope.get("partial_rotary_factor", 1.0)),
            rope_theta=float(need(rope, "rope_theta")),
            k_heads=need(text, "linear_num_key_heads"),
            v_heads=need(text, "linear_num_value_heads"),
            d_k=need(text, "linear_key_head_dim"),
            d_v=need(text, "linear_value_head_dim"),
            conv_width=need(text, "linear_conv_kernel_dim"),
            eps=float(text.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(tied),
            max_positions=need(text, "max_position_embeddings"),
            mtp_layers=int(text.get("mtp_num_hidden_layers") or 0),
        )

    def to_hf(self) -> dict[str, Any]:
        """A text-only `config.json` that `from_hf` and transformers' Qwen3_5 classes read."""
        sections = [self.rotary_dim // 2 - 2 * (self.rotary_dim // 6), *[self.rotary_dim // 6] * 2]
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "vocab_size": self.vocab,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "hidden_act": "silu",
            "num_hidden_layers": self.layers,
            "layer_types": list(self.layer_types),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.d_head,
            "attention_bias": False,
            "attn_output_gate": True,
            "linear_num_key_heads": self.k_heads,
            "linear_num_value_heads": self.v_heads,
            "linear_key_head_dim": self.d_k,
            "linear_value_head_dim": self.d_v,
            "linear_conv_kernel_dim": self.conv_width,
            "mamba_ssm_dtype": "float32",
            "output_gate_type": "swish",
            "rms_norm_eps": self.eps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_dim / self.d_head,
                "mrope_interleaved": True,
                "mrope_section": sections,
            },
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": self.tie_embeddings,
            "mtp_num_hidden_layers": self.mtp_layers,
            "mtp_use_dedicated_embeddings": False,
        }
