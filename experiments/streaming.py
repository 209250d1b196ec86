"""Reading memory as fast as a card can: a fixed number of programs, each with blocks of its own."""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

import torch
import triton
import triton.language as tl
from torch import Tensor

PER_PROCESSOR = 8  # programs
BLOCK = 8192  # numbers at a time


@triton.jit
def _read(x_ptr, out_ptr, blocks, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(program, blocks, PROGRAMS):
        total += tl.load(x_ptr + block * BLOCK + lane)
    tl.store(out_ptr + program, tl.sum(total, axis=0))


def programs(device: torch.device) -> int:
    return PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def read(x: Tensor, out: Tensor) -> None:
    """x fp32, of whole blocks of BLOCK numbers; out fp32 [programs] takes partial sums of x."""
    blocks, rest = divmod(x.numel(), BLOCK)
    if rest or x.numel() >= 2**31:
        raise ValueError(f"read: needs whole blocks of {BLOCK} below 2^31, got {x.numel()} numbers")
    count = out.numel()
    _read[(count,)](x, out, blocks, PROGRAMS=count, BLOCK=BLOCK, num_warps=8)
