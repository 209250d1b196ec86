"""The same prompts against any OpenAI-compatible server, measured where a client stands.

Two passes over every family of prompts, greedy and, where `sampling` is not greedy, as it says; a
chat prompt goes to chat completions with thinking off, a plain one to completions. `ttft_ms` is the
median from the request to the first text; `decode_tokens_per_s` counts from the second token on,
`tokens_per_s` from the request to the end, and `prompt_tokens_per_s` what was read of the prompts
until the first text. Before each request the server is told to forget the prompt, where it can be.
Greedy texts of both passes are compared: a server that does not repeat itself is told of.

Without `params.server` our own server is started in a process of its own on what the run is
configured with, and the verdict compares its texts with the same engine's in this process.
"""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from experiments import rival_servers
from experiments.measure import encode
from experiments.openai_stream import Reply, Server, models, stream
from experiments.rival_figures import (
    PASSES,
    PLACES,
    Answer,
    Ask,
    Measured,
    figures_of,
    rate,
    warnings,
)
from experiments.rival_servers import Drafted
from experiments.serving import serving, words
from tr.assemble import Assembly, assemble, sampling_of
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import Config, Sampling
from tr.decode.generate import generate
from tr.progress import stage, track
from tr.report.record import Outcome, Verdict

HOST_BYTES = 1 << 30  # for the conversations of our own server


@dataclass
class Options:
    server: str = ""  # http://HOST:PORT; empty: our own, started for this run
    name: str = ""  # in the record; empty: which server it is
    model: str = ""  # empty: the first one that the server lists
    key_env: str = ""  # the environment variable that holds the server's key
    flags: str = ""  # how it was started: servers tell little of that
    prompts: int = 3  # of each family; 0: all
    warmup: int = 1  # requests to each path before the first pass
    thinking: bool = False  # let chat answers begin with a thought
    ignore_eos: bool = False  # write max_new_tokens tokens, where the server can be told to
    nonce: bool = False  # begin each prompt with a number of its own: no cache knows it
    tokenizer: str = ""  # the model's folder: counts tokens where the server does not
    patience: float = 600.0  # seconds without a byte


@dataclass(frozen=True)
class Client:
    """Asks one server in its own words, and counts what it answers."""

    config: Config
    options: Options
    server: Server
    kind: str
    model: str
    tokenizer: Tokenizer | None

    def ask(self, ask: Ask, nonce: str = "") -> Answer:
        o = self.options
        settings = rival_servers.request(
            self.server,
            self.kind,
            self.model,
            drawn(self.config, ask.place),
            self.config.max_new_tokens,
            o.thinking,
            o.ignore_eos,
        )
        reply = stream(self.server, ask.content(nonce), settings)
        return Answer(ask, reply, *self.counted(reply, nonce + ask.prompt.text))

    def counted(self, reply: Reply, prompt: str) -> tuple[int, int | None, str]:
        """Tokens of the answer and of the prompt, and what counted them."""
        if reply.tokens is not None:
            return reply.tokens, reply.prompt_tokens, "usage"
        for name, count in (
            ("the server's tokenizer", self._by_server),
            ("params.tokenizer", self._by_tokenizer),
        ):
            if (tokens := count(reply.said)) is not None:
                return tokens, count(prompt), name
        return len(reply.pieces), None, "chunks"

    def _by_server(self, text: str) -> int | None:
        return rival_servers.count(self.server, self.kind, self.model, text)

    def _by_tokenizer(self, text: str) -> int | None:
        return None if self.tokenizer is None else len(self.tokenizer.encode(text))


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.prompts < 0 or o.warmup < 0 or o.patience <= 0:
        raise ValueError("params.prompts and .warmup must be 0 or more, params.patience positive")
    if config.sampling.logit_bias:
        raise ValueError("sampling.logit_bias: its ids are one tokenizer's; leave it out")
    asked = asks(config, o.prompts)
    if o.server:
        server = Server(o.server, rival_servers.key_of(o.key_env), o.patience)
        m = measure(config, o, server, asked)
        return Outcome(figures_of(m), warnings=tuple(warnings(m, o.thinking, o.ignore_eos)))
    for name in ("nonce", "thinking"):
        if getattr(o, name):
            raise ValueError(f"params.{name} needs params.server: without, texts are compared")
    with own(config) as url:
        m = measure(config, o, Server(url, patience=o.patience), asked)
    made = assemble(config)
    figures, texts = direct(config, made, asked, o.ignore_eos)
    said = (*made.warnings, *warnings(m, o.thinking, o.ignore_eos))
    return Outcome({**figures_of(m), "direct": figures}, compare(m, texts), warnings=said)


def asks(config: Config, prompts: int) -> list[Ask]:
    places = PLACES if config.sampling.temperature else ["families"]
    return [
        Ask(family, number, prompt, place)
        for place in places
        for family, listed in config.prompts.families().items()
        for number, prompt in enumerate(listed[: prompts or None])
    ]


def drawn(config: Config, place: str) -> Sampling:
    """Greedy, or as configured; a record's `seed` is the seed of both."""
    chosen = Sampling(temperature=0) if place == "families" else config.sampling
    return replace(chosen, seed=config.seed)


