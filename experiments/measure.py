"""Decoding prompts with a strategy and counting: what dflash2_verify and its relatives share."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tr.assemble import Assembly
from tr.checkpoint.tokenizer import Tokenizer
from tr.config import Config, Prompt
from tr.decode.generate import generate
from tr.decode.stream import Counts
from tr.drafts.base import Draft
from tr.model.sampling import Sampling

LOOP = 16  # a repeated sequence of this many tokens counts as a loop
LOOPS_COUNT = ("copy",)  # families whose text repeats by design
RANDOM_PROMPTS = 3  # of random ids, where all are asked for
RANDOM_TOKENS = 128  # of the first of them; each has one more than the one before


def encode(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Ids of a prompt: a user's turn opened for a direct answer, or plain text."""
    if prompt.kind == "plain":
        return tokenizer.encode(prompt.text)
    message = {"role": "user", "content": prompt.text}
    return tokenizer.chat([message], enable_thinking=False)


def prompt_ids(config: Config, made: Assembly, prompts: int) -> dict[str, list[list[int]]]:
    """The first `prompts` (0: all) of each family as ids; random ids for a random model."""
    if made.text is None:
        draw = random.Random(config.seed)
        count = prompts or RANDOM_PROMPTS
        lengths = [RANDOM_TOKENS + n for n in range(count)]
        return {"random": [draw.choices(range(made.model.ids), k=n) for n in lengths]}
    return {
        name: [encode(made.tokenizer, p) for p in listed[: prompts or None]]
        for name, listed in config.prompts.families().items()
    }


def joined_ids(config: Config, made: Assembly) -> list[int]:
    """The prompts of every family, one after another, as one text."""
    families = config.prompts.families().values()
    return [i for prompts in families for p in prompts for i in encode(made.tokenizer, p)]


def loop_start(prompt: Sequence[int], output: Sequence[int]) -> int:
    """How many tokens of `output` come before the first 16-gram that occurred earlier is complete.

    The text is prompt and output; all of `output` where nothing repeats.
    """
    text = [*prompt, *output]
    seen = set()
    for end in range(LOOP, len(text) + 1):
        gram = tuple(text[end - LOOP : end])
        if gram in seen and end > len(prompt):
            return max(0, end - 1 - len(prompt))
        seen.add(gram)
    return len(output)


@dataclass
class Tally:
    """Sums over the prompts of one family; steps count while they lie before a loop."""

    steps: int = 0
    tokens: int = 0  # that counted steps put into the text
    made: int = 0  # tokens of all steps
    looped: int = 0  # of them, after a loop's start
    seconds: float = 0.0
    reached: tuple[int, ...] = ()  # counted steps that accepted at least 1, 2, ... drafts
    rows: int = 0  # of counted steps
    refused: int = 0  # places of all steps for which there was no draft
    broken: int = 0  # of them, those where the draft's logits were no finite numbers

    def add(self, counts: Counts, limit: int) -> None:
        """`limit`: how many of the run's tokens come before a loop."""
        place = 1  # the prefill's own token belongs to no step
        reached = [*self.reached, *[0] * (max(counts.proposed, default=0) - len(self.reached))]
        each = zip(counts.kept, counts.accepted, counts.proposed, strict=True)
        for kept, accepted, proposed in each:
            if place + kept <= limit:
                self.steps += 1
                self.tokens += kept
                self.rows += proposed + 1
                for i in range(accepted):
                    reached[i] += 1
            else:
                self.looped += kept - max(0, limit - place)
            place += kept
        self.reached = tuple(reached)
        self.made += sum(counts.kept)
        self.seconds += counts.seconds
        self.refused += sum(counts.refused)
        self.broken += counts.broken

    def join(self, other: "Tally") -> None:
        """Take in what another one counted."""
        for name in ("steps", "tokens", "made", "looped", "seconds", "rows", "refused", "broken"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        both = itertools.zip_longest(self.reached, other.reached, fillvalue=0)
        self.reached = tuple(a + b for a, b in both)

    @property
    def tokens_per_step(self) -> float | None:
        return self.tokens / self.steps if self.steps else None

    @property
    def tokens_per_s(self) -> float | None:
        return self.made / self.seconds if self.seconds else None

    @property
    def accepted_by_position(self) -> list[float]:
        return [n / self.steps for n in self.reached] if self.steps else []


@dataclass(frozen=True)
class Job:
    """One way to decode a prompt to at most `tokens` tokens."""

    assembly: Assembly
    draft: Draft
    sampling: Sampling
    tokens: int
    capacity: int

    def run(self, prompt: Sequence[int], draft: Draft | None = None) -> Counts:
        """Decode `prompt` with this job's draft, or with another one."""
        a, s = self.assembly, self.sampling
        return generate(a.model, draft or self.draft, prompt, s, self.tokens, a.eos, self.capacity)


def tally(
    job: Job,
    prompts: Sequence[list[int]],
    loops: bool,
    advance: Callable[[int], None],
    drafts: Sequence[Draft] = (),
) -> tuple[Tally, list[list[int]]]:
    """Decode every prompt, each with its own draft where `drafts` are given.

    `loops` True counts looped tokens too. Calls `advance` once a prompt is done.
    """
    total, outputs = Tally(), []
    for i, prompt in enumerate(prompts):
        counts = job.run(prompt, drafts[i] if drafts else None)
        limit = len(counts.tokens) if loops else loop_start(prompt, counts.tokens)
        total.add(counts, limit)
        outputs.append(counts.tokens)
        advance(job.tokens)
    return total, outputs
