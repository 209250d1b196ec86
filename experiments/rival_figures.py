"""Figures of what servers answered, as a client sees them and as they tell, and what to warn of."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.openai_stream import Message, Reply
from experiments.rival_servers import UNKNOWN, Drafted, Found, unheard
from tr.config import Prompt

PASSES = 2
PLACES = {"families": "greedy", "sampled": "sampled"}  # key of the figures -> how tokens are drawn


@dataclass(frozen=True)
class Ask:
    """One prompt, drawn in one way. `number`: its place in its family."""

    family: str
    number: int
    prompt: Prompt
    place: str  # a key of PLACES

    def content(self, nonce: str = "") -> str | list[Message]:
        text = nonce + self.prompt.text
        plain = self.prompt.kind == "plain"
        return text if plain else [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Answer:
    ask: Ask
    reply: Reply
    tokens: int
    prompt_tokens: int | None
    counted: str  # by what

    @property
    def said(self) -> str:
        return self.reply.said


@dataclass
class Measured:
    """`drafted`: by place and family; `told`: figures of the server's own, and its flags."""

    name: str
    found: Found
    model: str
    nonce: bool = False  # no two prompts were the same
    cold: bool = True  # the server could be told to forget
    passes: list[list[Answer]] = field(default_factory=list)
    drafted: dict[tuple[str, str], Drafted] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> list[Answer]:
        return [answer for one in self.passes for answer in one]

    def same(self, place: str) -> list[bool]:
        """Whether each text of the first pass came again in the second."""
        pairs = zip(*self.passes, strict=True)
        return [a.said == b.said for a, b in pairs if a.ask.place == place]


def figures_of(m: Measured) -> dict[str, Any]:
    """By place and family, what the server tells, and how many texts both passes have alike."""
    figures: dict[str, Any] = {}
    for place, family in dict.fromkeys((a.ask.place, a.ask.family) for a in m.answers):
        each = [
            [a for a in answers if (a.ask.place, a.ask.family) == (place, family)]
            for answers in m.passes
        ]
        own = acceptance(m.drafted.get((place, family)), [a for one in each for a in one])
        figures.setdefault(place, {})[family] = passes(each) | own
    figures["server"] = {
        "name": m.name,
        "kind": m.found.kind,
        **m.found.facts,
        "model": m.model,
        "tokens_counted_by": ", ".join(dict.fromkeys(answer.counted for answer in m.answers)),
        **m.told,
    }
    if not m.nonce:
        figures["repeated"] = {
            PLACES[place]: {"texts": len(same), "equal": sum(same)}
            for place in PLACES
            if (same := m.same(place))
        }
    return figures


