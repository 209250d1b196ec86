"""A decoding state at a given context without a prompt, and steps timed on it."""

import statistics

import torch
from torch import Tensor

from tr.bench import time_us
from tr.decode.step import Model
from tr.model import text
from tr.tree import map_tensors


def state_at(model: Model, context: int, rows: int, capacity: int, seed: int) -> text.State:
    """A state that says `context` tokens are behind it; caches and states hold random numbers.

    Never zeros: a card runs faster on them. Nothing is pending.
    """
    state = text.init_state(model.params, capacity, rows)
    generator = torch.Generator(model.params.norm.device).manual_seed(seed)

    def fill(x: Tensor) -> Tensor:
        if x.is_floating_point():
            x.normal_(generator=generator).mul_(0.1)
        return x

    layers = map_tensors(fill, state.layers)
    state.pos.fill_(context)
    return text.State(layers=layers, pos=state.pos, pending=state.pending)


@torch.inference_mode()
def step_ms(model: Model, state: text.State, rows: int, rounds: int, seed: int = 0) -> float:
    """Median milliseconds of a step of `rows` random tokens, its rows committed like accepted ones.

    Each round rewinds to where it began, so the context stays.
    """
    device = model.params.norm.device
    generator = torch.Generator(device).manual_seed(seed)
    tokens = torch.randint(0, model.ids, (rows,), generator=generator, device=device)
    kept = torch.tensor(rows, device=device)

    def call() -> None:
        _, after = model.step(model.params, state, tokens, model.ops)
        text.commit(after, kept)
        after.pos.sub_(kept)

    return statistics.median(time_us([call], device, rounds)) * 1e-3
