"""Strategies against each other and raw decoding: tokens per step, acceptance, time, exactness.

Raw decoding first writes each prompt's text, greedy and at one temperature, and every strategy then
writes it again: as far as it does not repeat itself, except where a family copies by design. In the
timed rounds the strategies take turns on each prompt, another one first every time, so that a drift
of the machine favours none; speeds are of medians over the rounds. A step is also timed by itself,
with every count of rows that a strategy asks for.

Two rules are judged where their strategies run: `dflash2_lookup` beside `dflash2`, and `auto`
beside the fastest one of each family.
"""

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.dflash2_verify import divergence
from experiments.measure import LOOPS_COUNT, Job, Tally, loop_start, prompt_ids
from experiments.stepping import step_ms, warnings
from experiments.strategies import Strategy, drafting, runnable, strategies
from tr.assemble import Assembly, assemble
from tr.config import VERIFY_ROWS, Config
from tr.decode.stream import Counts, open_stream
from tr.drafts.base import Draft, Seen
from tr.model.sampling import Sampling, sampling
from tr.report.progress import progress
from tr.report.record import Outcome, Verdict

COPIES, ELSEWHERE = 1.4, 0.97  # how much faster dflash2_lookup is to be than dflash2
BEST = 0.97  # how much of the fastest strategy's speed auto is to reach
SEEN = 8  # steps of one kind after which a strategy is asked for its next step


@dataclass
class Options:
    strategies: list[str] = field(default_factory=list)  # none given: every one that drafts
    prompts: int = 2  # of each family; 0: all
    temperature: float = 0.8
    rounds: int = 3  # timed ones
    steps: int = 20  # timed ones of each strategy and count of rows


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
    with progress() as bars:
        for mode, heat in heats.items():
            s = sampling(heat, seed=config.seed, device=device)
            job = Job(made, kept["raw"].made, s, config.max_new_tokens, capacity)
            total = sum(map(len, prompts.values()))
            bar = bars.add_task(f"{mode}: texts", total=total, unit="prompts")
            for family, listed in prompts.items():
                for prompt in listed:
                    texts[mode].append(written(job, family, prompt))
                    bars.advance(bar)
            bar = bars.add_task(mode, total=(o.rounds + 1) * len(texts[mode]), unit="prompts")
            for n in range(o.rounds + 1):
                for i, text in enumerate(texts[mode]):
                    turn(job, text, kept, n + i)
                    bars.advance(bar)
    for mode, prefix in (("greedy", ""), ("sampled", "sampled_")):
        for name in kept:
            for family in prompts:
                of = [text for text in texts[mode] if text.family == family]
                values = figures["strategies"][name].setdefault(family, {})
                values |= {prefix + key: v for key, v in measured(of, name).items()}
    judged(figures, list(prompts))
    first = next(iter(prompts.values()))[0]
    figures["step_context"] = len(first)
    figures["steps"] = timed(made, kept, first, texts["greedy"][0], capacity, o.steps)
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


def measured(texts: list[Text], name: str) -> dict[str, Any]:
    """What a strategy does on the texts of one family."""
    total = Tally()
    for text in texts:
        first, *timed = text.runs[name]
        seconds = statistics.median(counts.seconds for counts in timed)
        total.add(replace(first, seconds=seconds), len(first.tokens))
    return {
        "tokens_per_step": total.tokens_per_step,
        "step_ms": 1e3 * total.seconds / total.steps if total.steps else None,
        "tokens_per_s": total.tokens_per_s,
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
    if {"dflash2", "dflash2_lookup"} <= set(found):
        figures["dflash2_lookup_over_dflash2"] = {
            family: rule(found, "dflash2_lookup", "dflash2", family, asked)
            for family in families
            for asked in [COPIES if family in LOOPS_COUNT else ELSEWHERE]
        }
    if "auto" in found:
        rest = [name for name in found if name != "auto" and not name.startswith("oracle")]
        speeds = {f: {n: found[n][f]["tokens_per_s"] or 0.0 for n in rest} for f in families}
        figures["auto_over_best"] = {
            family: {"best": best, **rule(found, "auto", best, family, BEST)}
            for family in families
            for best in [max(speeds[family], key=speeds[family].__getitem__)]
        }


def rule(found: dict[str, Any], a: str, b: str, family: str, asked: float) -> dict[str, Any]:
    """How strategy `a` does beside `b`, and whether that is as asked."""
    one, other = found[a][family], found[b][family]
    speed = ratio(one["tokens_per_s"], other["tokens_per_s"])
    return {
        "speed_ratio": speed,
        "asked_ratio": asked,
        "met": speed is not None and speed >= asked,
        "tokens_per_step_ratio": ratio(one["tokens_per_step"], other["tokens_per_step"]),
        "sampled_speed_ratio": ratio(one["sampled_tokens_per_s"], other["sampled_tokens_per_s"]),
    }


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def kinds(draft: Draft) -> dict[str, tuple[Draft, int]]:
    """The steps that a strategy runs, named by their rows: while nothing is kept, while all is."""
    found: dict[str, tuple[Draft, int]] = {}
    for right in (False, True):
        seen: list[Seen] = []
        for _ in range(SEEN):
            program, rows = draft.pick(seen)
            own = "" if program.name == draft.name else f" ({program.name})"
            found[f"{rows}{own}"] = program, rows
            seen.append(Seen(rows, rows if right else 1))
    return found


def timed(
    made: Assembly,
    kept: dict[str, Strategy],
    prompt: list[int],
    text: Text,
    capacity: int,
    rounds: int,
) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of a step behind `prompt`, by strategy and rows, and beside raw decoding's."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    one = None
    for name, strategy in kept.items():
        draft = strategy.draft(prompt, text.raw, text.sampling.seed.device)
        figures[name] = {}
        stream = open_stream(made.model, draft, prompt, text.sampling, capacity)
        state = stream.state
        for kind, (program, rows) in kinds(stream.draft).items():
            ms, state = step_ms(made.model, state, text.sampling, rows, rounds, program)
            one = one or ms
            figures[name][kind] = {"step_ms": ms, "ratio": ms / one}
    return figures


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
