"""One program per row, which norms as `rms_norm` does."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.embed_norm.reference import fake
from kernels.gpu import check, let_next_start, wait_for_inputs
from kernels.rms_norm.triton import WIDTHS, one_block, over_rms
from kernels.rounding import rounded


@triton.jit(do_not_specialize=["first"])
def _embed_norm(
    tokens_ptr,
    drafts_ptr,
    pos_ptr,
    embed_ptr,
    gain_ptr,
    ids_ptr,
    places_ptr,
    x_ptr,
    y_ptr,
    first,
    d,
    eps,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    drafted = row >= first
    token = tl.load(tokens_ptr + row, mask=row < first, other=0)
    draft = tl.load(drafts_ptr + row - first, mask=drafted, other=0)
    token = tl.maximum(tl.where(drafted, draft, token), 0)
    tl.store(ids_ptr + row, token)
    tl.store(places_ptr + row, tl.load(pos_ptr) + row + 1)
    col = tl.arange(0, BLOCK)
    mask = col < d
    dtype = y_ptr.dtype.element_ty
    x = tl.load(embed_ptr + token * d + col, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + col, mask=mask, other=0.0).to(tl.float32)
    y = over_rms(x, d, eps) * (1.0 + gain)
    place = row.to(tl.int64) * d + col
    tl.store(x_ptr + place, x.to(dtype), mask=mask)
    tl.store(y_ptr + place, rounded(y, dtype).to(dtype), mask=mask)


@variant("embed_norm", "triton", fake, support=WIDTHS)
def embed_norm(
    tokens: Tensor, drafts: Tensor | None, pos: Tensor, embed: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the reference, for rows of width up to 16384."""
    drafted = tokens if drafts is None else drafts
    check("embed_norm", 1, tokens=tokens, drafts=drafted, embed=embed, gain=gain)
    ids, places, x, y = fake(tokens, drafts, pos, embed, gain, eps)
    _embed_norm[(len(ids),)](
        tokens,
        drafted,
        pos,
        embed,
        gain,
        ids,
        places,
        x,
        y,
        len(tokens),
        embed.shape[1],
        eps,
        **one_block("embed_norm", embed, gain),
    )
    return ids, places, x, y
