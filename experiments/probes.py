"""Held-out trials with one right answer: a needle in a long text, and verbatim copying."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from experiments import tasks

HELDOUT = Path(__file__).parent.parent / "tr" / "assets" / "tiny" / "heldout.jsonl"


@dataclass(frozen=True)
class Trial:
    """`prompt` is a user turn; `answer` is the whole expected turn, `value` what must be in it."""

    prompt: str
    answer: str
    value: str

    def passed(self, output: str) -> bool:
        return self.value in output


def heldout_texts(kind: str, path: Path = HELDOUT) -> list[str]:
    lines = map(json.loads, path.read_text().splitlines())
    return [d["text"] for d in lines if d["kind"] == kind]


def longest_fit(tokenizer: Tokenizer, tokens: int, make: Callable[[int], str]) -> str:
    """`make(length)` of the largest length (in characters) that takes at most `tokens` tokens."""
    low, high = 0, 8 * tokens
    while high - low > 4:
        middle = (low + high) // 2
        if len(tokenizer.encode(make(middle)).ids) <= tokens:
            low = middle
        else:
            high = middle
    return make(low)


def needle_trials(
    tokenizer: Tokenizer,
    n: int = 20,
    tokens: int = 2048,
    seed: int = 0,
    depth: float | None = None,
) -> list[Trial]:
    """User turns of at most `tokens` tokens: held-out prose with one fact in it.

    `depth` is its place, from 0, the text's beginning, to 1; None: a random one for each.
    """
    texts = heldout_texts("prose")
    trials = []
    for i in range(n):
        rng = Random(f"heldout/needle/{seed}/{i}")
        subject, value = tasks.secret(rng)
        filler = "\n\n".join(rng.sample(texts, len(texts)))
        ask = rng.choice(tasks.NEEDLE_ASK).replace("{subject}", subject)
        hidden = tasks.sentence(subject, value)
        where = rng.random() if depth is None else depth

        def make(length: int, filler=filler, ask=ask, hidden=hidden, where=where) -> str:
            text = filler[:length].rsplit(" ", 1)[0]
            at = text.find(". ", int(where * len(text))) + 2
            at = at if at > 1 else 0
            return ask.replace("{text}", f"{text[:at]}{hidden} {text[at:]}")

        prompt = longest_fit(tokenizer, tokens, make)
        trials.append(Trial(prompt, hidden, value))
    return trials


def copy_trials(tokenizer: Tokenizer, n: int = 20, tokens: int = 200, seed: int = 0) -> list[Trial]:
    """User turns that quote a held-out document of just under `tokens` tokens; prose, some code."""
    trials = []
    for i in range(n):
        rng = Random(f"heldout/copy/{seed}/{i}")
        text = rng.choice(heldout_texts("code" if i % 5 == 4 else "prose"))
        start = tasks.passage(rng, text, 8 * tokens, 8 * tokens + 1)

        def make(length: int, start=start) -> str:
            return start[:length].rsplit(" ", 1)[0].rstrip()

        document = longest_fit(tokenizer, tokens, make)
        ask = rng.choice(tasks.COPY_ONCE)
        trials.append(Trial(ask.replace("{}", document), document, document))
    return trials
