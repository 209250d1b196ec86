"""What evaluations share: who answers, what is kept of each answer, and the figures of a set.

Answers come from the engine in this process or, with `params.server`, from any OpenAI-compatible
server. Each is written to items.jsonl beside the record as it comes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from experiments import rival_servers
from experiments.openai_stream import Server, models, stream
from experiments.spec_exact import Judge
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config, Sampling
from tr.decode.generate import answer as speak
from tr.decode.stream import Counts, warnings
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.evals import intervals
from tr.evals.listing import Listing
from tr.progress import stage
from tr.report.record import Outcome
from tr.serve.conversation import Conversation, Message
from tr.serve.events import Event, Reasoning, Text
from tr.serve.prompt import Prompter
from tr.serve.reader import Reader

T = TypeVar("T")
Score = Mapping[str, Any]
CUT = ("length", "window")  # what ends an answer that was not done
END_OF_THOUGHT = "</think>"


@dataclass
class Options:
    path: str = ""  # a JSONL file of problems, gzipped or not; empty: our own ones
    limit: int = 0  # of problems, the first ones of each set; 0: all
    chat: bool = True  # a user's turn in the model's template; false: plain text that goes on
    thinking: bool = False  # let chat answers begin with a thought
    verify: int = 2  # answers of each set that raw decoding writes as well
    server: str = ""  # http://HOST:PORT of an OpenAI-compatible server; empty: this process
    model: str = ""  # of the server; empty: the first one that it lists
    key_env: str = ""  # the environment variable that holds the server's key
    patience: float = 600.0  # seconds without a byte of the server's


@dataclass(frozen=True)
class Ask:
    """`prompt`: turns, each a role and a text, or a plain text."""

    id: str
    prompt: str | Sequence[tuple[str, str]]
    stops: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.prompt).encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """`seconds`: prompt and all; those of decoding are from the first token to the last."""

    text: str
    thought: str
    tokens: int
    truncated: bool
    seconds: float
    decode_seconds: float
    decoded: int  # tokens, in that time
    steps: int = 0  # 0: not known


class Answerer(Protocol):
    judge: Judge | None

    def ask(self, asked: Ask, sample: int, verify: bool) -> Answer: ...

    def figures(self) -> dict[str, Any]: ...

    def warnings(self) -> tuple[str, ...]: ...


class Engine:
    """The engine in this process, with the run's draft."""

    def __init__(self, config: Config, o: Options) -> None:
        self.config, self.options = config, o
        self.made: Assembly = assemble(config)
        self.draft = self.made.draft(config)
        self.prompter = Prompter(self.made.tokenizer)
        self.capacity = min(config.kv.capacity_tokens, self.made.shape.max_positions)
        self.judge = Judge() if o.verify and self.draft.name != Raw().name else None
        self.broken = 0

    def ask(self, asked: Ask, sample: int, verify: bool) -> Answer:
        ids, thinking = self.read(asked)
        counts, events = self.write(asked, ids, thinking, sample, self.draft)
        self.broken += counts.broken
        if verify and self.judge is not None:
            raw = self.write(asked, ids, thinking, sample, Raw())[0].tokens
            self.judge.hear(raw, counts, {"id": asked.id, "sample": sample})
        return Answer(
            "".join(event.text for event in events if isinstance(event, Text)),
            "".join(event.text for event in events if isinstance(event, Reasoning)),
            len(counts.tokens),
            counts.stop in CUT,
            counts.prefill_seconds + counts.seconds,
            counts.seconds,
            sum(counts.kept),
            counts.steps,
        )

    def read(self, asked: Ask) -> tuple[Sequence[int], bool]:
        """Ids of a prompt, and whether its answer begins inside a thought."""
        if isinstance(asked.prompt, str):
            ids, thinking = self.made.tokenizer.encode(asked.prompt), False
        else:
            turns = [Message(role, [text]) for role, text in asked.prompt]
            told = self.prompter.render(Conversation(turns, thinking=self.options.thinking))
            ids, thinking = told.ids, told.thinking
        if len(ids) >= self.capacity:
            raise ValueError(
                f"{asked.id}: its prompt has {len(ids)} tokens, the window {self.capacity}; raise"
                " kv.capacity_tokens"
            )
        return ids, thinking

    def write(
        self, asked: Ask, ids: Sequence[int], thinking: bool, sample: int, draft: Draft
    ) -> tuple[Counts, Sequence[Event]]:
        made, counts = self.made, Counts()
        raw = isinstance(asked.prompt, str)
        reader = Reader(made.tokenizer, thinking=thinking, stops=asked.stops, raw=raw)
        sampling = sampling_of(replace(self.config, sampling=drawn(self.config, sample)))
        own = sampling, self.config.max_new_tokens, made.eos, self.capacity, counts, reader
        for _ in speak(made.model, draft, ids, *own):
            pass
        return counts, reader.finish(counts.stop in CUT)

    def figures(self) -> dict[str, Any]:
        return {}

    def warnings(self) -> tuple[str, ...]:
        return self.made.warnings + warnings(self.broken)