def passes(each: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    """Figures of all passes together, of each, and how far the two are apart."""
    figures = speeds([answer for one in each for answer in one])
    apart = [speeds(one) for one in each]
    for name, unit in (("ttft", "_ms"), ("decode", "_tokens_per_s")):
        values = [one[name + unit] for one in apart]
        figures[f"{name}_by_pass{unit}"] = values
        mean = None if None in values else statistics.mean(values)
        figures[f"{name}_spread_fraction"] = (max(values) - min(values)) / mean if mean else None
    return figures


def speeds(answers: Sequence[Answer]) -> dict[str, Any]:
    """What a client sees, None where nothing was streamed or counted; what servers tell of it."""
    begun = [(a, a.reply.first, a.reply.last) for a in answers if a.reply.streamed]
    firsts = [first for _, first, _ in begun if first is not None]
    decoded = [
        (a.tokens - 1, last - first)
        for a, first, last in begun
        if first is not None and last is not None and a.tokens > 1
    ]
    read = [
        (a.prompt_tokens - (a.reply.cached_tokens or 0), first)
        for a, first, _ in begun
        if a.prompt_tokens is not None
    ]
    seen = {
        "ttft_ms": 1e3 * statistics.median(firsts) if firsts else None,
        "decode_tokens_per_s": rate(decoded),
        "tokens_per_s": rate([(a.tokens, a.reply.seconds) for a in answers]),
        "prompt_tokens_per_s": rate(read),
        "answer_tokens": sum(a.tokens for a in answers),
    }
    if_told = {
        "prompt_tokens": total(a.prompt_tokens for a in answers),
        "cached_tokens": total(a.reply.cached_tokens for a in answers),
        "server_decode_tokens_per_s": rate(own_times(answers, "predicted", "completion")),
        "server_prompt_tokens_per_s": rate(own_times(answers, "prompt", "prompt")),
    }
    return seen | {name: value for name, value in if_told.items() if value is not None}


def own_times(answers: Sequence[Answer], timing: str, usage: str) -> list[tuple[float, float]]:
    """Tokens and seconds as servers tell them: llama.cpp's timings, or TabbyAPI's usage."""
    found = []
    for answer in answers:
        t, u = answer.reply.timings, answer.reply.usage
        if t.get(f"{timing}_ms"):
            found.append((t.get(f"{timing}_n", 0), t[f"{timing}_ms"] / 1e3))
        elif u.get(f"{usage}_time"):
            cached = (answer.reply.cached_tokens or 0) if usage == "prompt" else 0
            found.append((u.get(f"{usage}_tokens", 0) - cached, u[f"{usage}_time"]))
    return found


def rate(counts: Iterable[tuple[float, float | None]]) -> float | None:
    """Counts over their seconds; those without any are left out."""
    pairs = [(count, seconds) for count, seconds in counts if seconds]
    spent = sum(seconds for _, seconds in pairs)
    return sum(count for count, _ in pairs) / spent if spent else None


def total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def acceptance(counted: Drafted | None, answers: Sequence[Answer]) -> dict[str, Any]:
    """From the server's counters, else from what it says of each answer; nothing without drafts."""
    if counted is not None and counted.drafted:
        return accepted(counted.steps, counted.drafted, counted.accepted, counted.reached)
    drafts, kept, tokens = 0, 0, 0
    for answer in answers:
        details = answer.reply.usage.get("completion_tokens_details")
        told = details if isinstance(details, Mapping) else {}
        taken = told.get("accepted_prediction_tokens") or 0
        made = taken + (told.get("rejected_prediction_tokens") or 0)
        timings = answer.reply.timings
        drafts += timings.get("draft_n") or made
        kept += timings.get("draft_n_accepted") or taken
        tokens += max(0, answer.tokens - 1)  # the prefill's own token belongs to no step
    return accepted(tokens - kept, drafts, kept, ()) if drafts else {}


def accepted(steps: int, drafts: int, kept: int, reached: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"accepted_fraction": kept / drafts}
    if steps > 0:
        found["tokens_per_step"] = 1 + kept / steps
        if reached:
            found["accepted_by_position"] = [n / steps for n in reached]
    return found


def warnings(m: Measured, thinking: bool, ignore_eos: bool) -> Iterator[str]:
    """`thinking`: whether thoughts were asked for; `ignore_eos`: answers of full length."""
    name, answers = m.name, m.answers
    ways = {answer.counted for answer in answers}
    if m.found.kind == UNKNOWN:
        yield f"{name}: not a server that is known here; whether it thinks is its own choice"
    if names := unheard(m.found.kind, any(a.ask.place == "sampled" for a in answers), ignore_eos):
        yield f"{name}: was not told {', '.join(names)}: it has values of its own"
    if "chunks" in ways:
        yield f"{name}: tells no token counts; chunks were counted; set params.tokenizer=FOLDER"
    elif ways - {"usage"}:
        yield f"{name}: tells no token counts; texts were encoded again, prompts without a template"
    if not all(answer.reply.streamed for answer in answers):
        yield f"{name}: some answers were not streamed: no first token, no decoding speed"
    if empty := sum(not answer.reply.pieces for answer in answers):
        yield f"{name}: {empty} of {len(answers)} answers were empty"
    if not thinking and any(a.reply.thought or "<think>" in a.reply.text for a in answers):
        yield f"{name}: some answers began with a thought, though none was asked for"
    cached = sum(answer.reply.cached_tokens or 0 for answer in answers)
    if cached:
        yield f"{name}: {cached} tokens of prompts were cached: ttft_ms is not of whole prompts"
    elif not m.cold and not m.nonce:
        yield f"{name}: cannot be told to forget a prompt: the second pass may find it cached"
    same = [] if m.nonce else m.same("families")
    if not all(same):
        yield f"{name}: {same.count(False)} of {len(same)} greedy texts differ in the second pass"
