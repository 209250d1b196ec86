"""Always 16 query rows: sink and ring as one block, then packed tiles by fours, on a fixed grid.

A block of which a row sees nothing changes nothing for it, to the bit (weight exp(-inf) is 0,
factor exp(0) is 1), so a row does not notice how many rows or tiles the call has. Rows past the
live ones are read and masked: they must be finite, which zero-filled buffers are.
"""

import torch
from torch import Tensor

from kernels.define import Support, variant
from kernels.hadamard import unrotated
from kernels.kvarn import LAG, RING, TILE, edge, keys, values
from kernels.kvarn_attention.reference import fake
from kernels.matmul.tile import TILE as ROWS
from kernels.matmul.tile import tile
from kernels.precision import wide

BLOCK = 4  # tiles
SUPPORT = Support(multiples={"capacity": BLOCK * TILE, "d_head": 32})


@variant("kvarn_attention", "tile", fake, support=SUPPORT)
def kvarn_attention(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
) -> Tensor:
    """As the reference; whole blocks of tiles and heads whose width is a multiple of 32."""
    rows, heads, d = q.shape
    kv_heads, tiles = k_codes.shape[:2]
    if tiles % BLOCK or d % 32:
        raise ValueError(
            f"kvarn_attention: tile needs a capacity that is a multiple of {BLOCK * TILE} and d one"
            f" of 32, got {tiles * TILE} and {d}; use kernel.kvarn_attention=reference"
        )
    group = heads // kv_heads
    first = int(pos)
    query = (wide(tile(q)) * d**-0.5).view(ROWS, kv_heads, group, d)
    query = query.permute(1, 2, 0, 3).reshape(kv_heads, group * ROWS, d)  # [kv, (group row), d]
    p = torch.arange(first, first + ROWS, device=q.device).repeat(group)[:, None]
    start = ((p - LAG).clamp(min=0) // TILE).clamp(min=1) * TILE  # what is packed ends here

    newest = (first + rows - 1) // RING * RING + torch.arange(RING, device=q.device)
    newest = torch.where(newest < _end(first + rows), newest, newest - RING)
    seen = torch.cat(
        [torch.arange(TILE, device=q.device) <= p, (newest >= start) & (newest <= p)], 1
    )
    k, v = wide(torch.cat([sink, ring], 2))
    scores = torch.bmm(query, k.transpose(1, 2)).masked_fill_(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total, out = weights.sum(-1, keepdim=True), torch.bmm(weights, v)
    for block in range(0, edge(first + rows - 1), BLOCK):
        own = slice(block, block + BLOCK)
        k = keys(k_codes[:, own], k_scales[:, own], means[0][:, None]).flatten(1, 2)
        v = values(v_codes[:, own], v_scales[:, own], means[1][:, None]).flatten(1, 2)
        j = torch.arange(block * TILE, (block + BLOCK) * TILE, device=q.device)
        scores = torch.bmm(query, k.transpose(1, 2))
        scores.masked_fill_((j < TILE) | (j >= start), -torch.inf)
        peak = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = (scores - peak).exp_()
        keep = (top - peak).exp_()
        total = total * keep + weights.sum(-1, keepdim=True)
        out = out * keep + torch.bmm(weights, v)
        top = peak
    a = unrotated(out / total).view(kv_heads, group, ROWS, d).permute(2, 0, 1, 3)[:rows]
    return a.reshape(rows, heads * d).to(gate.dtype) * gate.sigmoid()


def _end(live: int) -> int:
    """The end of the tile of the last of `live` positions."""
    return -(-live // TILE) * TILE
