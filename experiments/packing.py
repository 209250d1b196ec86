"""One flat stream of training tokens: natural documents and rendered tasks, seeded.

Each document ends in <|endoftext|>. Natural text is encoded without the added tokens, so nothing
in it can become a control token. The stream depends on the seed, not on the process count.
"""

import json
import lzma
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from experiments import tasks

MIXTURE: Mapping[str, float] = {
    "prose": 0.32, "code": 0.22, "chinese": 0.02,
    "math": 0.05, "copy": 0.25, "needle": 0.07, "chat": 0.025, "tool": 0.025, "essay": 0.01,
    "code_task": 0.01,
}  # fmt: skip
NATURAL = ("prose", "code", "chinese")
CHUNK = 64  # tasks per unit of work
LONGEST = 8_192  # tokens of a task
FILLER = 16_000  # characters: nearly 8,192 tokens of prose

Ids = np.ndarray  # uint16 [tokens]
Mask = np.ndarray  # bool [tokens]
Document = dict[str, str]


def read_corpus(path: str | Path) -> list[Document]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def without_added(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, blind to its added tokens: control strings encode as plain text."""
    spec = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))


def has_added(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a text contains the characters of an added token."""
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    return lambda text: any(a in text for a in added)


@dataclass(frozen=True)
class Encoder:
    """All that one worker needs: the texts of the training split by kind, and the tokenizer."""

    texts: dict[str, list[str]]
    tokenizer: Tokenizer
    plain: Tokenizer
    template: str  # source of the chat template
    end: int
    control: Callable[[str], bool]

    @classmethod
    def load(cls, corpus: str | Path, tokenizer: str | Path, split: str = "train") -> "Encoder":
        """`tokenizer` is tokenizer.json, with chat_template.jinja in the same folder."""
        texts: dict[str, list[str]] = {kind: [] for kind in NATURAL}
        for document in read_corpus(corpus):
            if document["split"] == split:
                texts[document["kind"]].append(document["text"])
        whole = Tokenizer.from_file(str(tokenizer))
        end = whole.token_to_id("<|endoftext|>")
        template = (Path(tokenizer).parent / "chat_template.jinja").read_text()
        return cls(texts, whole, without_added(whole), template, end, has_added(whole))

    def natural(self, kind: str, start: int, stop: int) -> list[Ids]:
        """Ids of documents start..stop of a kind, each with its end token."""
        encodings = self.plain.encode_batch_fast(self.texts[kind][start:stop])
        return [np.array([*e.ids, self.end], np.uint16) for e in encodings]

    def chat(self, chat: tasks.Chat, **options: Any) -> tuple[Ids, Mask]:
        """Ids and response mask of a rendered chat, pieces encoded one by one."""
        pieces = tasks.render(chat, self.template, **options)
        encodings = self.tokenizer.encode_batch_fast([text for text, _ in pieces])
        ids = np.array([i for e in encodings for i in e.ids] + [self.end], np.uint16)
        lengths = [len(e.ids) for e in encodings] + [1]
        return ids, np.repeat([r for _, r in pieces] + [False], lengths)

    def text(self, rng: Random, kind: str) -> str:
        """A document without control strings."""
        while True:
            text = rng.choice(self.texts[kind])
            if not self.control(text):
                return text

    def filler(self, rng: Random, length: int) -> str:
        parts: list[str] = []
        while sum(map(len, parts)) < length + 2_000:
            parts.append(self.text(rng, "prose"))
        return "\n\n".join(parts)

    def task(self, kind: str, rng: Random) -> tasks.Chat:
        if kind == "math":
            return tasks.math_problem(rng)
        if kind == "chat":
            return tasks.chat_turn(rng)
        if kind == "tool":
            return tasks.tool_call(rng)
        if kind == "essay":
            return tasks.essay(rng, self.text(rng, "prose"))
        if kind == "code_task":
            return tasks.code_task(rng, self.text(rng, "code"))
        if kind == "needle":
            length = int(400 * (FILLER / 400) ** rng.random())
            return tasks.needle(rng, self.filler(rng, length), length)
        if kind == "copy":
            source = rng.choices(NATURAL, (0.7, 0.25, 0.05))[0]
            longest = 7_000 if rng.random() < 0.03 else 1_200
            if source == "chinese":
                return tasks.copy_document(rng, self.text(rng, source), 60, 250)
            return tasks.copy_document(rng, self.text(rng, source), longest=longest)
        raise ValueError(f"unknown task {kind!r}")

    def chunk(self, kind: str, seed: int, index: int) -> list[tuple[Ids, Mask]]:
        """CHUNK tasks of a kind; a few with thinking on; those longer than LONGEST are left out."""
        rng = Random(f"{seed}/{kind}/{index}")
        out = []
        for _ in range(CHUNK):
            chat = self.task(kind, rng)
            options: dict[str, Any] = {}
            if rng.random() < 0.06:  # thinking on, with nothing thought
                effort = rng.choice(("xhigh", "medium", "low"))
                options = {"enable_thinking": True, "reasoning_effort": effort}
            ids, mask = self.chat(chat, **options)
            if len(ids) <= LONGEST:
                out.append((ids, mask))
        return out


def build_tokens(
    corpus_path: str | Path,
    tokenizer_path: str | Path,
    seed: int,
    tokens: int,
    mixture: Mapping[str, float] = MIXTURE,
    processes: int = 0,
) -> tuple[Ids, Mask]:
    """uint16 ids [tokens] and bool response mask [tokens] of shuffled, whole documents.

    `mixture` gives each kind's share of the tokens; a kind with fewer natural tokens than its
    share comes again, in another order. `processes` 0 takes every core.
    """
    unknown = set(mixture) - set(MIXTURE)
    if unknown or abs(sum(mixture.values()) - 1) > 1e-6:
        shares = ", ".join(f"{k} {v:g}" for k, v in mixture.items())
        raise ValueError(f"shares must sum to 1 over {', '.join(MIXTURE)}; got {shares}")
    count = processes or os.cpu_count() or 1
    documents: list[tuple[Ids, Mask | None]] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _start, (str(corpus_path), str(tokenizer_path))) as pool:
        sizes = pool.apply(_sizes)
        for kind, share in mixture.items():
            if not share:
                continue
            budget = int(tokens * share) + 1
            if kind in NATURAL:
                documents += _natural(pool, kind, sizes[kind], seed, budget)
            else:
                documents += _tasks(pool, kind, seed, budget, count)
    Random(f"{seed}/order").shuffle(documents)
    ids = np.concatenate([d for d, _ in documents])[:tokens]
    mask = np.concatenate([np.zeros(len(d), bool) if m is None else m for d, m in documents])
    return ids, mask[:tokens]