class Remote:
    """A server of another process, asked in the words that it knows.

    Where it can be told to, it forgets what it read, so that no answer depends on those before.
    """

    judge: Judge | None = None

    def __init__(self, config: Config, o: Options) -> None:
        self.config, self.options = config, o
        self.server = Server(o.server, rival_servers.key_of(o.key_env), o.patience)
        self.name = o.model or next(iter(models(self.server)), "")
        self.found = rival_servers.recognise(self.server)
        self.guessed = 0

    def ask(self, asked: Ask, sample: int, verify: bool) -> Answer:
        prompt = asked.prompt
        if not isinstance(prompt, str):
            prompt = [{"role": role, "content": text} for role, text in prompt]
        settings = rival_servers.request(
            self.server,
            self.found.kind,
            self.name,
            drawn(self.config, sample),
            self.config.max_new_tokens,
            self.options.thinking,
            ignore_eos=False,
        )
        if asked.stops:
            settings["stop"] = list(asked.stops)
        reply = stream(self.server, prompt, settings)
        self.guessed += reply.tokens is None
        tokens = len(reply.pieces) if reply.tokens is None else reply.tokens
        thought, text = reply.thought, reply.text
        if self.options.thinking and END_OF_THOUGHT in text:  # a server that leaves it in
            thought, _, text = text.rpartition(END_OF_THOUGHT)
            text = text.lstrip("\n")
        decode = (reply.last or 0.0) - (reply.first or 0.0)
        return Answer(
            text,
            thought,
            tokens,
            reply.reason == "length",
            reply.seconds,
            decode,
            max(0, tokens - 1) if decode else 0,
        )

    def figures(self) -> dict[str, Any]:
        return {"server": {"kind": self.found.kind, "model": self.name, **self.found.facts}}

    def warnings(self) -> tuple[str, ...]:
        if not self.guessed:
            return ()
        return (f"{self.guessed} answers: tokens are pieces of the stream, the server tells none",)


def drawn(config: Config, sample: int) -> Sampling:
    """How tokens of the n-th sample are drawn."""
    return replace(config.sampling, seed=config.sampling.seed + sample)


@dataclass
class Evaluation:
    """`taken`: the answers of every set."""

    config: Config
    options: Options
    by: Answerer
    items: TextIO
    taken: dict[str, list[Answer]] = field(default_factory=dict)

    def ask(
        self, name: str, asks: Sequence[Ask], score: Callable[[int, str], Score], samples: int = 1
    ) -> list[list[Score]]:
        """What `score` says of every sample of each answer, which it gets with the ask's place."""
        if samples > 1 and not self.config.sampling.temperature:
            raise ValueError("params.samples: greedy samples are alike; choose sampling=sampled")
        found: list[list[Score]] = []
        taken = self.taken.setdefault(name, [])
        with stage(name, len(asks) * samples, "answers") as told:
            for place, asked in enumerate(asks):
                found.append([])
                for sample in range(samples):
                    verify = len(taken) < self.options.verify
                    answer = self.by.ask(asked, sample, verify)
                    taken.append(answer)
                    found[-1].append(score(place, answer.text))
                    self._write(name, asked, sample, answer, found[-1][-1])
                    told.advance()
        return found

    def _write(self, name: str, asked: Ask, sample: int, answer: Answer, score: Score) -> None:
        item = {"set": name, "id": asked.id, "sample": sample, "prompt_sha256": asked.sha256}
        line = json.dumps({**item, **asdict(answer), "score": score}, ensure_ascii=False)
        self.items.write(line + "\n")
        self.items.flush()

    def figures(self, name: str, listing: Listing[Any], problems: int) -> dict[str, Any]:
        """Of a set: its size and hash, what was asked of it, tokens and time."""
        taken = self.taken[name]
        decode, steps = sum(a.decode_seconds for a in taken), sum(a.steps for a in taken)
        decoded, seconds = sum(a.decoded for a in taken), sum(a.seconds for a in taken)
        tokens = sum(a.tokens for a in taken)
        return {
            "problems": problems,
            "set_problems": len(listing.problems),
            "set_sha256": listing.sha256,
            "answers": len(taken),
            "truncated": sum(a.truncated for a in taken),
            "tokens": tokens,
            "tokens_per_s": decoded / decode if decode else None,
            "answer_tokens_per_s": tokens / seconds if seconds else None,
            "tokens_per_step": decoded / steps if steps else None,
        }

    def outcome(self, sets: Mapping[str, Any], said: Sequence[str] = (), **more: Any) -> Outcome:
        judge = self.by.judge
        warned = [*self.by.warnings(), *said]
        for name, taken in self.taken.items():
            if cut := sum(a.truncated for a in taken):
                warned.append(f"{name}: {cut} of {len(taken)} answers were cut; see max_new_tokens")
        verdict = judge.verdict if judge is not None and judge.compared else None
        return Outcome({"sets": sets, **more, **self.by.figures()}, verdict, False, tuple(warned))


@contextmanager
def evaluation(config: Config, o: Options) -> Iterator[Evaluation]:
    if o.limit < 0 or o.verify < 0 or o.patience <= 0:
        raise ValueError("params.limit and .verify must be 0 or more, params.patience positive")
    if o.thinking and not o.chat:
        raise ValueError("params.thinking=true needs a chat; set params.chat=true")
    by = Remote(config, o) if o.server else Engine(config, o)
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "items.jsonl", "w", encoding="utf-8") as items:
        yield Evaluation(config, o, by, items)


def chosen(o: Options, load: Callable[[str], Listing[T]]) -> dict[str, Listing[T]]:
    """The set of `params.path` under its file's name; none without a path."""
    return {Path(o.path).name.partition(".")[0]: load(o.path)} if o.path else {}


def first(o: Options, listing: Listing[T]) -> Sequence[T]:
    return listing.problems[: o.limit or None]


def share(name: str, values: Sequence[float], seed: int) -> dict[str, float | None]:
    """A mean of values in 0 .. 1 with its 95 % interval."""
    low, high = intervals.mean(values, seed) or (None, None)
    return {name: sum(values) / len(values), f"{name}_low": low, f"{name}_high": high}
