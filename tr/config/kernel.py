"""Which variant runs each operator, and how a step is compiled."""

from dataclasses import dataclass, field, fields

from omegaconf import MISSING

from tr.config.choice import PLANNED, check_choice

FUSED = ("int4_matmul_beside", "int4_gate_up", "int4_add_norm")  # that plainer ones can make up


@dataclass
class Kernel:
    """`variant` for every operator; an operator's own field, where not empty, overrules it.

    On cards whose launches can overlap they do, and some then fetch weights into the L2 cache
    meanwhile: `overlap`, `fetch_ahead`. `separate` operators are made of several plainer ones.
    """

    variant: str = MISSING
    overlap: bool = True
    fetch_ahead: bool = True
    separate: list[str] = field(default_factory=list)
    matmul: str = ""
    int4_matmul: str = ""
    int4_matmul_beside: str = ""
    int4_add_norm: str = ""
    int4_gate_up: str = ""
    int4_restore: str = ""
    table4_matmul: str = ""
    table4_restore: str = ""
    quantise_rows: str = ""
    rms_norm: str = ""
    rms_norm_plain: str = ""
    add_rms_norm: str = ""
    unfold_norm: str = ""
    embed_norm: str = ""
    silu_mul: str = ""
    gated_delta_step: str = ""
    gated_delta_absorb: str = ""
    gated_delta_chunk: str = ""
    qk_rope_store: str = ""
    attention_decode: str = ""
    attention_prefill: str = ""
    kv_restore: str = ""
    kvarn_store: str = ""
    kvarn_pack: str = ""
    kvarn_attention: str = ""
    penalize: str = ""
    sample: str = ""
    accept: str = ""
    dflash_embed: str = ""
    dflash_conv: str = ""
    dflash_conv_add_norm: str = ""
    dflash_attention: str = ""
    dflash_top: str = ""
    dflash_select: str = ""

    def __post_init__(self) -> None:
        built = ("reference", "tile", "triton", "gluon")
        check_choice("kernel.variant", self.variant, ("auto", *built), PLANNED["kernel"])
        for operator, variant in self.overrides().items():
            check_choice(f"kernel.{operator}", variant, built, PLANNED["kernel"])
        for operator in self.separate:
            check_choice("kernel.separate", operator, FUSED)

    def overrides(self) -> dict[str, str]:
        """The operators whose variant is not the common one."""
        common = ("variant", "overlap", "fetch_ahead", "separate")
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}
        return {name: variant for name, variant in own.items() if variant}


@dataclass
class Jit:
    backend: str = MISSING

    def __post_init__(self) -> None:
        built = ("eager", "inductor", "max_autotune", "cuda_graph", "max_autotune_graph")
        check_choice("jit.backend", self.backend, built, PLANNED["jit"])
