"""Where Triton variants can run, how launches overlap, and what they check.

Kernels are compiled for CUDA tensors; with TRITON_INTERPRET=1, set before the first import of an
operator, they run in Triton's interpreter on CPU tensors. Without Triton they are not registered.

A launch with `launch_pdl=True` may start while the kernel before it in the stream still runs. Three
rules keep that exact: every such kernel calls `wait_for_inputs` in every program, which returns
when the kernel before has ended and its writes are visible; that one waited too, so all before it
have ended; and until then a program touches no memory except constants such as weights.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from kernels.define import MAX_ROWS, Support

HAS_TRITON = find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"

SUPPORT = Support(devices=("cuda", "cpu") if INTERPRETED else ("cuda",), capability=(8, 0))

if HAS_TRITON:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    @triton.jit
    def wait_for_inputs(PDL: tl.constexpr):
        """Wait for the kernel before, if this one may overlap it; see the rules above."""
        if PDL:
            gdc_wait()

    @triton.jit
    def let_next_start(PDL: tl.constexpr):
        """Allow the next kernel to start once every program of this one has said so or ended."""
        if PDL:
            gdc_launch_dependents()

    @triton.jit
    def arrives_last(counter_ptr, expected):
        """Whether this program is the last of `expected` to come here: the others' writes are
        visible, past the L1 cache, and the counter is back at zero.
        """
        tl.debug_barrier()  # all that this program wrote, before its arrival
        last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == expected - 1
        if last:
            tl.store(counter_ptr, 0)
        return last


@dataclass(frozen=True)
class Launching:
    """What launches may do where the card can: overlap, and fetch weights into L2 meanwhile."""

    overlap: bool = True
    fetch_ahead: bool = True


_launching: ContextVar[Launching] = ContextVar("launching", default=Launching())  # noqa: B039


@contextlib.contextmanager
def launching(how: Launching) -> Iterator[None]:
    """Launch in this block as `how` says; kernels/switches.py puts operators into such blocks."""
    before = _launching.set(how)
    try:
        yield
    finally:
        _launching.reset(before)


def dependent_launch(device: torch.device) -> bool:
    """Whether kernels on `device` overlap: the value of PDL and of the option `launch_pdl`.

    True from compute capability 9.0 on, unless `launching` or TR_DEPENDENT_LAUNCH=0 forbids it.
    """
    if device.type != "cuda" or os.environ.get("TR_DEPENDENT_LAUNCH") == "0":
        return False
    return _launching.get().overlap and _capability(device) >= (9, 0)


def fetches_ahead(device: torch.device) -> bool:
    """Whether a kernel that overlaps the one before asks for weights before it waits."""
    return dependent_launch(device) and _launching.get().fetch_ahead


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; an H200's for tensors that are on no card."""
    if device.type != "cuda":
        return 232448
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@functools.cache
def processors(device: torch.device) -> int:
    """Of the card; an H200's for tensors that are on none."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


@functools.cache
def counters(device: torch.device, n: int) -> Tensor:
    """int32 zeros [n], the same ones in every call: arrivals that programs of one launch count.

    A launch leaves them at zero, so launches in stream order may share them, replayed ones and
    those that wait for their inputs too; others may not: one stream, one graph at a time.
    Raises ValueError where their first use is inside a graph capture, which would not zero them.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "counters: expected to exist before a graph is captured, got their first use inside"
            " one; run the step once before its capture"
        )
    return torch.zeros(n, dtype=torch.int32, device=device)


def check(operator: str, rows: int, **tensors: Tensor) -> None:
    """Refuse what the kernels would read wrongly: strides, the device, more than 16 rows."""
    if rows > MAX_ROWS:
        raise ValueError(
            f"{operator}: triton takes at most {MAX_ROWS} rows, got {rows}; split the rows first"
        )
    for name, x in tensors.items():
        if not (x.is_cuda or INTERPRETED):
            raise ValueError(
                f"{operator}: triton needs CUDA tensors, got {name} on {x.device}; use"
                f" kernel.{operator}=reference, or TRITON_INTERPRET=1 for the interpreter"
            )
        if not x.is_contiguous():
            raise ValueError(
                f"{operator}: {name} must be contiguous, got strides {x.stride()} of {x.shape}"
            )


def same_dtype(operator: str, **tensors: Tensor) -> None:
    """Refuse mixed dtypes where a kernel rounds every operand the same way."""
    dtypes = {name: x.dtype for name, x in tensors.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(f"{operator}: triton needs one dtype, got {listed}")
