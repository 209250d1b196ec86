"""A whole decoding step timed at one context, through the backend that `jit` names."""

import statistics
import time
from collections.abc import Callable

import torch

from experiments.repeat import draft, put
from tr.config import Config
from tr.decode.step import Model, State
from tr.drafts.base import Draft
from tr.jit import GRAPHS
from tr.model.sampling import Sampling

WARMUP = 5


@torch.inference_mode()
def step_ms(
    model: Model,
    state: State,
    sampling: Sampling,
    rows: int,
    rounds: int,
    strategy: Draft | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> tuple[float, State]:
    """Median milliseconds of a step of `rows` rows, and `state`, which is donated.

    Without a `strategy` the drafts cost nothing. `timer`: seconds, on a CPU.

    A step feeds its token to the next one and the host reads nothing in between. Outside the clock
    each one is put back to where the first began, with all its rows pending as if accepted.
    """
    context = int(state.feed.pos)
    strategy = strategy or draft(rows)

    def step() -> None:
        nonlocal state
        _, _, state = model.step(strategy, state, sampling, rows)

    def rewind() -> None:
        put(state, context, rows)

    if state.feed.pos.is_cuda:
        times = _events(step, rewind, WARMUP + rounds)
    else:
        times = _host(step, rewind, WARMUP + rounds, timer)
    return statistics.median(times[WARMUP:]), state


def warnings(config: Config, device: torch.device) -> tuple[str, ...]:
    """What a record of steps timed on a card must say of how they were launched."""
    if device.type != "cuda" or config.jit.backend in GRAPHS:
        return ()
    return (
        f"jit={config.jit.backend}: launches by the host are part of step_ms; jit=cuda_graph times"
        " the device alone",
    )


def _events(step: Callable[[], None], rewind: Callable[[], None], rounds: int) -> list[float]:
    pairs = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        rewind()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _host(
    step: Callable[[], None],
    rewind: Callable[[], None],
    rounds: int,
    timer: Callable[[], float],
) -> list[float]:
    times = []
    for _ in range(rounds):
        began = timer()
        step()
        times.append((timer() - began) * 1e3)
        rewind()
    return times
