"""Strategies against each other and raw decoding: tokens per step, acceptance, time, exactness.

Raw decoding first writes each prompt's text, greedy and at one temperature, and every strategy then
writes it again: as far as it does not repeat itself, except where a family copies by design. In the
timed rounds the strategies take turns on each prompt, another one first every time, so that a drift
of the machine favours none; speeds are of medians over the rounds.

Every kind of step that ran, a program and its rows, is also timed by itself, in several turns;
steps that do the same work are one kind, whichever strategy runs them. A text's tokens over the sum
of its steps' times in a turn is a speed that other loads of the machine bend little: two rules are
judged by the median turn where their strategies run, `dflash2_lookup` beside `dflash2`, and `auto`
beside the fastest one of each family. What the middle half of the turns says is the noise.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experiments.dflash2_verify import divergence
from experiments.measure import LOOPS_COUNT, Job, Tally, loop_start, prompt_ids
from experiments.stepping import step_ms, warnings
from experiments.strategies import Strategy, drafting, runnable, strategies
from tr.assemble import Assembly, assemble
from tr.config import VERIFY_ROWS, Config
from tr.decode.step import State
from tr.decode.stream import Counts, open_stream
from tr.drafts.base import Draft
from tr.model.sampling import Sampling, sampling
from tr.progress import track
from tr.report.record import Outcome, Verdict

COPIES, ELSEWHERE = 1.4, 0.97  # how much faster dflash2_lookup is to be than dflash2
BEST = 0.97  # how much of the fastest strategy's speed auto is to reach
JUDGED = (
    "met: tokens over the sum of the steps' own times, greedy and sampled, both reach asked_ratio"
    " in the median of the turns that these were timed in; table_speed_ratio_range holds their"
    " middle half; speed_ratio and sampled_speed_ratio are of the timed rounds"
)
ASKED = 9  # times that a CPU's loop is timed
TURNS = 9  # of timing every kind of step
SAME = {"chain": "dflash2_lookup", "copy": "copy + dflash2_lookup"}  # other names of one work
HEATS = (("greedy", ""), ("sampled", "sampled_"))

Kinds = dict[tuple[str, int], list[float]]  # milliseconds of a step by turn, by program and rows


@dataclass
class Options:
    strategies: list[str] = field(default_factory=list)  # none given: every one that drafts
    prompts: int = 4  # of each family; 0: all
    temperature: float = 0.8
    rounds: int = 3  # timed ones
    steps: int = 27  # timed ones of each kind


@dataclass
class Timed:
    """Steps of one work, a program and its rows: the state that they go on from, and their times.

    `ms` [turns]: milliseconds; every strategy that runs such steps holds the same list.
    """

    program: Draft
    rows: int
    state: State
    ms: list[float]


@dataclass
class Text:
    """A prompt, how its answer is drawn, and the part of raw decoding's answer that counts."""

    family: str
    prompt: list[int]
    sampling: Sampling
    raw: list[int]
    runs: dict[str, list[Counts]]  # by strategy: one of each round, the untimed one first


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.rounds < 1:
        raise ValueError(f"params.rounds must be positive, got {o.rounds}")
    made = assemble(config)
    device = made.model.params.norm.device
    prompts = prompt_ids(config, made, o.prompts)
    longest = max(len(p) for listed in prompts.values() for p in listed)
    capacity = longest + max(config.max_new_tokens, VERIFY_ROWS)
    if capacity > config.kv.capacity_tokens:
        raise ValueError(
            f"prompts: the longest one has {longest} tokens and needs {capacity}; raise"
            f" kv.capacity_tokens, which is {config.kv.capacity_tokens}"
        )
    names, left_out = runnable(o.strategies, drafting(), made)
    kept = strategies(["raw", *names], config, made)
    heats = {"greedy": 0.0, "sampled": o.temperature}
    figures: dict[str, Any] = {"strategies": {name: {} for name in kept}}
    texts: dict[str, list[Text]] = {mode: [] for mode in heats}
    asked = [(family, prompt) for family, listed in prompts.items() for prompt in listed]
    for mode, heat in heats.items():
        s = sampling(heat, seed=config.seed, device=device)
        job = Job(made, kept["raw"].made, s, config.max_new_tokens, capacity)
        for family, prompt in track(asked, f"{mode}: texts", "prompts"):
            texts[mode].append(written(job, family, prompt))
        turns = [(n + i, text) for n in range(o.rounds + 1) for i, text in enumerate(texts[mode])]
        for first, text in track(turns, mode, "prompts"):
            turn(job, text, kept, first)
    for mode, prefix in HEATS:
        steps = timed(made, kept, texts[mode], capacity, max(1, o.steps // TURNS))
        for name in kept:
            for family in prompts:
                of = [text for text in texts[mode] if text.family == family]
                values = figures["strategies"][name].setdefault(family, {})
                found = measured(of, name, steps[name])
                values |= {prefix + key: v for key, v in found.items()}
        figures[f"{prefix}steps"] = table(steps)
    figures["step_context"] = len(texts["greedy"][0].prompt)
    judged(figures, list(prompts))
    compared, wrong = compare(texts, kept)
    simulated = any(strategy.oracle for strategy in kept.values())
    said = made.warnings + left_out + warnings(config, device)
    return Outcome(figures, Verdict(wrong is None, compared, wrong), simulated, said)


def written(job: Job, family: str, prompt: list[int]) -> Text:
    """Raw decoding's answer, up to where it repeats itself; at least the step after its first."""
    tokens = job.run(prompt).tokens
    end = len(tokens) if family in LOOPS_COUNT else loop_start(prompt, tokens)
    return Text(family, prompt, job.sampling, tokens[: max(2, end)], {})


def turn(job: Job, text: Text, kept: dict[str, Strategy], first: int) -> None:
    """Every strategy writes a text once, number `first` of them before the others."""
    names = list(kept)
    first %= len(names)
    short = replace(job, tokens=len(text.raw))
    for name in names[first:] + names[:first]:
        draft = kept[name].draft(text.prompt, text.raw, text.sampling.seed.device)
        text.runs.setdefault(name, []).append(short.run(text.prompt, draft))


def measured(texts: list[Text], name: str, steps: Kinds) -> dict[str, Any]:
    """What a strategy does on the texts of one family."""
    total, ms = Tally(), [0.0] * TURNS
    for text in texts:
        first, *timed = text.runs[name]
        for kind in kinds(first):
            ms = [a + b for a, b in zip(ms, steps[kind], strict=True)]
        seconds = statistics.median(counts.seconds for counts in timed)
        total.add(replace(first, seconds=seconds), len(first.tokens))
    speeds = [1e3 * total.made / turn for turn in ms] if total.made else []
    return {
        "tokens_per_step": total.tokens_per_step,
        "step_ms": 1e3 * total.seconds / total.steps if total.steps else None,
        "tokens_per_s": total.tokens_per_s,
        "table_tokens_per_s": statistics.median(speeds) if speeds else None,
        "table_tokens_per_s_by_turn": speeds,
        "rows_per_step": total.rows / total.steps if total.steps else None,
        "tokens": total.tokens,
        "accepted_by_position": total.accepted_by_position,
    }


def judged(figures: dict[str, Any], families: list[str]) -> None:
    """Add speed beside raw decoding's, and the two rules where their strategies ran."""
    found = figures["strategies"]
    for family in families:
        raw = found["raw"][family]["tokens_per_s"]
        for values in found.values():
            values[family]["speedup"] = ratio(values[family]["tokens_per_s"], raw)
    figures["judged_by"] = JUDGED
    if {"dflash2", "dflash2_lookup"} <= set(found):
        figures["dflash2_lookup_over_dflash2"] = {
            family: rule(found, "dflash2_lookup", ["dflash2"], family, asked)
            for family in families
            for asked in [COPIES if family in LOOPS_COUNT else ELSEWHERE]
        }
    if "auto" in found:
        rest = [name for name in found if name != "auto" and not name.startswith("oracle")]
        figures["auto_over_best"] = {
            family: rule(found, "auto", rest, family, BEST) for family in families
        }


def rule(
    found: dict[str, Any], a: str, others: list[str], family: str, asked: float
) -> dict[str, Any]:
    """How strategy `a` does beside the best of `others` by the table, and whether as asked."""
    values: dict[str, Any] = {"asked_ratio": asked, "met": True}
    for _, prefix in HEATS:
        table = f"{prefix}table_tokens_per_s"
        best = max(others, key=lambda name: found[name][family][table] or 0.0)
        one, other = found[a][family], found[best][family]
        turns = zip(one[f"{table}_by_turn"], other[f"{table}_by_turn"], strict=True)
        low, middle, high = quartiles([x / y for x, y in turns])
        values |= {
            f"{prefix}best": best,
            f"{prefix}table_speed_ratio": middle,
            f"{prefix}table_speed_ratio_range": [low, high],
            f"{prefix}speed_ratio": ratio(
                one[f"{prefix}tokens_per_s"], other[f"{prefix}tokens_per_s"]
            ),
            f"{prefix}tokens_per_step_ratio": ratio(
                one[f"{prefix}tokens_per_step"], other[f"{prefix}tokens_per_step"]
            ),
        }
        values["met"] &= (middle or 0.0) >= asked
    return values


def quartiles(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """The lower one, the median and the upper one; None without values."""
    if not values:
        return None, None, None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def kinds(counts: Counts) -> list[tuple[str, int]]:
    """A run's steps: what drafted, and the rows."""
    return [(ran, n + 1) for ran, n in zip(counts.ran, counts.proposed, strict=True)]


def table(steps: dict[str, Kinds]) -> dict[str, dict[str, dict[str, float]]]:
    """By strategy and rows, and beside raw decoding's."""
    one = statistics.median(steps["raw"]["raw", 1])
    return {
        name: {
            f"{rows}" + (f" ({ran})" if ran != name else ""): {"step_ms": ms, "ratio": ms / one}
            for (ran, rows), turns in sorted(own.items())
            for ms in [statistics.median(turns)]
        }
        for name, own in steps.items()
    }


def work(entry: str, strategy: Strategy, ran: str, rows: int) -> tuple[str, str, int]:
    """What a step is: the strategy where its values are not the configs', program and rows.

    A step of one row asks no draft.
    """
    if rows == 1:
        return "", "raw", 1
    return "" if strategy.plain else entry, SAME.get(ran, ran), rows


def timed(
    made: Assembly, kept: dict[str, Strategy], texts: list[Text], capacity: int, rounds: int
) -> dict[str, Kinds]:
    """Milliseconds of every kind of step that ran, by strategy, behind the first prompt.

    All kinds are timed in turn, several times, so that a drift of the machine bends each alike. On
    a CPU with one thread it is that thread's own time, which other processes hardly lengthen.
    """
    timer = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    prompt, s = texts[0].prompt, texts[0].sampling
    works: dict[tuple[str, str, int], Timed] = {}
    found: dict[str, Kinds] = {name: {} for name in kept}
    for name, text in itertools.product(kept, texts):
        draft = kept[name].draft(text.prompt, text.raw, s.seed.device).open(text.prompt)
        programs = {program.name: program for program in draft.programs}
        for ran, rows in dict.fromkeys(kind for run in text.runs[name] for kind in kinds(run)):
            key = work(name, kept[name], ran, rows)
            if key not in works:
                state = open_stream(made.model, draft, prompt, s, capacity).state
                works[key] = Timed(programs[ran], rows, state, [])
            found[name][ran, rows] = works[key].ms
    for _, one in itertools.product(range(TURNS), works.values()):
        program, rows, state = one.program, one.rows, one.state
        ms, one.state = step_ms(made.model, state, s, rows, rounds, program, timer)
        one.ms.append(ms + asking_ms(program, one.state, rows, timer))
    return found


def asking_ms(program: Draft, state: State, rows: int, timer: Callable[[], float]) -> float:
    """What the loop of a CPU takes to ask how many rows are worth it, in milliseconds."""
    if rows < 2 or not state.feed.pos.is_cpu:
        return 0.0
    times = []
    for _ in range(ASKED):
        began = timer()
        program.found(state.feed)
        times.append(1e3 * (timer() - began))
    return statistics.median(times)


def compare(
    texts: dict[str, list[Text]], kept: dict[str, Strategy]
) -> tuple[int, dict[str, Any] | None]:
    """How many tokens were compared with raw decoding's, and the first one that differs."""
    compared, wrong = 0, None
    for mode, listed in texts.items():
        for i, text in enumerate(listed):
            for name in list(kept)[1:]:
                for counts in text.runs[name]:
                    compared += len(text.raw)
                    if counts.tokens != text.raw and wrong is None:
                        where = {"strategy": name, "family": text.family, "text": i, "mode": mode}
                        wrong = {**where, **divergence(text.raw, counts.tokens)}
    return compared, wrong
