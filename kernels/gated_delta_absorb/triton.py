"""One launch: programs hold a few key rows of a head's state in registers over all records; the
last ones shift the tail, a block of channels each.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gated_delta_absorb.reference import MUTATES, fake
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs

KEYS, CHANNELS = 32, 1024  # of one program


@triton.jit(do_not_specialize=["pending"])
def _absorb(
    h_ptr,
    tail_ptr,
    x_ptr,
    k_ptr,
    u_ptr,
    decay_ptr,
    pending,
    channels,
    states,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAST: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    program = tl.program_id(0)
    if program < states:
        PARTS: tl.constexpr = (D_K + KEYS - 1) // KEYS
        head = program // PARTS
        key = program % PARTS * KEYS + tl.arange(0, KEYS)
        col = tl.arange(0, COLUMNS)
        mask = (key < D_K)[:, None] & (col < D_V)[None, :]
        at = (head * D_K + key)[:, None] * D_V + col[None, :]
        h = tl.load(h_ptr + at, mask=mask, other=0.0)
        for i in range(pending):
            k = tl.load(k_ptr + (i * (HEADS // GROUP) + head // GROUP) * D_K + key, mask=key < D_K)
            u = tl.load(u_ptr + (i * HEADS + head) * D_V + col, mask=col < D_V)
            h = h * tl.load(decay_ptr + i * HEADS + head)
            h = h + k[:, None] * u[None, :]
        tl.store(h_ptr + at, h, mask=mask)
    else:
        row = tl.arange(0, ROWS)[:, None]
        channel = (program - states) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        kept = (row < PAST) & (channel < channels)
        source = row + pending  # a row of the tail and the records behind it
        old = tl.load(
            tail_ptr + source * channels + channel, mask=kept & (source < PAST), other=0.0
        )
        new = kept & (source >= PAST)
        new_rows = tl.load(x_ptr + (source - PAST) * channels + channel, mask=new, other=0.0)
        tl.debug_barrier()  # the tail is read before it is written
        tl.store(tail_ptr + row * channels + channel, tl.where(new, new_rows, old), mask=kept)


@variant("gated_delta_absorb", "triton", fake, MUTATES, SUPPORT)
def gated_delta_absorb(
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: int,
) -> None:
    """As the reference, to the bit."""
    check("gated_delta_absorb", 1, h=h, tail=tail, past_x=past_x, past_k=past_k, past_u=past_u)
    if not pending:
        return
    v_heads, d_k, d_v = h.shape
    past, channels = tail.shape
    states = v_heads * triton.cdiv(d_k, KEYS)
    overlap = dependent_launch(h.device)
    _absorb[(states + triton.cdiv(channels, CHANNELS),)](
        h,
        tail,
        past_x,
        past_k,
        past_u,
        past_decay,
        pending,
        channels,
        states,
        HEADS=v_heads,
        GROUP=v_heads // past_k.shape[1],
        D_K=d_k,
        D_V=d_v,
        COLUMNS=triton.next_power_of_2(d_v),
        PAST=past,
        ROWS=triton.next_power_of_2(past),
        KEYS=KEYS,
        CHANNELS=CHANNELS,
        PDL=overlap,
        num_warps=4,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