def _natural(pool: Any, kind: str, size: int, seed: int, budget: int) -> Iterator[tuple[Ids, None]]:
    """Documents in seeded order, epoch after epoch, the last one cut at the budget."""
    starts = range(0, size, CHUNK)
    batches = pool.starmap(_encode, [(kind, s, s + CHUNK) for s in starts], chunksize=1)
    encoded = [d for batch in batches for d in batch]
    if not encoded and budget > 1:
        raise ValueError(f"the corpus has no {kind} documents; set its share to 0")
    epoch = 0
    while budget > 0:
        order = list(range(len(encoded)))
        Random(f"{seed}/{kind}/{epoch}").shuffle(order)
        for index in order:
            if budget <= 0:
                break
            yield encoded[index][:budget], None
            budget -= len(encoded[index])
        epoch += 1


def _tasks(pool: Any, kind: str, seed: int, budget: int, ahead: int) -> Iterator[tuple[Ids, Mask]]:
    start = 0
    while budget > 0:
        work = [(kind, seed, start + i) for i in range(2 * ahead)]
        start += len(work)
        for chunk in pool.starmap(_chunk, work, chunksize=1):
            for ids, mask in chunk:
                if budget <= 0:
                    return
                yield ids[:budget], mask[:budget]
                budget -= len(ids)


_ENCODER: list[Encoder] = []  # one worker's own


def _start(corpus: str, tokenizer: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _ENCODER[:] = [Encoder.load(corpus, tokenizer)]


def _sizes() -> dict[str, int]:
    return {kind: len(texts) for kind, texts in _ENCODER[0].texts.items()}


def _encode(kind: str, start: int, stop: int) -> Sequence[Ids]:
    return _ENCODER[0].natural(kind, start, stop)


def _chunk(kind: str, seed: int, index: int) -> list[tuple[Ids, Mask]]:
    return _ENCODER[0].chunk(kind, seed, index)
