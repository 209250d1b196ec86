"""Decoding prompts with a strategy and counting: what dflash2_verify and its relatives share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tr.assemble import Assembly
from tr.checkpoint.tokenizer import Tokenizer
from tr.config import Prompt
from tr.decode.generate import Counts, generate
from tr.drafts.base import Draft
from tr.model.sampling import Sampling

LOOP = 16  # a repeated sequence of this many tokens counts as a loop


def encode(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Ids of a prompt: a user's turn opened for a direct answer, or plain text."""
    if prompt.kind == "plain":
        return tokenizer.encode(prompt.text)
    message = {"role": "user", "content": prompt.text}
    return tokenizer.chat([message], enable_thinking=False)


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

    def add(self, counts: Counts, limit: int) -> None:
        """`limit`: how many of the run's tokens come before a loop."""
        place = 1  # the prefill's own token belongs to no step
        reached = [0] * max([len(self.reached), *counts.proposed])
        for i, n in enumerate(self.reached):
            reached[i] = n
        for kept, accepted in zip(counts.kept, counts.accepted, strict=True):
            if place + kept <= limit:
                self.steps += 1
                self.tokens += kept
                for i in range(accepted):
                    reached[i] += 1
            else:
                self.looped += kept - max(0, limit - place)
            place += kept
        self.reached = tuple(reached)
        self.made += sum(counts.kept)
        self.seconds += counts.seconds

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
