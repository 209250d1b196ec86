"""A long conversation: its prompt read in full, the memory it takes, and what a next turn costs.

`ttft_ms` is the time from a turn's ids to its first token, which the host has read; each turn adds
`new` tokens behind an answer. The first turn, which compiles, does not count. The phases are the
host's: rest, match and take_up find the place where the turn goes on, read launches its new tokens,
begin waits for them and for the token. `read_device_ms` is what read takes on a card. keep, the
prompt's snapshot, comes behind the first token.

Peaks are a conversation's own: those before it are let go of, with what was captured for them.
"""

import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.ceilings import ceilings
from experiments.memory import cache_bytes, held, peaks, release
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.decode.session import Sessions
from tr.decode.stream import Counts
from tr.drafts.base import Draft
from tr.progress import track
from tr.report.record import Outcome

PHASES = ("rest", "match", "take_up", "read", "begin", "keep")


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
    before = held()
    made = assemble(config, max(o.contexts) + room)
    weights = held() - before
    draft = made.draft(config)
    drafting = held() - before - weights
    limits = ceilings(made.model.params.norm.device)
    figures: dict[str, Any] = {"new_tokens": o.new, "contexts": {}}
    for context in track(o.contexts, "conversations", "contexts"):
        release(made.model)
        found, kv = conversation(config, o, made, draft, context, context + room)
        figures["contexts"][str(context)] = found | peaks(weights, drafting, kv)
    return Outcome(figures, warnings=made.warnings, device=limits)


class Clock:
    """Seconds of a turn's phases, as its sessions tell them."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.start()

    def start(self) -> None:
        self.seconds: dict[str, float] = {}
        self.events: dict[str, torch.cuda.Event] = {}
        self.began = time.perf_counter()

    def passed(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self.began - sum(self.seconds.values())
        if self.cuda and phase in ("take_up", "read"):
            self.events[phase] = torch.cuda.Event(enable_timing=True)
            self.events[phase].record()

    def ms(self) -> dict[str, float]:
        """By phase, once the device is through."""
        found = {f"{phase}_ms": 1e3 * self.seconds.get(phase, 0.0) for phase in PHASES}
        if self.events:
            found["read_device_ms"] = self.events["take_up"].elapsed_time(self.events["read"])
        return found


def conversation(
    config: Config, o: Options, made: Assembly, draft: Draft, context: int, capacity: int
) -> tuple[dict[str, float], int]:
    """One conversation of random ids, and its caches' bytes: what ids are changes no time."""
    draw, sampling = random.Random(config.seed), sampling_of(config)
    ids = draw.choices(range(made.model.ids), k=context)
    sessions = Sessions(made.model, draft, capacity, int(o.host_gb * 1e9), o.every)
    seconds, kv, times, reused, computed = 0.0, 0, [], [], []
    clock, phases = Clock(made.model.params.norm.is_cuda), []
    sessions.passed = clock.passed
    for n in range(o.turns + 2):
        clock.start()
        turn = sessions.open(ids, sampling)
        int(turn.stream.state.feed.anchor)  # waits for the device
        passed = time.perf_counter() - clock.began
        if n == 0:
            seconds, kv = passed, cache_bytes(turn.stream.state)
        elif n > 1:
            times.append(passed)
            reused.append(turn.reused)
            computed.append(turn.computed)
        counts = Counts()
        for _ in turn.answer(counts, o.answer):
            pass
        if n > 1:
            phases.append(clock.ms())
        ids += counts.tokens + draw.choices(range(made.model.ids), k=o.new)
    found = {
        "prompt_seconds": seconds,
        "prompt_tokens_per_s": context / seconds,
        "ttft_ms": statistics.median(times) * 1e3,
        "ttft_max_ms": max(times) * 1e3,
        "reused_tokens": statistics.median(reused),
        "computed_tokens": statistics.median(computed),
    }
    found |= {name: statistics.median(x[name] for x in phases) for name in phases[0]}
    return found, kv
