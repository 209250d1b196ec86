"""What HTTP costs: a streaming client on a kept connection against the engine called directly.

Both answer the same prompts by the same engine, in turn: one round asks directly and through every
protocol, and each round begins with another of them. `first` is the time to the first token of a
prompt that is read whole, `again` of one that is known but for its last tokens; tokens per second
are from the first token to the end. The clients are a process of their own. Losses are of medians.
The processor's time that this process takes for an answer is told too: it depends less on what else
the machine does, and bounds the loss where no core is free for the server's second thread.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from experiments.serve_client import Clients, clients
from experiments.serving import Serving, serving
from tr.assemble import assemble
from tr.config import Config
from tr.report.progress import track
from tr.report.record import Outcome, Verdict
from tr.serve.conversation import Conversation, Message
from tr.serve.events import Text
from tr.serve.job import Failed, Finished, JobEvent, Request, Settings, Update
from tr.serve.prompt import Prompter

DIRECT = "direct"
SECONDS = 600.0  # for one answer


@dataclass
class Options:
    contexts: list[int] = field(default_factory=lambda: [128, 768])  # tokens of the prompt, about
    rounds: int = 9
    protocols: list[str] = field(default_factory=lambda: ["chat", "messages"])
    host_gb: float = 1.0  # for conversations


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
Ask = Callable[[], dict[str, Any]]


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
            ways = asks(config, server, http, context, tokens, o.protocols)
            found = rounds(server, ways, o.rounds, f"{context} tokens")
            figures["contexts"][str(context)] = compare(found)
            texts = {name: {told["text"] for told in each["all"]} for name, each in found.items()}
            wanted = min(texts[DIRECT])
            for name, said in texts.items():
                compared += tokens * len(found[name]["all"])
                if said != {wanted} and first is None:
                    first = {"context": context, "way": name, "texts": len(said)}
    return Outcome(figures, Verdict(first is None, compared, first), warnings=made.warnings)


def asks(
    config: Config, server: Serving, http: Clients, context: int, tokens: int, protocols: list[str]
) -> dict[str, Ask]:
    """Ways to the same answer, by name."""
    text = prompt(config, server, context)
    s = config.sampling
    drawn = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "seed": config.seed}
    talk = Conversation([Message("user", [text])], thinking=False)
    rendered = Prompter(server.tokenizer).render(talk)
    settings = Settings(**drawn)
    request = Request(rendered.ids, tokens, settings, marks=rendered.marks, ignore_eos=True)
    body = {
        "model": "tr",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **drawn,
    }
    ways: dict[str, Ask] = {DIRECT: lambda: ask(server, request)}
    for name in protocols:
        ways[name] = lambda path=PATHS[name]: answered(http.ask(path, body, SECONDS))
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


def rounds(
    server: Serving, ways: dict[str, Ask], count: int, name: str
) -> dict[str, dict[str, list]]:
    """What every way took; a round that does not count goes first."""
    found: dict[str, dict[str, list]] = {n: {"first": [], "again": [], "all": []} for n in ways}
    for n in track(range(count + 1), name, "rounds"):
        order = list(ways)
        for way in order[n % len(order) :] + order[: n % len(order)]:
            server.engine.forget()
            each = {"first": timed(ways[way]), "again": timed(ways[way])}
            for kind, told in each.items():
                if n:
                    found[way][kind].append(told)
                    found[way]["all"].append(told)
    return found


def timed(way: Ask) -> dict[str, Any]:
    """What it told, and the processor's seconds that this process took for it."""
    begin = time.process_time()
    return way() | {"cpu": time.process_time() - begin}


def compare(found: dict[str, dict[str, list]]) -> dict[str, dict[str, float]]:
    """Medians by way, and what is lost against the direct one."""
    medians = {}
    for way, each in found.items():
        speeds = [t["tokens"] / (t["seconds"] - t["first"]) for t in each["all"]]
        medians[way] = {
            "first_ms": 1e3 * statistics.median(t["first"] for t in each["first"]),
            "again_ms": 1e3 * statistics.median(t["first"] for t in each["again"]),
            "tokens_per_s": statistics.median(speeds),
            "again_cpu_ms": 1e3 * statistics.median(t["cpu"] for t in each["again"]),
        }
    own = medians[DIRECT]
    for way, m in medians.items():
        if way != DIRECT:
            m["first_lost_ms"] = m["first_ms"] - own["first_ms"]
            m["again_lost_ms"] = m["again_ms"] - own["again_ms"]
            m["first_lost_fraction"] = m["first_ms"] / own["first_ms"] - 1
            m["speed_lost_fraction"] = 1 - m["tokens_per_s"] / own["tokens_per_s"]
            m["cpu_more_fraction"] = m["again_cpu_ms"] / own["again_cpu_ms"] - 1
    return medians
