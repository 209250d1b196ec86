"""Arguments for every operator variant, in shapes that all variants accept."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels import registry  # noqa: F401  (registers every variant)
from kernels.define import VARIANTS, Target, refusal
from kernels.int4_matmul import layout
from tr.tree import map_tensors

POS, CAPACITY, ROWS = 600, 1024, 16  # a second block of keys is live
HEADS, KV_HEADS, D_HEAD, ROTARY = 4, 2, 32, 16
K_HEADS, V_HEADS, D, WIDTH = 2, 6, 32, 4
CHANNELS, INNER = 2 * K_HEADS * D + V_HEADS * D, V_HEADS * D
EPS = 1e-6


class Case:
    """How to call one operator: its row inputs, and whatever else it takes, in argument order.

    `build(draw, dtype)` gives the arguments of a call with ROWS rows; `rows` are the positions of
    arguments that have a row axis first. `advance` makes the arguments of a call that starts `i`
    rows later, where that is more than slicing.
    """

    def __init__(
        self,
        build: Callable[[Callable[..., Tensor], torch.dtype], list[Any]],
        rows: Sequence[int],
        pos: int | None = None,
    ) -> None:
        self.build, self.rows, self.pos = build, rows, pos

    def arguments(self, dtype: torch.dtype) -> list[Any]:
        g = torch.Generator().manual_seed(0)

        def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(shape, generator=g).to(dtype)

        return self.build(draw, dtype)

    def cut(self, arguments: list[Any], start: int, stop: int) -> list[Any]:
        """The call of rows start .. stop - 1 alone, on copies of everything it may write."""
        out = map_tensors(torch.clone, arguments)
        for i in self.rows:
            out[i] = out[i][start:stop].clone()
        if self.pos is not None:
            out[self.pos] = out[self.pos] + start
        return out


def _matmul(draw: Callable[..., Tensor], dtype: torch.dtype) -> list[Any]:
    weight = draw(320, 128) * 128**-0.5
    return [draw(ROWS, 128), weight, [200, 60, 60]]


def _int4_matmul(draw: Callable[..., Tensor], dtype: torch.dtype) -> list[Any]:
    """Two row blocks, the second one half padding."""
    tiles = layout.random(200, 256, torch.Generator().manual_seed(1))
    return [draw(ROWS, 256), tiles, [120, 80]]


def _delta(draw: Callable[..., Tensor], dtype: torch.dtype) -> list[Any]:
    fp32 = torch.float32
    return [
        draw(ROWS, CHANNELS + INNER),
        draw(ROWS, 2 * V_HEADS),
        draw(CHANNELS, WIDTH) * WIDTH**-0.5,
        draw(V_HEADS),
        draw(V_HEADS),
        1 + 0.1 * draw(D),
        draw(V_HEADS, D, D, dtype=fp32),
        draw(WIDTH - 1, CHANNELS),
        draw(ROWS, CHANNELS),
        draw(ROWS, K_HEADS, D, dtype=fp32),
        draw(ROWS, V_HEADS, D, dtype=fp32),
        draw(ROWS, V_HEADS, dtype=fp32).sigmoid(),
        torch.tensor(3),
        EPS,
    ]


def _sample(draw: Callable[..., Tensor], dtype: torch.dtype) -> list[Any]:
    """Top-k, top-p and min-p all cut something; the last 20 columns are padding."""
    scalars = [torch.tensor(v) for v in (0.8, 40, 0.9, 0.01)]
    seed = torch.tensor([12345, 2**32 - 1])
    return [3 * draw(ROWS, 320), torch.tensor(POS), *scalars, seed, 300]


def _caches(draw: Callable[..., Tensor]) -> list[Tensor]:
    return [draw(KV_HEADS, CAPACITY, D_HEAD) for _ in range(2)]


CASES = {
    "matmul": Case(_matmul, (0,)),
    "int4_matmul": Case(_int4_matmul, (0,)),
    "rms_norm": Case(lambda draw, _: [draw(ROWS, 320), draw(320), EPS], (0,)),
    "rms_norm_plain": Case(lambda draw, _: [draw(ROWS, 320), draw(320), EPS], (0,)),
    "add_rms_norm": Case(
        lambda draw, _: [draw(ROWS, 320), draw(ROWS, 320), draw(320), EPS], (0, 1)
    ),
    "silu_mul": Case(lambda draw, _: [draw(ROWS, 2 * 192)], (0,)),
    "qk_rope_store": Case(
        lambda draw, _: [
            draw(ROWS, (2 * HEADS + 2 * KV_HEADS) * D_HEAD),
            draw(D_HEAD),
            draw(D_HEAD),
            draw(CAPACITY, ROTARY // 2),
            draw(CAPACITY, ROTARY // 2),
            torch.tensor(POS),
            *_caches(draw),
            EPS,
        ],
        (0,),
        pos=5,
    ),
    "attention_decode": Case(
        lambda draw, _: [
            draw(ROWS, HEADS, D_HEAD),
            draw(ROWS, HEADS * D_HEAD),
            *_caches(draw),
            torch.tensor(POS),
        ],
        (0, 1),
        pos=4,
    ),
    "gated_delta_step": Case(_delta, (0, 1)),
    "sample": Case(_sample, (0,), pos=1),
}

#: too slow in the interpreter at these sizes; smaller in tests/kernels/test_triton.py
ELSEWHERE = {("sample", "triton")}

#: (operator, variant) of every variant whose arguments are above and that runs on a CPU here
COVERED = [
    (op, name)
    for op in CASES
    for name in sorted(VARIANTS[op])
    if not refusal(op, name, Target("cpu")) and (op, name) not in ELSEWHERE
]


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
