"""A server under load: requests one after another, then many clients of which some leave.

Four protocols, streamed and not, over a socket, to the real engine. Each request was asked once
when nothing else ran, and every answer must be that one; what a client that left had read must be
its beginning. The verdict names what else went wrong: a request that was not answered, a job that
never ended, memory that grew by more than `grown` once the load was on for a while.
"""

import random
import time
from dataclasses import dataclass, field
from typing import Any

from experiments.peak import held_bytes
from experiments.serve_client import Clients, clients
from experiments.serving import Serving, serving
from tr.assemble import assemble
from tr.config import Config
from tr.progress import stage
from tr.report.record import Outcome, Verdict

IDLE = 120.0  # seconds in which all that was left must end
ENDED = 600.0  # without one request that ended
WARM = 0.2  # share of the time after which memory must be flat
PLACES = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
TEXTS = 3
FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "found",
        "schema": {
            "type": "object",
            "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
            "required": ["kind", "n"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Options:
    sequential: int = 200
    clients: int = 32
    waiting: int = 24  # places in the queue: fewer than clients, so that some are refused
    seconds: float = 300.0
    leave: float = 0.6  # share of the clients that leave
    within: float = 4.0  # seconds in which they do
    host_mb: float = 24.0  # for conversations: few, so that they evict each other
    grown: float = 0.05  # share by which memory may grow


@dataclass(frozen=True)
class Asked:
    name: str
    path: str
    body: dict[str, Any]


@dataclass
class Tally:
    answered: int = 0
    left: int = 0
    refused: int = 0
    compared: int = 0
    first: dict[str, Any] | None = None
    failures: list[str] = field(default_factory=list)

    def hear(self, asked: Asked, quiet: dict[str, Any], told: dict[str, Any]) -> None:
        """Count one request and compare what it was told with the quiet run's answer."""
        if told["left"]:
            self.left += 1
            self._same(asked, quiet["text"][: len(told["text"])], told["text"])
        elif told["status"] in (429, 529):
            self.refused += 1
        elif told["status"] == 200 and told.get("ended") and "failed" not in told:
            self.answered += 1
            self.compared += told["tokens"]
            self._same(asked, quiet["text"], told["text"])
            self._same(asked, quiet["tokens"], told["tokens"])
        else:
            self.failures.append(f"{asked.name}: not answered: {told}")

    def _same(self, asked: Asked, expected: Any, got: Any) -> None:
        if expected != got and self.first is None:
            self.first = {"request": asked.name, "expected": expected, "got": got}


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if min(o.sequential, o.clients, o.waiting) < 1 or o.seconds <= 0:
        raise ValueError("params.sequential, .clients, .waiting and .seconds must be positive")
    capacity = 512
    made = assemble(config, capacity)
    start = resident_mib()
    with (
        serving(config, made, capacity, int(o.host_mb * 1e6), o.waiting) as server,
        clients(server.port) as http,
    ):
        asked = requests(config, config.max_new_tokens)
        quiet = [answer(http, one) for one in asked]
        again, crowd = Tally(), Tally()
        for n in range(o.sequential):
            one = n % len(asked)
            again.hear(asked[one], quiet[one], http.ask(asked[one].path, asked[one].body))
        after = resident_mib()
        warm, last, wait = under_load(o, config.seed, server, http, asked, quiet, crowd)
        stuck = rest(server)
        if not server.engine.alive:
            crowd.failures.append("the engine's thread ended")
        state = server.engine.state()
    grown = last / warm - 1
    failures = again.failures + crowd.failures
    if stuck:
        failures.append(f"{stuck} jobs did not end")
    if grown > o.grown:
        failures.append(f"memory grew by {100 * grown:.1f} %, from {warm:.0f} to {last:.0f} MiB")
    figures = {
        "sequential": {"answered": again.answered},
        "concurrent": {
            "seconds": o.seconds,
            "answered": crowd.answered,
            "left": crowd.left,
            "refused": crowd.refused,
        },
        "engine": {"served": state.served, "cancelled": state.cancelled, "failed": state.failed},
        "resident_mib": {"start": start, "sequential": after, "warm": warm, "end": last},
        "grown_fraction": grown,
        "longest_wait_s": wait,
        "stuck_jobs": stuck,
    }
    first = again.first or crowd.first
    if first is None and failures:
        first = {"failure": failures[0], "failures": len(failures)}
    compared = again.compared + crowd.compared
    return Outcome(figures, Verdict(first is None, compared, first), warnings=made.warnings)


def requests(config: Config, tokens: int) -> list[Asked]:
    """Every protocol, streamed and not, over prompts of growing length, each with its own seed."""
    texts = [p.text for listed in config.prompts.families().values() for p in listed][:TEXTS]
    found = []
    for n, text in enumerate(texts):
        text = text[: 80 * (n + 1)]
        drawn = {"model": "tr", "temperature": 0.8, "top_p": 0.95, "seed": config.seed + n}
        turns = [{"role": "user", "content": text}]
        bodies: dict[str, dict[str, Any]] = {
            "chat": {"messages": turns, "max_tokens": tokens, "frequency_penalty": 0.1},
            "completions": {"prompt": text, "max_tokens": tokens, "stop": ["zz", "\n\n"]},
            "responses": {"input": text, "max_output_tokens": tokens},
            "messages": {"messages": turns, "max_tokens": tokens, "system": "Be brief."},
        }
        for name, body in bodies.items():
            found.append(Asked(f"{name} {n}", PLACES[name], {**body, **drawn}))
            streamed = {**body, **drawn, "stream": True, "stream_options": {"include_usage": True}}
            found.append(Asked(f"{name} {n}, streamed", PLACES[name], streamed))
        demanded = {**bodies["chat"], **drawn, "max_tokens": 4 * tokens, "response_format": FORMAT}
        found.append(Asked(f"chat {n}, a schema", PLACES["chat"], demanded))
    return found


def answer(http: Clients, one: Asked) -> dict[str, Any]:
    told = http.ask(one.path, one.body)
    if told["status"] != 200 or not told.get("ended"):
        raise RuntimeError(f"{one.name}: not answered when nothing else ran: {told}")
    return told


def under_load(
    o: Options,
    seed: int,
    server: Serving,
    http: Clients,
    asked: list[Asked],
    quiet: list[dict[str, Any]],
    tally: Tally,
) -> tuple[float, float, float]:
    """Memory when the load was on for a while and at its end, in MiB; the longest wait told of."""
    draw, running = random.Random(seed), {}
    begin, warm, longest = time.monotonic(), 0.0, 0.0

    def send(number: int, after: float = 0.0) -> None:
        one = running[number] = draw.randrange(len(asked))
        leaves = draw.random() < o.leave
        leave = o.within * draw.random() if leaves else None
        http.send(number, asked[one].path, asked[one].body, leave, after)

    with stage(f"{o.clients} clients", o.seconds, "s") as told_of:
        for number in range(o.clients):
            send(number)
        while running:
            told = http.take(ENDED)
            passed = time.monotonic() - begin
            told_of.advance(min(o.seconds, passed) - told_of.done)
            one = running.pop(told["id"])
            tally.hear(asked[one], quiet[one], told)
            if (last := server.engine.state().last) is not None:
                longest = max(longest, last.queue_seconds)
            if not warm and passed >= WARM * o.seconds:
                warm = resident_mib()
            if passed < o.seconds:
                send(told["id"], after=0.5 * draw.random() if told["status"] != 200 else 0.0)
    return warm, resident_mib(), longest


def rest(server: Serving) -> int:
    """Jobs that still wait or run when nobody asks any more."""
    end = time.monotonic() + IDLE
    while True:
        state = server.engine.state()
        left = state.queued + (state.phase != "idle")
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def resident_mib() -> float:
    """What this process, the server, holds in memory."""
    return held_bytes() / 2**20