def measure(config: Config, o: Options, server: Server, asked: Sequence[Ask]) -> Measured:
    """Warm the server up, then ask everything PASSES times, family by family."""
    listed = models(server)
    found = rival_servers.recognise(server)
    model = o.model or next(iter(listed), "")
    tokenizer = load_tokenizer(o.tokenizer) if o.tokenizer else None
    client = Client(config, o, server, found.kind, model, tokenizer)
    cold = rival_servers.forget(server, found.kind) is not None
    m = Measured(o.name or found.kind, found, model, o.nonce, cold)
    kinds = {ask.prompt.kind: ask for ask in reversed(asked)}
    for ask in kinds.values():
        for n in range(o.warmup):
            client.ask(ask, f"Warm-up {n}. ")
    groups: dict[tuple[str, str], list[Ask]] = {}
    for ask in asked:
        groups.setdefault((ask.place, ask.family), []).append(ask)
    for turn in range(PASSES):
        m.passes.append([])
        with stage(f"pass {turn + 1}", len(asked), "prompts") as asking:
            for group, members in groups.items():
                before = rival_servers.drafted(server, found.kind)
                for ask in members:
                    nonce = f"{os.urandom(6).hex()}. " if o.nonce else ""
                    m.passes[-1].append(client.ask(ask, nonce))
                    asking.advance()
                after = rival_servers.drafted(server, found.kind)
                if before and after:
                    m.drafted[group] = m.drafted.get(group, Drafted()).plus(after.since(before))
    if o.flags:
        m.told["flags"] = o.flags
    m.told |= rival_servers.own_figures(
        server, found.kind, model, asked[0].prompt.text, config.max_new_tokens
    )
    return m


@contextmanager
def own(config: Config) -> Iterator[str]:
    """Our server in a process of its own, on a free port; its address."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(config, torch.get_num_threads(), there))
    process.start()
    there.close()
    try:
        try:
            port = here.recv()
        except EOFError:
            raise RuntimeError("our server did not start") from None
        if isinstance(port, ValueError | FileNotFoundError):
            raise ValueError(str(port)) from port
        yield f"http://127.0.0.1:{port}"
    finally:
        here.close()  # which ends it
        process.join(60)
        if process.is_alive():
            process.kill()


def serve(config: Config, threads: int, pipe: Connection) -> None:
    """Until the pipe's other end closes."""
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    try:
        made = assemble(config)
        with serving(config, made, capacity(config, made), HOST_BYTES) as server:
            pipe.send(server.port)
            with suppress(EOFError, OSError):
                pipe.recv()
    except (ValueError, FileNotFoundError) as error:
        pipe.send(error)


def capacity(config: Config, made: Assembly) -> int:
    return min(config.kv.capacity_tokens, made.shape.max_positions)


def direct(
    config: Config, made: Assembly, asked: Sequence[Ask], ignore_eos: bool
) -> tuple[dict[str, Any], list[str]]:
    """Figures of the engine in this process, and its text for each of `asked`."""
    tokenizer, draft, room = words(made), made.draft(config), capacity(config, made)
    eos = () if ignore_eos else made.eos or tokenizer.eos
    totals: dict[tuple[str, str], list[float]] = {}
    texts = []
    for n, ask in enumerate(track([asked[0], *asked], "direct", "prompts")):
        s = sampling_of(replace(config, sampling=drawn(config, ask.place)))
        ids = encode(tokenizer, ask.prompt)
        counts = generate(made.model, draft, ids, s, config.max_new_tokens, eos, room)
        if n == 0:  # that was the warm-up
            continue
        written = [i for i in counts.tokens if i not in eos]
        texts.append(tokenizer.decode(written, special=ask.prompt.kind == "plain"))
        told = (len(counts.tokens) - 1, counts.seconds, len(ids), counts.prefill_seconds)
        sums = totals.setdefault((ask.place, ask.family), [0.0] * len(told))
        for i, value in enumerate(told):
            sums[i] += value
    figures: dict[str, Any] = {}
    for (place, family), (decoded, seconds, read, prefill) in totals.items():
        figures.setdefault(place, {})[family] = {
            "decode_tokens_per_s": rate([(decoded, seconds)]),
            "prompt_tokens_per_s": rate([(read, prefill)]),
        }
    return figures, texts


def compare(m: Measured, texts: Sequence[str]) -> Verdict:
    """Whether every text of every pass is the one that the engine wrote in this process."""
    compared, first = 0, None
    for turn, answers in enumerate(m.passes):
        for answer, text in zip(answers, texts, strict=True):
            compared += answer.tokens
            if answer.said != text and first is None:
                ask = answer.ask
                at = len(os.path.commonprefix([answer.said, text]))
                first = {
                    "family": ask.family,
                    "prompt": ask.number,
                    "mode": PLACES[ask.place],
                    "pass": turn + 1,
                    "position": at,
                    "server": answer.said[at : at + 20],
                    "direct": text[at : at + 20],
                }
    return Verdict(first is None, compared, first)
