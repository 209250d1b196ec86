"""The multi-token-prediction head: one more decoder layer that guesses the token after next.

For a pair (token y at position p, hidden g of position p - 1):
    z = layer(fc [norm_e(embed(y)) ; norm_h(g)] at position p);  o = norm(z);  logits = lm_head o
g is the target's hidden after its final norm, or, in a chain, the head's own o.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.registry import Ops
from kernels.rms_norm import rms_norm
from tr.model import layer
from tr.model.config import FULL, ModelConfig
from tr.nn import attention
from tr.nn.formats.dense import dense
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.operand import Operand
from tr.nn.rope import Rope
from tr.tree import static, tree, typed


@tree
class Params:
    norm_embedding: Float[Tensor, " d_model"]
    norm_hidden: Float[Tensor, " d_model"]
    fc: Matrix  # [d_model, 2 d_model], the embedding's half first
    layer: layer.Params
    norm: Float[Tensor, " d_model"]
    eps: float = static()


def init(
    config: ModelConfig, generator: torch.Generator, dtype: torch.dtype, make: Make = dense
) -> Params:
    zeros = torch.zeros(config.d_model, dtype=dtype, device=generator.device)
    return Params(
        norm_embedding=zeros,
        norm_hidden=zeros.clone(),
        fc=make([config.d_model], 2 * config.d_model, generator, dtype),
        layer=layer.init(config, FULL, generator, dtype, make),
        norm=zeros.clone(),
        eps=config.eps,
    )


@typed
def sequence(
    params: Params,
    past: layer.Past,
    embed: Float[Tensor, "vocab d_model"],
    tokens: Int64[Tensor, "batch tokens"],
    hidden: Float[Tensor, "batch tokens d_model"],
    rope: Rope,
) -> tuple[Float[Tensor, "batch tokens d_model"], layer.Past]:
    """Pairs (tokens[i], hidden[i]) after `past`; pure. Returns the head's own normed output."""
    x = _join(params, F.embedding(tokens, embed), hidden)
    x, past = layer.sequence(params.layer, past, x, rope)
    return rms_norm(x, params.norm, params.eps), past


@typed
def prefill(
    params: Params,
    state: layer.State,
    embed: Float[Tensor, "vocab d_model"],
    tokens: Int64[Tensor, " tokens"],
    hidden: Float[Tensor, "tokens d_model"],
    pos: int,
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "tokens d_model"], layer.State]:
    """Pairs of a prompt at cache rows pos, pos + 1, ...; `state` is donated."""
    x = _join(params, F.embedding(tokens, embed), hidden, ops)
    x, state = layer.prefill(params.layer, state, x, pos, 0, rope, ops)
    return ops.rms_norm(x, params.norm, params.eps), state


@typed
def step(
    params: Params,
    state: layer.State,
    embed: Float[Tensor, "vocab d_model"],
    tokens: Int64[Tensor, " rows"],
    hidden: Float[Tensor, "rows d_model"],
    pos: Int64[Tensor, ""],
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "rows d_model"], layer.State]:
    """A few pairs at cache rows pos, pos + 1, ...; `state` is donated."""
    x, y = _enter(params, embed, tokens, hidden, ops)
    _, y, state = layer.step(params.layer, state, x, y, params.norm, pos, pos, rope, ops)
    return y.whole(ops), state


@typed
def write(
    params: Params,
    state: layer.State,
    embed: Float[Tensor, "vocab d_model"],
    tokens: Int64[Tensor, " rows"],
    hidden: Float[Tensor, "rows d_model"],
    pos: Int64[Tensor, ""],
    rope: Rope,
    ops: Ops,
) -> layer.State:
    """What `step` does to `state`, the pairs' keys and values; the layer goes no further."""
    mixer = params.layer.mixer
    assert isinstance(mixer, attention.Params) and isinstance(state, attention.State)
    _, y = _enter(params, embed, tokens, hidden, ops)
    qkv = mixer.qkv.project(y, ops)
    state.store(qkv, mixer.q_norm, mixer.k_norm, rope, pos, mixer.spec.eps, ops)
    return state


def _enter(
    params: Params, embed: Tensor, tokens: Tensor, hidden: Tensor, ops: Ops
) -> tuple[Tensor, Operand]:
    """What the layer reads, and its norm."""
    e = ops.rms_norm(F.embedding(tokens, embed), params.norm_embedding, params.eps)
    g = ops.rms_norm(hidden, params.norm_hidden, params.eps)
    x = params.fc.step(torch.cat([e, g], -1), ops)
    return x, Operand(x=ops.rms_norm(x, params.layer.input_norm, params.eps))


def _join(params: Params, embedding: Tensor, hidden: Tensor, ops: Ops | None = None) -> Tensor:
    e = rms_norm(embedding, params.norm_embedding, params.eps)
    g = rms_norm(hidden, params.norm_hidden, params.eps)
    return params.fc.sequence(torch.cat([e, g], -1), ops)
