"""Arguments of the 27B's calls: on the meta device for compiling without a GPU, or on one."""

from typing import Any

import torch

from kernels import registry  # noqa: F401  (registers every variant)
from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tr.bench import Draw
from tr.overrides import load

SHAPE = load(["model=qwen3_8_27b", "prompt=x"], "generate").model.spec()


def arguments(operator: str, rows: int, device: str = "meta", **other: Any) -> list[Any]:
    """Of the operator's first case; `other` sizes replace its own. Caches are of full length."""
    bench = BENCHES[operator]
    sizes = {**next(iter(bench.cases(SHAPE).values())), **other}
    if "pos" in sizes or operator == "qk_rope_store":
        sizes["capacity"] = SHAPE.max_positions
    return bench.inputs(Draw(device), rows, **sizes)


def takes(operator: str, variant: str) -> bool:
    """Whether the operator has the variant; those for narrow caches: attention_compiled.py."""
    call = VARIANTS[operator].get(variant)
    return call is not None and not call.support.narrow  # type: ignore[attr-defined]


ATTEND = "dflash_attention"
#: operators over the rows of a draft's block, which belong together
BLOCKS = (
    "dflash_embed",
    "dflash_conv",
    "dflash_conv_add_norm",
    ATTEND,
    "dflash_top",
    "dflash_select",
)

CASES = [
    ("gated_delta_step", "", arguments("gated_delta_step", 8)),
    ("gated_delta_absorb", "", arguments("gated_delta_absorb", 8)),
    ("embed_norm", "", arguments("embed_norm", 8)),
    ("rms_norm", "", arguments("rms_norm", 8)),
    ("rms_norm_plain", "", arguments("rms_norm_plain", 8 * 32, d=128)),
    ("add_rms_norm", "", arguments("add_rms_norm", 8)),
    ("silu_mul", "", arguments("silu_mul", 8)),
    ("int4_restore", "", arguments("int4_restore", 8)),
    ("table4_restore", "", arguments("table4_restore", 8)),
    ("quantise_rows", "int8", arguments("quantise_rows", 8)),
    ("quantise_rows", "fp8", arguments("quantise_rows", 8, dtype=torch.float8_e4m3fn)),
    ("penalize", "", arguments("penalize", 8)),
    ("sample", "cut", arguments("sample", 8)),
    ("sample", "drawn", arguments("sample", 8, temperature=1.0, top_k=0, top_p=1.0)),
    ("accept", "one row", arguments("accept", 1)),
    ("accept", "with taps", arguments("accept", 8, taps=5 * SHAPE.d_model)),
    *((operator, "", arguments(operator, 8)) for operator in BLOCKS if operator != ATTEND),
    (
        ATTEND,
        "",
        BENCHES[ATTEND].inputs(Draw("meta"), 8, **BENCHES[ATTEND].cases(SHAPE)["64 tokens"]),
    ),
]
for cache in (torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.uint8):
    CASES.append(("qk_rope_store", f"{cache}", arguments("qk_rope_store", 8, cache=cache)))
    for rows in (1, 16):
        made = arguments("attention_decode", rows, cache=cache)
        CASES.append(("attention_decode", f"{rows} rows {cache}", made))

for case in ("k4v2 4096 tokens", "k4v4 4096 tokens"):
    sizes = BENCHES["kvarn_attention"].cases(SHAPE)[case]
    CASES.append(("kvarn_attention", case, arguments("kvarn_attention", 8, **sizes)))
CASES.append(("kvarn_store", "", arguments("kvarn_store", 8)))
PACK = BENCHES["kvarn_pack"]
CASES.append(("kvarn_pack", "", PACK.inputs(Draw("meta"), 8, **PACK.cases(SHAPE)["one tile"])))

#: operators whose kernels must be compiled alike for every row count
BY_ROWS = (
    "gated_delta_step",
    "attention_decode",
    "qk_rope_store",
    "kvarn_store",
    "kvarn_attention",
    "penalize",
    "sample",
    "embed_norm",
    "add_rms_norm",
    "silu_mul",
    "unfold_norm",
    "int4_matmul",
    "int4_matmul_beside",
    "int4_add_norm",
    "int4_gate_up",
    "table4_matmul",
)
