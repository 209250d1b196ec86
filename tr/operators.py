"""Which operators a run takes: the sizes its model calls them with, and the variants that can."""

from collections.abc import Iterable

import torch

from kernels.define import FLOAT8, Target
from kernels.gpu import Launching
from kernels.registry import Ops, Sizes, fallbacks, select
from kernels.switches import launched, separated
from tr.config import MtpDraft, Run
from tr.jit import MODES
from tr.model.config import ModelConfig
from tr.model.text import cache_rows
from tr.nn.formats.kv.cache import make
from tr.roofline import coded_columns, head_matrices

NARROW = ("fp8", "int8", "int4")  # read in words, of which products take 16 at least
INT4 = ("int4_matmul", "int4_matmul_beside", "int4_add_norm", "int4_gate_up")


def sizes(shape: ModelConfig, quant: str, kvs: Iterable[str], capacity: int) -> Sizes:
    """What each operator is called with, by the names that `Support` knows.

    `kvs`: the formats of the caches.
    """
    found = {**shape.matrices, **head_matrices(shape)}
    widths = [{"d": shape.d_model}]
    heads: list[dict[str, int]] = []
    for kv in kvs:
        narrow = {"narrow d_head": shape.d_head, "4-bit codes": int(kv == "int4")}
        narrow = narrow if kv in NARROW else {}
        sizes = {"d_head": shape.d_head, "rotary": shape.rotary_dim, "float8": int(kv == "fp8")}
        heads.append({**sizes, **narrow})
    delta = {"channels": shape.delta.channels, "inner": shape.v_heads * shape.d_v}
    delta |= {"d_k": shape.d_k, "d_v": shape.d_v}
    packed = [
        {"n": n, "k": k} for name, (_, n, k) in found.items() if coded_columns(name, n, k, quant)
    ]
    return {
        **dict.fromkeys(INT4, packed if quant == "int4_g128" else []),
        "table4_matmul": packed if quant == "table4" else [],
        "embed_norm": widths,
        "rms_norm": widths,
        "add_rms_norm": widths,
        "unfold_norm": widths,
        "silu_mul": [{"d_ff": shape.d_ff}],
        "gated_delta_step": [delta],
        "gated_delta_absorb": [delta],
        "gated_delta_chunk": [delta],
        "qk_rope_store": heads,
        "attention_decode": [{**head, "capacity": cache_rows(capacity)} for head in heads],
        "attention_prefill": [{"d_head": shape.d_head}],
        "kv_restore": [{"d_head": shape.d_head}],
    }


def caches(config: Run) -> dict[str, str]:
    """The formats of a run's caches, by the keys that name them."""
    found = {"kv": config.kv.format}
    for part in config.draft.parts():
        if isinstance(part, MtpDraft) and part.kv != "same":
            found["draft.kv"] = part.kv
    return found


def operators(
    config: Run, shape: ModelConfig, capacity: int, target: Target
) -> tuple[Ops, tuple[str, ...]]:
    """The operators that `config` picks for a model of `shape` on `target`, and warnings.

    Raises ValueError by name where a variant, the card or a cache's format cannot do what is asked
    for.
    """
    choice, overrides = config.kernel.variant, config.kernel.overrides()
    kvs = caches(config)
    for key, kv in kvs.items():
        if kv == "fp8" and target.type == "cuda" and target.capability < FLOAT8:
            if overrides.get("attention_decode", choice) == "auto":
                raise ValueError(
                    f"{key}=fp8 needs compute capability {FLOAT8[0]}.{FLOAT8[1]}, this is {target};"
                    f" use {key}=int8 or {key}=bf16, or kernel.attention_decode=tile, which"
                    " converts in software"
                )
        make(kv, shape.kv_heads, cache_rows(1), shape.d_head, torch.empty(0, device="meta"))
    activations = config.prefill.activations
    if activations != "bf16" and config.quant.format == "bf16":
        raise ValueError(
            f"prefill={activations} rounds the tokens that meet int4 weights, got"
            f" quant={config.quant.format}; use quant=int4_g128 or prefill=bf16"
        )
    if activations == "fp8" and target.type == "cuda" and target.capability < FLOAT8:
        raise ValueError(
            f"prefill=fp8 needs compute capability {FLOAT8[0]}.{FLOAT8[1]}, this is {target}; use"
            " prefill=bf16 or prefill=int8"
        )
    asked = sizes(shape, config.quant.format, dict.fromkeys(kvs.values()), capacity)
    said = fallbacks(choice, overrides, target, asked)
    if config.kv.format.startswith("kvarn") and target.type == "cuda":
        said += ("kv=kvarn: attention has no variant for a card; tile runs, which jit=eager takes",)
    ops = separated(select(choice, overrides, target, asked), config.kernel.separate)
    how = Launching(config.kernel.overlap, config.kernel.fetch_ahead)
    if target.type != "cuda" or how == Launching():
        return ops, said
    if config.jit.backend in MODES:
        raise ValueError(
            "kernel.overlap=false and kernel.fetch_ahead=false are for steps whose launches no"
            f" compiler makes, got jit={config.jit.backend}; use jit=eager or jit=cuda_graph"
        )
    return launched(ops, how), said
