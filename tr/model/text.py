"""The text path: embedding, hybrid layers, final norm, head; as one sequence or a few rows.

`taps` are the residual streams after chosen layers: what a block draft reads of the target.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.registry import Ops
from kernels.rms_norm import rms_norm
from tr.model import layer
from tr.model.config import ModelConfig
from tr.nn.formats.dense import Dense, dense, normal
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.operand import Operand
from tr.nn.gated_delta_net import Form
from tr.nn.rope import Rope, rope
from tr.tree import static, tree, typed, unchecked

CACHE_BLOCK = 512


@tree
class Params:
    embed: Float[Tensor, "vocab d_model"]
    layers: tuple[layer.Params, ...]
    norm: Float[Tensor, " d_model"]
    lm_head: Matrix | None  # None: tied to the embedding
    rope: Rope
    eps: float = static()

    @property
    def head(self) -> Matrix:
        """The output matrix [vocab, d_model]."""
        if self.lm_head is not None:
            return self.lm_head
        return Dense(weight=self.embed, splits=(self.embed.shape[0],))


@tree
class State:
    """Everything a decoding step reads and writes besides the weights. Donated to each call."""

    layers: tuple[layer.State, ...]
    pos: Int64[Tensor, ""]  # tokens behind us, pending ones included: the next row's position
    pending: Int64[Tensor, ""]  # accepted rows of the last step that no checkpoint holds yet


@tree
class Rows:
    """What a step gives per row."""

    tokens: Int64[Tensor, " rows"]  # as they were read: 0 in place of a negative one
    places: Int64[Tensor, " rows"]  # of the rows' own tokens: behind those that they read
    logits: Float[Tensor, "rows vocab"]
    hidden: Operand  # after the final norm: what the head and MTP read
    taps: Float[Tensor, "rows taps"]  # residuals after the tapped layers, side by side


def init(
    config: ModelConfig, generator: torch.Generator, dtype: torch.dtype, make: Make = dense
) -> Params:
    """Random weights (fan-in scaled) on the generator's device, large matrices as `make` does."""
    shape = (config.vocab, config.d_model)
    scale = config.d_model**-0.5 if config.tie_embeddings else 1.0
    kinds = config.layer_types
    return Params(
        embed=normal(shape, scale, generator, dtype),
        layers=tuple(layer.init(config, kind, generator, dtype, make) for kind in kinds),
        norm=torch.zeros(config.d_model, dtype=dtype, device=generator.device),
        lm_head=None
        if config.tie_embeddings
        else make([config.vocab], config.d_model, generator, dtype),
        rope=tables(config, dtype, str(generator.device)),
        eps=config.eps,
    )


def tables(config: ModelConfig, dtype: torch.dtype, device: str) -> Rope:
    return rope(config.max_positions, config.rotary_dim, config.rope_theta, dtype, device)


