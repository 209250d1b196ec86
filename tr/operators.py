"""Which operators a run takes: the sizes its model calls them with, and the variants that can."""

from kernels.define import FLOAT8, Target
from kernels.registry import Ops, Sizes, fallbacks, select
from tr.config import Run
from tr.model.config import ModelConfig
from tr.model.text import cache_rows
from tr.roofline import head_matrices, int4_columns

INT4 = ("int4_matmul", "int4_matmul_beside", "int4_add_norm", "int4_gate_up")


def sizes(shape: ModelConfig, quant: str, kv: str, capacity: int) -> Sizes:
    """What each operator is called with, by the names that `Support` knows."""
    found = {**shape.matrices, **head_matrices(shape)}
    float8 = int(kv == "fp8")
    widths = [{"d": shape.d_model}]
    head = {"d_head": shape.d_head, "rotary": shape.rotary_dim, "float8": float8}
    delta = {"channels": shape.delta.channels, "inner": shape.v_heads * shape.d_v}
    packed = [
        {"n": n, "k": k}
        for name, (_, n, k) in found.items()
        if quant == "int4_g128" and int4_columns(name, n, k)
    ]
    return {
        **dict.fromkeys(INT4, packed),
        "rms_norm": widths,
        "add_rms_norm": widths,
        "unfold_norm": widths,
        "silu_mul": [{"d_ff": shape.d_ff}],
        "gated_delta_step": [{**delta, "d_k": shape.d_k, "d_v": shape.d_v}],
        "qk_rope_store": [head],
        "attention_decode": [{**head, "capacity": cache_rows(capacity)}],
    }


def operators(
    config: Run, shape: ModelConfig, capacity: int, target: Target
) -> tuple[Ops, tuple[str, ...]]:
    """The operators that `config` picks for a model of `shape` on `target`, and warnings.

    Raises ValueError by name where a variant or the card cannot do what is asked for.
    """
    choice, overrides = config.kernel.variant, config.kernel.overrides()
    if config.kv.format == "fp8" and target.type == "cuda" and target.capability < FLOAT8:
        if overrides.get("attention_decode", choice) == "auto":
            raise ValueError(
                f"kv=fp8 needs compute capability {FLOAT8[0]}.{FLOAT8[1]}, this is {target}; use"
                " kv=bf16, or kernel.attention_decode=tile, which converts in software"
            )
    asked = sizes(shape, config.quant.format, config.kv.format, capacity)
    return (
        select(choice, overrides, target, asked),
        fallbacks(choice, overrides, target, asked),
    )
