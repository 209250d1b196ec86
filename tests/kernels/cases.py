"""Arguments for every operator variant, in shapes that all variants accept."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels import registry  # noqa: F401  (registers every variant)
from kernels.benches import BENCHES
from kernels.define import VARIANTS, Target, refusal
from tr.bench import Draw, Sizes
from tr.tree import map_tensors

ROWS = 16
HEADS = {"heads": 4, "kv_heads": 2, "d": 32}
CACHE = {"capacity": 1024, "pos": 600}  # a second block of keys is live
CODED = {"kv_heads": 1, "d": 32, "capacity": 1024, "pos": 520}
PACKED = {"kv_heads": 2, "d": 32, "value_bits": 2}  # rows from 656 on see tile 4 packed
CODES = {"kv_heads": 2, "d": 32}
DELTA = {"k_heads": 2, "v_heads": 6, "d_k": 32, "d_v": 32, "width": 4}
RING = {"heads": 3, "kv_heads": 1, "d": 32, "window": 60, "size": 128, "pos": 300}
CUT = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01}  # each cuts something


class Case:
    """How to call one operator: sizes that all variants accept, and which arguments rows cut.

    `rows` are the positions of arguments that have a row axis first, `pos` that of the position of
    the first row, where there is one. The rows of a `block` belong together and are never cut.
    `name` tells cases of one operator apart.
    """

    def __init__(
        self,
        operator: str,
        sizes: Sizes,
        rows: Sequence[int] = (0,),
        pos: int | None = None,
        block: bool = False,
        name: str = "",
    ) -> None:
        self.operator, self.sizes, self.rows, self.pos = operator, sizes, rows, pos
        self.block, self.name = block, name or operator

    def arguments(self, dtype: torch.dtype) -> list[Any]:
        """Of a call with ROWS rows."""
        return BENCHES[self.operator].inputs(Draw("cpu", dtype), ROWS, **self.sizes)

    def cut(self, arguments: list[Any], start: int, stop: int) -> list[Any]:
        """The call of rows start .. stop - 1 alone, on copies of everything it may write."""
        out = map_tensors(torch.clone, arguments)
        if self.block:
            return out
        for i in self.rows:
            out[i] = out[i][start:stop].clone()
        if self.pos is not None:
            out[self.pos] = out[self.pos] + start
        return out


CASES = {
    case.name: case
    for case in (
        Case("matmul", {"splits": [200, 60, 60], "k": 128}),
        Case("int4_matmul", {"splits": [120, 80], "k": 256}),  # two row blocks, one half padding
        Case("int4_matmul_beside", {"splits": [120, 80], "k": 256, "beside": 12}, (0, 5, 6)),
        Case("int4_add_norm", {"n": 384, "k": 256}, (0, 2, 5)),
        Case("int4_gate_up", {"n": 512, "k": 256}, (0, 2, 3)),
        Case("int4_restore", {"n": 200, "k": 256}, (), block=True),
        Case("table4_matmul", {"splits": [120, 80], "k": 256}),
        Case("table4_restore", {"n": 200, "k": 256}, (), block=True),
        Case("kv_restore", {**CODES, "keys": 90, "cache": torch.uint8}, (), block=True),
        Case("attention_prefill", {**HEADS, "pos": 600}, block=True),
        Case("quantise_rows", {"d": 320, "dtype": torch.int8}),
        Case("embed_norm", {"d": 320, "vocab": 50}, pos=2),
        Case("rms_norm", {"d": 320}),
        Case("rms_norm_plain", {"d": 320}),
        Case("add_rms_norm", {"d": 320}, (0, 1)),
        Case("unfold_norm", {"d": 384}, (0, 1)),
        Case("silu_mul", {"d": 192}),
        Case("qk_rope_store", {**HEADS, **CACHE, "rotary": 16}, pos=5),
        Case("attention_decode", {**HEADS, **CACHE}, (0, 1), pos=4),
        *(
            Case(operator, {**sizes, "cache": dtype}, rows, pos, name=f"{operator} {name}")
            for name, dtype in (("int8", torch.int8), ("int4", torch.uint8))
            for operator, sizes, rows, pos in (
                ("qk_rope_store", {**CODED, "heads": 1, "rotary": 16}, (0,), 5),
                ("attention_decode", {**CODED, "heads": 2}, (0, 1), 4),
            )
        ),
        Case("kvarn_store", {**HEADS, "rotary": 16, "pos": 120}, pos=5),  # from sink to ring
        Case("kvarn_pack", {**PACKED, "pos": 400, "tokens": 300}, block=True),
        Case("kvarn_attention", {**HEADS, **PACKED, "capacity": 1024, "pos": 653}, (0, 1), pos=9),
        Case("gated_delta_step", {**DELTA, "pending": 3}, (0, 1)),
        Case("gated_delta_absorb", {**DELTA, "pending": 3}, (), block=True),
        Case("gated_delta_chunk", {**DELTA, "tokens": 70}, (), block=True),
        Case("penalize", {"vocab": 320, "ids": 300, "text": 90, "start": 40}, (0, 2), pos=1),
        Case("sample", {"vocab": 320, "ids": 300, **CUT}, pos=1),  # 20 columns are padding
        Case("accept", {"vocab": 320, "ids": 300, "d": 256, "taps": 96}, block=True),
        Case("dflash_embed", {"d": 384, "vocab": 50}, block=True),
        Case("dflash_conv", {"d": 384}, block=True),
        Case("dflash_conv_add_norm", {"d": 384}, block=True),
        Case("dflash_attention", RING, block=True),
        Case("dflash_top", {"vocab": 320, "ids": 300, "top": 6}),
        Case("dflash_select", {"vocab": 90, "rank": 8, "n": 6, "noise": True}, block=True),
    )
}

#: too slow in the interpreter at these sizes; smaller in tests/kernels/test_triton.py
ELSEWHERE = {("sample", "triton")}


def table(name: str) -> dict[str, Callable[..., Any]]:
    """The variants of a case's operator."""
    return VARIANTS[CASES[name].operator]


#: (case, variant) of every variant whose arguments are above and that runs on a CPU here
COVERED = [
    (op, name)
    for op in CASES
    for name in sorted(table(op))
    if not refusal(CASES[op].operator, name, Target("cpu")) and (op, name) not in ELSEWHERE
]

#: of those, the ones whose rows are independent
BY_ROW = [(op, name) for op, name in COVERED if not CASES[op].block]


def outputs(result: Any) -> tuple[Tensor, ...]:
    """What a call gives; nothing where it writes to an argument alone."""
    if result is None:
        return ()
    return result if isinstance(result, tuple) else (result,)
