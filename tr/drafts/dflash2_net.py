"""The DFlash 2 network: a block of masks filled in one pass, conditioned on the target's residuals.

The target's residuals at a few layers become keys and values in every draft layer (`context`); the
block rows, anchor first and masks after it, run through the layers once (`block`); a selector then
walks a path through the best candidates of each row (`candidates`, `walk`). Training and decoding
call the same functions. DFlash 1 is the case without convolutions and selector.
Source: DFlash (arXiv 2602.06036) and DFlash 2; norms are plain gain, unlike the target's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kernels.dflash_conv import convolve
from kernels.qk_rope_store import rotate
from kernels.registry import Ops
from kernels.rms_norm import rms_norm_plain
from tr.nn import mlp
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.rope import Rope, rope
from tr.tree import static, tree, typed


@dataclass(frozen=True)
class Config:
    """Shape of a DFlash 2 draft; `taps` are 0-based target layers whose outputs it reads."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    kv_heads: int
    d_head: int
    vocab: int
    block: int  # rows: 1 anchor and block - 1 masks
    mask_token: int
    taps: tuple[int, ...]
    window: int  # a row at position p sees keys at positions above p - window
    conv_width: int
    conv_group: int
    selector_rank: int
    selector_top: int
    eps: float
    rope_theta: float
    max_positions: int
    causal: bool = False
    input_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None

    @classmethod
    def from_hf(cls, config: dict) -> "Config":
        """Parse a draft's `config.json`; ValueError names what is missing."""

        def need(source: dict, key: str):
            if source.get(key) is None:
                raise ValueError(f"draft config.json: {key} is missing; is this a DFlash 2 draft?")
            return source[key]

        own = need(config, "dflash_config")
        rope_fields = {**config, **(config.get("rope_parameters") or {})}
        sliding = config.get("use_sliding_window", True) and config.get("sliding_window")
        limit = need(config, "max_position_embeddings")
        return cls(
            d_model=need(config, "hidden_size"),
            d_ff=need(config, "intermediate_size"),
            layers=need(config, "num_hidden_layers"),
            heads=need(config, "num_attention_heads"),
            kv_heads=need(config, "num_key_value_heads"),
            d_head=need(config, "head_dim"),
            vocab=need(config, "vocab_size"),
            block=need(own, "block_size"),
            mask_token=need(own, "mask_token_id"),
            taps=tuple(need(own, "target_layer_ids")),
            window=int(sliding or limit),
            conv_width=need(own, "conv_kernel_size"),
            conv_group=need(own, "conv_group_size"),
            selector_rank=need(own, "selector_rank"),
            selector_top=need(own, "selector_top_k"),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(need(rope_fields, "rope_theta")),
            max_positions=limit,
            causal=bool(config.get("is_causal", bool(sliding))),
            input_scale=float(own.get("input_embedding_scale") or 1.0),
            output_multiplier=float(own.get("output_multiplier") or 1.0),
            softcap=own.get("final_logit_softcapping"),
        )

    def to_hf(self, target_layers: int) -> dict:
        own = {
            "block_size": self.block,
            "mask_token_id": self.mask_token,
            "target_layer_ids": list(self.taps),
            "conv_kernel_size": self.conv_width,
            "conv_group_size": self.conv_group,
            "selector_rank": self.selector_rank,
            "selector_top_k": self.selector_top,
        }
        if self.input_scale != 1.0:
            own["input_embedding_scale"] = self.input_scale
        if self.output_multiplier != 1.0:
            own["output_multiplier"] = self.output_multiplier
        if self.softcap is not None:
            own["final_logit_softcapping"] = self.softcap
        return {
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "is_causal": self.causal,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.d_head,
            "layer_types": ["sliding_attention"] * self.layers,
            "sliding_window": self.window,
            "use_sliding_window": True,
            "rms_norm_eps": self.eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "vocab_size": self.vocab,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "num_target_layers": target_layers,
            "max_position_embeddings": self.max_positions,
            "dflash_config": own,
        }


@tree
class Conv:
    """Block-local causal convolution, taps depend on the row; sides: before, after a sublayer."""

    base: Float[Tensor, "side=2 width d_model"]
    projection: Matrix  # [2 width groups, d_model], laid out [side, tap, group]


