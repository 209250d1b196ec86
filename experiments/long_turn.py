"""A long conversation: its prompt read in full, the memory it takes, and what a next turn costs.

`ttft_ms` is the time from a turn's ids to its first token, which the host has read; each turn adds
`new` tokens behind an answer. The first turn, which compiles, does not count.
"""

import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.ceilings import ceilings
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.decode.session import Sessions
from tr.decode.stream import Counts
from tr.report.progress import track
from tr.report.record import Outcome


@dataclass
class Options:
    contexts: list[int] = field(default_factory=lambda: [8192, 100000])  # tokens of the prompt
    new: int = 30  # tokens of a next turn
    answer: int = 16  # tokens of each answer
    turns: int = 6  # timed ones
    every: int = 32768  # tokens from one snapshot of a prompt to the next
    host_gb: float = 8.0  # for snapshots and other conversations


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if min(o.contexts, default=0) < 1 or min(o.new, o.answer, o.turns) < 1:
        raise ValueError("params.contexts, .new, .answer and .turns must be positive")
    room = (o.turns + 2) * (o.new + o.answer)
    made = assemble(config, max(o.contexts) + room)
    limits = ceilings(made.model.params.norm.device)
    figures: dict[str, Any] = {"new_tokens": o.new, "contexts": {}}
    for context in track(o.contexts, "conversations", "contexts"):
        figures["contexts"][str(context)] = conversation(config, o, made, context, context + room)
    return Outcome(figures, warnings=made.warnings, device=limits)


def conversation(
    config: Config, o: Options, made: Assembly, context: int, capacity: int
) -> dict[str, float]:
    """One conversation of random ids: what they are changes no time."""
    cuda = made.model.params.norm.is_cuda
    draw, sampling = random.Random(config.seed), sampling_of(config)
    ids = draw.choices(range(made.model.ids), k=context)
    held = Sessions(made.model, made.draft(config), capacity, int(o.host_gb * 1e9), o.every)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds, times, reused, computed = 0.0, [], [], []
    for n in range(o.turns + 2):
        began = time.perf_counter()
        turn = held.open(ids, sampling)
        int(turn.stream.state.feed.anchor)  # waits for the device
        passed = time.perf_counter() - began
        if n == 0:
            seconds = passed
        elif n > 1:
            times.append(passed)
            reused.append(turn.reused)
            computed.append(turn.computed)
        counts = Counts()
        for _ in turn.answer(counts, o.answer):
            pass
        ids += counts.tokens + draw.choices(range(made.model.ids), k=o.new)
    found = {
        "prompt_seconds": seconds,
        "prompt_tokens_per_s": context / seconds,
        "ttft_ms": statistics.median(times) * 1e3,
        "ttft_max_ms": max(times) * 1e3,
        "reused_tokens": statistics.median(reused),
        "computed_tokens": statistics.median(computed),
    }
    if cuda:
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found
