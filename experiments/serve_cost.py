"""What HTTP costs: a streaming client on a kept connection against the engine called directly.

Both answer the same prompt by the same engine. They are asked in pairs, one right after the other
and each first in every second pair, and a loss is the median of what the pairs say, with the
interval in which it lies at 95 %: what else the machine does moves both of a pair, and the noise of
many pairs averages out. `first` is the time to the first token of a prompt that is read whole,
`again` of one that is known but for its last tokens; tokens per second are from the first token to
the end. The clients are a process of their own. The processor's time that this process takes for an
answer is told too: it bounds the loss where no core is free for the server's second thread.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.serve_client import Clients, clients
from experiments.serving import Serving, serving
from tr.assemble import assemble
from tr.config import Config
from tr.progress import track
from tr.report.record import Outcome, Verdict
from tr.serve.conversation import Conversation, Message
from tr.serve.events import Text
from tr.serve.job import Failed, Finished, JobEvent, Request, Settings, Update
from tr.serve.prompt import Prompter

DIRECT = "direct"
FEW = 4  # tokens of an answer of which only the first one's time counts
SECONDS = 600.0  # for one answer


@dataclass
class Options:
    contexts: list[int] = field(default_factory=lambda: [128, 768])  # tokens of the prompt, about
    pairs: int = 60
    protocols: list[str] = field(default_factory=lambda: ["chat", "messages"])
    host_gb: float = 1.0  # for conversations


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
Told = dict[str, Any]
Ask = Callable[[int], Told]  # the most tokens of the answer


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if unknown := set(o.protocols) - set(PATHS):
        raise ValueError(f"params.protocols: expected {', '.join(PATHS)}, got {min(unknown)}")
    tokens = config.max_new_tokens
    capacity = max(o.contexts) + tokens + 128
    made = assemble(config, capacity)
    figures: dict[str, Any] = {"answer_tokens": tokens, "contexts": {}}
    compared, first = 0, None
    with (
        serving(config, made, capacity, int(o.host_gb * 1e9)) as server,
        clients(server.port) as http,
    ):
        for context in o.contexts:
            ways = asks(config, server, http, context, o.protocols)
            found = {}
            for name in o.protocols:
                both = {DIRECT: ways[DIRECT], name: ways[name]}
                told = pairs(server, both, tokens, o.pairs, f"{context} tokens, {name}")
                found[name] = compare(told[DIRECT], told[name])
                wanted = told[DIRECT]["again"][0]["text"]
                for way, each in told.items():
                    compared += tokens * len(each["again"])
                    if {t["text"] for t in each["again"]} != {wanted} and first is None:
                        first = {"context": context, "way": way, "protocol": name}
            figures["contexts"][str(context)] = found
    return Outcome(figures, Verdict(first is None, compared, first), warnings=made.warnings)


def asks(
    config: Config, server: Serving, http: Clients, context: int, protocols: list[str]
) -> dict[str, Ask]:
    """Ways to the same answer, by name."""
    text = prompt(config, server, context)
    s = config.sampling
    drawn = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "seed": config.seed}
    talk = Conversation([Message("user", [text])], thinking=False)
    rendered = Prompter(server.tokenizer).render(talk)
    settings = Settings(**drawn)
    request = Request(rendered.ids, 1, settings, marks=rendered.marks, ignore_eos=True)
    body = {
        "model": "tr",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **drawn,
    }
    ways: dict[str, Ask] = {DIRECT: lambda most: ask(server, replace(request, max_tokens=most))}
    for name in protocols:
        path = PATHS[name]
        ways[name] = lambda most, path=path: answered(
            http.ask(path, {**body, "max_tokens": most}, SECONDS)
        )
    return ways


def prompt(config: Config, server: Serving, context: int) -> str:
    """The prompts' texts, one after another and again from the start, cut to the length."""
    texts = [p.text for listed in config.prompts.families().values() for p in listed]
    ids = server.tokenizer.encode("\n\n".join(texts))
    ids = (ids * (context // len(ids) + 1))[:context]
    return server.tokenizer.decode(ids).replace("\ufffd", "")


def answered(told: dict[str, Any]) -> dict[str, Any]:
    """Raises RuntimeError where a request failed: nothing else is measured here."""
    if told["status"] != 200 or not told.get("ended") or told["first"] is None:
        raise RuntimeError(f"a request was not answered: {told}")
    return told


def ask(server: Serving, request: Request) -> dict[str, Any]:
    """As a client's: the text, seconds to the first of it and to the end, tokens."""
    over, events = threading.Event(), []

    def hear(event: JobEvent) -> None:
        events.append((time.perf_counter(), event))
        if isinstance(event, Finished | Failed):
            over.set()

    start = time.perf_counter()
    server.engine.submit(request, hear)
    if not over.wait(SECONDS) or not isinstance(events[-1][1], Finished):
        raise RuntimeError(f"the engine did not answer: {events[-1:]}")
    end, finished = events[-1]
    pieces = [
        (at, piece.text)
        for at, event in events
        if isinstance(event, Update)
        for piece in event.events
        if isinstance(piece, Text) and piece.text
    ]
    return {
        "text": "".join(text for _, text in pieces),
        "first": pieces[0][0] - start,
        "seconds": end - start,
        "tokens": finished.usage.completion,
    }


def pairs(
    server: Serving, ways: dict[str, Ask], tokens: int, count: int, name: str
) -> dict[str, dict[str, list[Told]]]:
    """What both ways took in each pair; one that does not count goes first."""
    found: dict[str, dict[str, list[Told]]] = {way: {"first": [], "again": []} for way in ways}
    for n in track(range(count + 1), name, "pairs"):
        order = list(ways) if n % 2 else list(ways)[::-1]
        for kind, most in (("first", FEW), ("again", tokens)):
            for way in order:
                if kind == "first":
                    server.engine.forget()
                told = timed(ways[way], most)
                if n:
                    found[way][kind].append(told)
    return found


def timed(way: Ask, most: int) -> Told:
    """What it told, and the processor's seconds that this process took for it."""
    begin = time.process_time()
    return way(most) | {"cpu": time.process_time() - begin}


def compare(own: dict[str, list[Told]], other: dict[str, list[Told]]) -> dict[str, Any]:
    """Medians of both ways, and what the pairs say is lost by the other one."""

    def seconds(told: Told) -> float:
        return (told["seconds"] - told["first"]) / told["tokens"]

    def pairwise(kind: str, what: Callable[[Told], float]) -> list[tuple[float, float]]:
        return [(what(a), what(b)) for a, b in zip(own[kind], other[kind], strict=True)]

    def first(told: Told) -> float:
        return 1e3 * told["first"]

    found: dict[str, Any] = {}
    for way, each in ((DIRECT, own), ("http", other)):
        found[way] = {
            "first_ms": statistics.median(map(first, each["first"])),
            "again_ms": statistics.median(map(first, each["again"])),
            "tokens_per_s": 1 / statistics.median(map(seconds, each["again"])),
            "cpu_ms": 1e3 * statistics.median(t["cpu"] for t in each["again"]),
        }
    speeds = pairwise("again", seconds)
    return found | {
        "first_lost_ms": middle([b - a for a, b in pairwise("first", first)]),
        "first_lost_fraction": middle([b / a - 1 for a, b in pairwise("first", first)]),
        "again_lost_ms": middle([b - a for a, b in pairwise("again", first)]),
        "speed_lost_fraction": middle([1 - a / b for a, b in speeds]),
        "cpu_more_fraction": middle([b / a - 1 for a, b in pairwise("again", lambda t: t["cpu"])]),
    }


def middle(values: Sequence[float]) -> dict[str, float]:
    """The median, and the values between which it lies at 95 %, by their order alone."""
    ordered = sorted(values)
    skip = max(0, int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2))
    return {
        "median": statistics.median(ordered),
        "low": ordered[skip],
        "high": ordered[-1 - skip],
    }