@tree
class Layer:
    input_norm: Float[Tensor, " d_model"]
    qkv: Matrix  # [heads d_head + 2 kv_heads d_head, d_model]
    q_norm: Float[Tensor, " d_head"]
    k_norm: Float[Tensor, " d_head"]
    out: Matrix
    attention_conv: Conv
    post_norm: Float[Tensor, " d_model"]
    mlp: mlp.Params
    mlp_conv: Conv


@tree
class Selector:
    projection: Matrix  # [rank, d_model]
    predecessor: Float[Tensor, "vocab rank"]
    successor: Float[Tensor, "vocab rank"]


@tree
class Params:
    fc: Matrix  # [d_model, taps d_model]
    hidden_norm: Float[Tensor, " d_model"]
    layers: tuple[Layer, ...]
    norm: Float[Tensor, " d_model"]
    selector: Selector
    rope: Rope
    config: Config = static()


@tree
class Context:
    """Keys (normed, rotated) and values of target positions, for one draft layer."""

    k: Float[Tensor, "batch kv_heads keys d_head"]
    v: Float[Tensor, "batch kv_heads keys d_head"]


def init(c: Config, generator: torch.Generator, dtype: torch.dtype, make: Make = dense) -> Params:
    """Convolutions start as the identity, codebooks small: DFlash 2 begins as DFlash 1."""
    device = generator.device

    def ones(n: int) -> Tensor:
        return torch.ones(n, dtype=dtype, device=device)

    def conv() -> Conv:
        base = torch.zeros(2, c.conv_width, c.d_model, dtype=dtype, device=device)
        base[:, 0] = 1.0
        rows = 2 * c.conv_width * (c.d_model // c.conv_group)
        weight = torch.zeros(rows, c.d_model, dtype=dtype, device=device)
        return Conv(base=base, projection=Dense(weight=weight, splits=(rows,)))

    def codebook() -> Tensor:
        shape = (c.vocab, c.selector_rank)
        return (torch.randn(shape, generator=generator, device=device) * 0.02).to(dtype)

    def layer() -> Layer:
        inner, kv = c.heads * c.d_head, c.kv_heads * c.d_head
        return Layer(
            input_norm=ones(c.d_model),
            qkv=make([inner, kv, kv], c.d_model, generator, dtype),
            q_norm=ones(c.d_head),
            k_norm=ones(c.d_head),
            out=make([c.d_model], inner, generator, dtype),
            attention_conv=conv(),
            post_norm=ones(c.d_model),
            mlp=mlp.init(c.d_model, c.d_ff, generator, dtype, make),
            mlp_conv=conv(),
        )

    return Params(
        fc=make([c.d_model], len(c.taps) * c.d_model, generator, dtype),
        hidden_norm=ones(c.d_model),
        layers=tuple(layer() for _ in range(c.layers)),
        norm=ones(c.d_model),
        selector=Selector(
            projection=dense([c.selector_rank], c.d_model, generator, dtype),
            predecessor=codebook(),
            successor=codebook(),
        ),
        rope=rope(c.max_positions, c.d_head, c.rope_theta, dtype, str(device)),
        config=c,
    )


@typed
def context(
    params: Params,
    taps: Float[Tensor, "batch tokens taps"],
    positions: Int64[Tensor, "batch tokens"],
    ops: Ops | None = None,
) -> tuple[Context, ...]:
    """Keys and values of every layer for target positions with residuals `taps`; no layer runs.

    With operators for tokens of a text, without them differentiable.
    """
    c = params.config
    x = rms_norm_plain(params.fc.sequence(taps, ops), params.hidden_norm, c.eps)
    cos, sin = params.rope.cos[positions], params.rope.sin[positions]
    out = []
    for p in params.layers:
        kv = p.qkv.after(1).sequence(x, ops)
        k, v = (t.unflatten(-1, (c.kv_heads, c.d_head)) for t in kv.chunk(2, -1))
        k = rotate(rms_norm_plain(k, p.k_norm, c.eps), cos, sin)
        out.append(Context(k=k.transpose(1, 2), v=v.transpose(1, 2)))
    return tuple(out)


@typed
def block(
    params: Params,
    past: tuple[Context, ...],
    x: Float[Tensor, "batch rows d_model"],
    positions: Int64[Tensor, "batch rows"],
    seen: Bool[Tensor, "batch rows keys"],
) -> Float[Tensor, "batch rows d_model"]:
    """Rows of whole blocks (anchor, masks, anchor, masks, ...) through the network; normed.

    x are the target's embeddings of the rows' tokens; `seen` says which context keys each row may
    read. Rows see their own block whole (`causal`: up to themselves), other blocks never.
    """
    c = params.config
    rows = x.shape[1]
    index = torch.arange(rows, device=x.device)
    own = index[:, None] // c.block == index // c.block
    if c.causal:
        own = own & (index <= index[:, None])
    mask = torch.cat([seen, own.expand(x.shape[0], rows, rows)], -1)[:, None]
    cos, sin = params.rope.cos[positions], params.rope.sin[positions]
    x = x * c.input_scale
    for p, before in zip(params.layers, past, strict=True):
        h = rms_norm_plain(x, p.input_norm, c.eps)
        taps = p.attention_conv.projection.sequence(h)
        qkv = p.qkv.sequence(_conv(p.attention_conv, c, 0, taps, h))
        q, k, v = qkv.split(p.qkv.splits, -1)
        q, k, v = (t.unflatten(-1, (-1, c.d_head)) for t in (q, k, v))
        q = rotate(rms_norm_plain(q, p.q_norm, c.eps), cos, sin).transpose(1, 2)
        k = rotate(rms_norm_plain(k, p.k_norm, c.eps), cos, sin).transpose(1, 2)
        k = torch.cat([before.k, k], 2).repeat_interleave(c.heads // c.kv_heads, 1)
        v = torch.cat([before.v, v.transpose(1, 2)], 2).repeat_interleave(c.heads // c.kv_heads, 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        a = p.out.sequence(a.transpose(1, 2).flatten(2))
        x = x + _conv(p.attention_conv, c, 1, taps, a)
        h = rms_norm_plain(x, p.post_norm, c.eps)
        taps = p.mlp_conv.projection.sequence(h)
        m = mlp.sequence(p.mlp, _conv(p.mlp_conv, c, 0, taps, h))
        x = x + _conv(p.mlp_conv, c, 1, taps, m)
    return rms_norm_plain(x, params.norm, c.eps)


def _conv(p: Conv, c: Config, side: int, dynamic: Tensor, z: Tensor) -> Tensor:
    """out[i] = sum_j (base[j] + dynamic[i, j]) z[i - j] inside each block; z before a block is 0.

    dynamic [batch, rows, 2 width groups] comes from the sublayer's input for both sides.
    """
    taps = dynamic.unflatten(-1, (2, c.conv_width, -1))[:, :, side]
    blocks, taps = (t.unflatten(1, (-1, c.block)) for t in (z, taps))
    return convolve(blocks, p.base[side], taps).flatten(1, 2)


def logits(params: Params, head: Matrix, hidden: Tensor, ids: int) -> Tensor:
    """Draft logits [..., vocab] of hidden [..., d_model]; -inf past the `ids` real tokens."""
    y = scaled(params.config, head.sequence(hidden))
    y[..., ids:] = -torch.inf
    return y


def scaled(c: Config, scores: Tensor) -> Tensor:
    """A head's outputs as logits; never a new order among them."""
    if c.output_multiplier != 1.0:
        scores = scores * c.output_multiplier
    return scores if c.softcap is None else c.softcap * torch.tanh(scores / c.softcap)


def pair_scores(
    params: Params,
    hidden: Float[Tensor, "... d_model"],
    before: Int64[Tensor, "..."],
    tokens: Int64[Tensor, "... candidates"],
    scores: Float[Tensor, "... candidates"],
) -> Float[Tensor, "... candidates"]:
    """Candidates' logits plus what following `before` adds: S(a, b) = U(b) + A[a] h . B[b]."""
    s = params.selector
    key = F.embedding(before, s.predecessor) * s.projection.sequence(hidden)
    return scores + (F.embedding(tokens, s.successor) * key[..., None, :]).sum(-1)
