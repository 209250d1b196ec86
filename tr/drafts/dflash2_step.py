"""A DFlash 2 block in decoding, through operators: what `dflash2_net` states for training.

One call takes the last step's residuals into the ring and fills one block. Between the matrices of
a sublayer stand one launch before it and one after it; a norm is left to the matrix that reads it.
Roundings differ from `dflash2_net`'s, so drafts may, in near ties; the text cannot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.registry import Ops
from tr.drafts import dflash2_net as net
from tr.drafts.base import BROKEN
from tr.drafts.head import Head
from tr.model.sampling import Sampling
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.matrix import Matrix
from tr.nn.formats.operand import Operand
from tr.nn.formats.table4 import Table4


@dataclass(frozen=True, eq=False)
class Fused:
    """The operators that a block runs through, and the one matrix that this needs made."""

    ops: Ops
    kv: Matrix  # [layers 2 kv_heads d_head, d_model]: every layer's [k | v]


def fuse(params: net.Params, ops: Ops) -> Fused:
    """Copies every layer's keys' and values' rows into one matrix."""
    return Fused(ops=ops, kv=_stacked([p.qkv.after(1) for p in params.layers]))


def _stacked(parts: Sequence[Matrix]) -> Matrix:
    splits = tuple(n for part in parts for n in part.splits)
    tiles = [part.tiles for part in parts if isinstance(part, Int4 | Table4)]
    exponents = [part.exponent for part in parts if isinstance(part, Table4)]
    weights = [part.weight for part in parts if isinstance(part, Dense)]
    if len(weights) == len(parts):
        return Dense(weight=torch.cat(weights), splits=splits)
    if len(exponents) == len(parts):
        return Table4(tiles=torch.cat(tiles), exponent=torch.cat(exponents), splits=splits)
    if len(tiles) == len(parts) and not exponents:
        return Int4(tiles=torch.cat(tiles), splits=splits)
    raise ValueError(
        "draft: its layers' q, k and v must be all of one format, int4, table4 or dense; quantise"
        " it anew"
    )


def block(
    params: net.Params,
    fused: Fused,
    ring: Sequence[net.Context],
    embed: Float[Tensor, "vocab d_model"],
    taps: Float[Tensor, "new taps"],
    anchor: Int64[Tensor, ""],
    pos: Int64[Tensor, ""],
    count: Int64[Tensor, ""],
    window: int,
) -> Operand:
    """The final rows of one block, anchor first, whose norm may be left to who reads them.

    `taps` are residuals at positions pos - count .. of which the first `count` are kept: their keys
    and values go into `ring`, which is donated.
    """
    c, ops = params.config, fused.ops
    heard = ops.rms_norm_plain(params.fc.step(taps, ops), params.hidden_norm, c.eps)
    context = fused.kv.step(heard, ops)
    gains = [p.input_norm for p in params.layers] + [params.norm]
    x, *parts = ops.dflash_embed(
        embed, anchor, c.mask_token, c.block, c.input_scale, gains[0], c.eps
    )
    y = _normed(*parts)
    for i, (p, past) in enumerate(zip(params.layers, ring, strict=True)):
        h, dynamic = _before(p.attention_conv, y, ops)
        a = ops.dflash_attention(
            p.qkv.project(h, ops),
            context,
            i,
            p.q_norm,
            p.k_norm,
            params.rope.cos,
            params.rope.sin,
            pos,
            count,
            past.k[0],
            past.v[0],
            window,
            c.causal,
            c.eps,
        )
        a = p.out.step(a, ops)
        base = p.attention_conv.base
        x, *parts = ops.dflash_conv_add_norm(a, dynamic, base, 1, x, p.post_norm, c.eps)
        h, dynamic = _before(p.mlp_conv, _normed(*parts), ops)
        m = p.mlp.down.project(p.mlp.gate_up.gate_up(h, ops), ops)
        x, *parts = ops.dflash_conv_add_norm(m, dynamic, p.mlp_conv.base, 1, x, gains[i + 1], c.eps)
        y = _normed(*parts)
    return y


def _normed(x: Tensor, sums: Tensor, squares: Tensor) -> Operand:
    return Operand(x=x, sums=sums, squares=squares)


def _before(p: net.Conv, y: Operand, ops: Ops) -> tuple[Operand, Tensor]:
    """A sublayer's input, convolved, and the dynamic taps of both sides."""
    dynamic = p.projection.project(y, ops)
    x, sums = ops.dflash_conv(y.x, y.squares, dynamic, p.base, 0)
    return Operand(x=x, sums=sums), dynamic


def path(
    params: net.Params,
    fused: Fused,
    head: Head,
    y: Operand,
    rows: int,
    anchor: Int64[Tensor, ""],
    pos: Int64[Tensor, ""],
    sampling: Sampling,
) -> Int64[Tensor, " rows"]:
    """The drafts of a block's rows 1 .. `rows`; see `dflash2.walk`."""
    c, ops, s = params.config, fused.ops, params.selector
    y = _normed(*(t[1 : rows + 1] for t in (y.x, y.sums, y.squares)))  # type: ignore[index]
    scores, best = ops.dflash_top(head.matrix.project(y, ops), head.count, c.selector_top)
    return ops.dflash_select(
        s.projection.project(y, ops),
        s.predecessor,
        s.successor,
        head.tokens(best),
        net.scaled(c, scores),
        anchor,
        pos,
        sampling.temperature,
        sampling.seed,
        not sampling.greedy,
        BROKEN,
    )
