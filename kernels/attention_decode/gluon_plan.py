"""How the Gluon kernel's keys and vectors are dealt to programs.

Blocks and splits are numerics: neither may depend on the rows of a call. How a program's columns
come in parts, what it holds ahead and how many may wait change no bit.
"""

from dataclasses import dataclass

import torch

from kernels.gpu import processors

BLOCK = 128  # keys at a time: 16 for each of 8 warps
WARPS = 8
D = 256
COLUMNS = 96  # most of a program


@dataclass(frozen=True)
class Plan:
    """How keys are dealt to programs. `splits` is numerics."""

    splits: int  # per key-value head, at most 64
    parts: tuple[int, ...]  # columns of a program, at most two powers of two from 16 on
    keys_ahead: int  # blocks that a program has in shared memory, beside those in registers
    values_ahead: int
    waiting: int  # programs that may wait for others: fewer than can run at a time


def plan(device: torch.device, kv_heads: int, vectors: int) -> Plan:
    """A program a processor, with all vectors of a call up to 96."""
    count = processors(device)
    splits = max(1, min(64, count // kv_heads))
    programs = -(-vectors // COLUMNS)
    least = -(-vectors // programs)
    parts = next(p for p in ((16,), (32, 16), (64, 32)) if sum(p) >= least)
    return Plan(splits, parts, 2, 2 if sum(parts) > 48 else 3, count - 1)
