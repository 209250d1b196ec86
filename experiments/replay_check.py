"""Whether a backend's whole step gives eager's bits, and a row's bits the same among any others.

`steps` raw steps by `jit` and as many by eager operators from one state, every logit compared after
each and every tensor of the state now and then; then verify steps of each row count over the same
given tokens, each row's logits compared with those of a single-row step. Random weights may loop,
so tokens alone would say little.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.compile_compare import same_bits
from experiments.repeat import draft, state_at
from tr.assemble import assemble, sampling_of
from tr.config import Config
from tr.decode.step import Model, State
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling
from tr.progress import track
from tr.report.record import Outcome, Verdict
from tr.tree import map_tensors, tensors

EVERY = 64  # steps between two comparisons of the whole state


@dataclass
class Options:
    steps: int = 256
    rows: list[int] = field(default_factory=lambda: list(range(1, 17)))
    context: int = 100


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o = config.options(Options)
    most = max(o.rows)
    capacity = o.context + max(o.steps, most) + 1
    made = assemble(config, capacity)
    model, sampling = made.model, sampling_of(config)
    eager = Model.build(model.params, model.ops, model.ids)
    start = state_at(model, o.context, most, capacity, config.seed)
    replay = replays(eager, model, start, sampling, o.steps)
    rows = {n: verified(eager, model, start, sampling, n) for n in track(o.rows, "rows")}
    figures = {
        "backend": config.jit.backend,
        "steps": o.steps,
        "steps_exact": replay is None,
        "rows": {str(n): {"exact": where is None} for n, where in rows.items()},
    }
    first = next((where for where in (replay, *rows.values()) if where), None)
    return Outcome(
        figures, Verdict(first is None, o.steps + sum(o.rows), first), False, made.warnings
    )


def replays(
    eager: Model, model: Model, start: State, sampling: Sampling, steps: int
) -> dict[str, Any] | None:
    """The first tensor in which raw steps by `model` differ from `eager`'s; None: there is none."""
    a, b = map_tensors(torch.clone, start), map_tensors(torch.clone, start)
    for i in range(steps):
        *want, a = eager.step(Raw(), a, sampling, 1)
        *got, b = model.step(Raw(), b, sampling, 1)
        one, two = {"result": want[0], "logits": want[1]}, {"result": got[0], "logits": got[1]}
        if (i + 1) % EVERY == 0 or i + 1 == steps:
            one, two = one | tensors(a), two | tensors(b)
        for name, x in one.items():
            if not same_bits(x, two[name]):
                return {"check": "replay", "step": i, "tensor": name}
    return None


def verified(
    eager: Model, model: Model, start: State, sampling: Sampling, rows: int
) -> dict[str, Any] | None:
    """The first of `rows` rows whose logits by `model` are not those of a step of its own."""
    given = start.feed.history.index_select(
        0, start.feed.pos + torch.arange(rows + 1).to(start.feed.pos)
    )
    _, logits, _ = model.step(draft(rows), map_tensors(torch.clone, start), sampling, rows)
    state = map_tensors(torch.clone, start)
    for i in range(rows):
        _, alone, state = eager.step(Raw(), state, sampling, 1)
        if not same_bits(logits[i], alone[0]):
            differ = int((logits[i] != alone[0]).sum())
            return {"check": "rows", "rows": rows, "row": i, "logits": differ}
        state.feed.anchor.copy_(given[i + 1])  # the next row's token, whatever was drawn
    return None
