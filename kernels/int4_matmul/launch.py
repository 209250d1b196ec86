"""What the fast variants' launches share: the card, the slots, and the checks of their tensors."""

import functools

import torch
from torch import Tensor

from kernels.gpu import check as check_tensors
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, WORDS
from kernels.int4_matmul.plan import H200, Card

PLAIN, ADD_NORM, GATE_UP = range(3)  # how a block of output rows ends


@functools.cache
def card(device: torch.device) -> Card:
    """What plans count on; an H200's for tensors that are on no card."""
    if device.type != "cuda":
        return H200
    found = torch.cuda.get_device_properties(device)
    return Card(found.multi_processor_count, found.shared_memory_per_multiprocessor)


@functools.cache
def slots(device: torch.device, n: int) -> Tensor:
    """Room for n sums that programs of one launch leave each other; kept, since captured graphs
    hold its address, and shared on the terms of `counters`.
    """
    return torch.empty(n, device=device)


def check(
    operator: str,
    x: Tensor,
    tiles: Tensor,
    n: int,
    packed: bool,
    sums: Tensor | None,
    squares: Tensor | None,
    **others: Tensor,
) -> None:
    """Refuse what the kernels would read wrongly; `packed` ones multiply bfloat16 alone."""
    rows, k = x.shape
    shares = {"sums": sums, "squares": squares}
    given = {name: t for name, t in shares.items() if t is not None}
    check_tensors(operator, rows, x=x, tiles=tiles, **given, **others)
    if (
        tiles.ndim != 4
        or tiles.shape[1] * GROUP != k
        or tiles.shape[0] != -(-n // ROWS)
        or tiles.shape[2:] != (LINES, WORDS)
    ):
        raise ValueError(
            f"{operator}: tiles of shape {tuple(tiles.shape)} do not fit x [{rows}, {k}] and"
            f" {n} output rows"
        )
    for name, t in given.items():
        if t.shape != (rows, k // GROUP) or t.dtype != torch.float32:
            raise ValueError(
                f"{operator}: {name} must be fp32 of shape {(rows, k // GROUP)}, got {t.dtype} of"
                f" {tuple(t.shape)}"
            )
    for name, t in others.items():
        if t.dtype != x.dtype:
            raise ValueError(f"{operator}: {name} must be {x.dtype} as x is, got {t.dtype}")
    if any(t.data_ptr() % 16 for t in (x, tiles, *others.values())):
        raise ValueError(f"{operator}: tiles and x must start on a multiple of 16 bytes")
    if packed and x.dtype != torch.bfloat16:
        raise ValueError(
            f"{operator}: tensor cores multiply bfloat16 here, got {x.dtype}; use"
            f" kernel.{operator}=tile"
        )