def cache_rows(tokens: int) -> int:
    """Rows of a cache for `tokens` tokens: whole blocks, since some variants read it by them."""
    return -(-tokens // CACHE_BLOCK) * CACHE_BLOCK


def init_state(params: Params, capacity: int, rows: int) -> State:
    """Empty state for `capacity` tokens and steps of up to `rows` rows.

    Caches are zero-filled. Raises ValueError where the model has fewer positions.
    """
    limit = params.rope.cos.shape[0]
    if not 1 <= capacity <= limit:
        raise ValueError(
            f"state: expected a capacity of 1 .. {limit} tokens (the model's positions),"
            f" got {capacity}; set kv.capacity_tokens"
        )
    device = params.embed.device
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return State(
        layers=tuple(layer.init_state(p, cache_rows(capacity), rows) for p in params.layers),
        pos=zero,
        pending=zero.clone(),
    )


def init_past(params: Params, batch: int) -> tuple[layer.Past, ...]:
    return tuple(layer.init_past(p, batch) for p in params.layers)


@typed
def sequence(
    params: Params,
    past: tuple[layer.Past, ...],
    tokens: Int64[Tensor, "batch tokens"],
    taps: Sequence[int] = (),
    form: Form = "chunk",
) -> tuple[
    Float[Tensor, "batch tokens d_model"],
    Float[Tensor, "batch tokens taps"],
    tuple[layer.Past, ...],
]:
    """Many tokens after `past`; pure. Returns the final-norm hidden, the taps and the new past."""
    x = F.embedding(tokens, params.embed)
    seen, new = [], []
    for i, (p, before) in enumerate(zip(params.layers, past, strict=True)):
        x, after = layer.sequence(p, before, x, params.rope, form)
        new.append(after)
        if i in taps:
            seen.append(x)
    tapped = torch.cat(seen, -1) if seen else x[..., :0]
    return rms_norm(x, params.norm, params.eps), tapped, tuple(new)


@typed
def prefill(
    params: Params,
    state: State,
    tokens: Int64[Tensor, " tokens"],
    ops: Ops,
    taps: Sequence[int] = (),
    first: int = 0,
) -> tuple[Float[Tensor, "tokens d_model"], Float[Tensor, "tapped taps"], State]:
    """One chunk of the prompt; `state` is donated. All but the last chunk must end on a multiple of
    64 tokens if the result is to equal one long chunk to the bit.

    Gives the final-norm hidden of all tokens, and the taps of those from `first` on.
    """
    pos, pending = int(state.pos), int(state.pending)
    x = F.embedding(tokens, params.embed)
    tapped, new = x.new_empty(len(x) - first, len(taps), x.shape[1]), []
    places = {layer: place for place, layer in enumerate(sorted(taps))}
    with unchecked():  # a few tokens take a layer less time than its checks
        for i, (p, before) in enumerate(zip(params.layers, state.layers, strict=True)):
            x, after = layer.prefill(p, before, x, pos, pending, params.rope, ops)
            new.append(after)
            if i in places:
                tapped[:, places[i]] = x[first:]
    state.pos.add_(tokens.shape[0])
    state.pending.zero_()
    after = State(layers=tuple(new), pos=state.pos, pending=state.pending)
    return ops.rms_norm(x, params.norm, params.eps), tapped.flatten(1), after


@typed
def step(
    params: Params,
    state: State,
    tokens: Int64[Tensor, " tokens"],
    ops: Ops,
    taps: Sequence[int] = (),
    drafts: Int64[Tensor, " drafts"] | None = None,
) -> tuple[Rows, State]:
    """Run rows at positions pos, pos + 1, ...; `state` is donated, its pending rows fold in.

    The rows are those of `tokens` and behind them those of `drafts`, of which negative ones read
    some token. Nothing is committed: the caches hold the rows, the recurrent layers their records.
    `commit` says how many of them stay, and must before the next step, which overwrites the others
    before anything reads them.
    """
    gains = [*(p.input_norm for p in params.layers), params.norm]
    ids, places, x, normed = ops.embed_norm(
        tokens, drafts, state.pos, params.embed, gains[0], params.eps
    )
    y = Operand(x=normed)
    seen, new = [], []
    for i, (p, before) in enumerate(zip(params.layers, state.layers, strict=True)):
        x, y, after = layer.step(
            p, before, x, y, gains[i + 1], state.pos, state.pending, params.rope, ops
        )
        new.append(after)
        if i in taps:
            seen.append(x)
    rows = Rows(
        tokens=ids,
        places=places,
        logits=params.head.project(y, ops),
        hidden=y,
        taps=torch.cat(seen, -1) if seen else x[:, :0],
    )
    return rows, State(layers=tuple(new), pos=state.pos, pending=state.pending)


@typed
def commit(state: State, rows: Int64[Tensor, ""]) -> State:
    """Keep the first `rows` rows of the last step, once; `state` is donated."""
    state.pos.add_(rows)
    state.pending.copy_(rows)
    return state


@typed
def cut(state: State, rows: Int64[Tensor, ""]) -> State:
    """Keep `rows` rows of the last step in place of as many as were committed; `state` is donated.

    May be called until the next step.
    """
    state.pos.add_(rows - state.pending)
    state.pending.copy_(rows)
    return state
