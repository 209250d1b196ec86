"""A small hybrid model that every operator variant accepts, its norms drawn anew."""

from typing import TypeVar

import torch

from kernels.gated_delta_step.reference import absorb
from kernels.registry import select
from tr.model import mtp, text
from tr.model.config import FULL, LINEAR, ModelConfig
from tr.nn import gated_delta_net
from tr.nn.formats.kv.coded import Coded
from tr.nn.formats.kv.plain import Plain
from tr.tree import map_tensors, replace_tensors, tensors

T = TypeVar("T")

CONFIG = ModelConfig(
    vocab=96,
    d_model=128,
    d_ff=192,
    layer_types=(LINEAR, LINEAR, FULL, LINEAR),
    heads=4,
    kv_heads=2,
    d_head=32,
    rotary_dim=8,
    rope_theta=1e7,
    k_heads=2,
    v_heads=6,
    d_k=32,
    d_v=32,
    conv_width=4,
    eps=1e-6,
    tie_embeddings=False,
    max_positions=1024,
    mtp_layers=1,
)
CAPACITY, ROWS = 512, 16


def perturb(params: T, generator: torch.Generator) -> T:
    """Add noise to all but the rotary tables: norms start equal, and a swap would go unseen."""
    noisy = {
        name: t + 0.1 * torch.randn(t.shape, generator=generator).to(t.dtype)
        for name, t in tensors(params).items()
        if not name.startswith("rope")
    }
    return replace_tensors(params, noisy)


def random_params(dtype: torch.dtype, config: ModelConfig = CONFIG) -> text.Params:
    g = torch.Generator().manual_seed(0)
    return perturb(text.init(config, g, dtype), g)


def random_mtp(dtype: torch.dtype, config: ModelConfig = CONFIG) -> mtp.Params:
    g = torch.Generator().manual_seed(1)
    return perturb(mtp.init(config, g, dtype), g)


def random_tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, CONFIG.vocab, (count,), generator=torch.Generator().manual_seed(seed))


def copy(x: T) -> T:
    """The same pytree in storage of its own."""
    return map_tensors(torch.clone, x)


def prefilled(params: text.Params, prompt: torch.Tensor, capacity: int = CAPACITY) -> text.State:
    """The state behind `prompt`, which may be empty."""
    state = text.init_state(params, capacity, ROWS)
    return text.prefill(params, state, prompt, select())[2] if len(prompt) else state


def meaning(state: text.State) -> dict[str, torch.Tensor]:
    """What a state stands for: pending rows folded in, cache rows that are live, the position."""
    state = copy(state)
    pos, pending = int(state.pos), int(state.pending)
    out = {"pos": state.pos}
    for i, s in enumerate(state.layers):
        if isinstance(s, Plain | Coded):
            out |= {f"{i}.k": s.k[:, :pos], f"{i}.v": s.v[:, :pos]}
        else:
            assert isinstance(s, gated_delta_net.State)
            absorb(s.h, s.tail, s.past_x, s.past_k, s.past_u, s.past_decay, pending)
            out |= {f"{i}.h": s.h, f"{i}.tail": s.tail}
    return out
