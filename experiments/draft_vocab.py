"""A list of the tokens that a model writes most, for a draft's head: draft.head.kind=counted.

Answers to the prompt group, greedy and at temperatures, are counted up to where they repeat
themselves. Every `held_out`th answer is left out of the counts; what share of its tokens a list of
each size covers is the figure, beside that of as many first ids. The list is written beside the
record, most frequent first; control tokens need not be on it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.measure import Job, encode, loop_start
from tr.assemble import assemble
from tr.config import Config
from tr.drafts.head import listing
from tr.model.sampling import sampling
from tr.progress import track
from tr.report.record import Outcome, write

FILE = "draft_vocab.json"


@dataclass
class Options:
    prompts: int = 0  # of each family; 0: all
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.8])
    held_out: int = 4  # of so many answers one is left out of the counts
    sizes: list[int] = field(default_factory=list)  # of lists; empty: halves of the vocabulary


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.held_out < 2:
        raise ValueError(f"params.held_out must be 2 or more, got {o.held_out}")
    made = assemble(config)
    draft, count = made.draft(config), made.model.ids
    device, capacity = made.model.params.norm.device, config.kv.capacity_tokens
    families = config.prompts.families().values()
    prompts = [encode(made.tokenizer, p) for f in families for p in f[: o.prompts or None]]
    answers: list[list[int]] = []
    for n, heat in enumerate(o.temperatures):
        s = sampling(heat, seed=config.seed + n, device=device)
        job = Job(made, draft, s, config.max_new_tokens, capacity)
        for prompt in track(prompts, f"temperature {heat:g}", "prompts"):
            tokens = job.run(prompt).tokens
            answers.append(tokens[: max(1, loop_start(prompt, tokens))])
    tests = answers[o.held_out - 1 :: o.held_out]
    counted = Counter(i for n, a in enumerate(answers) if (n + 1) % o.held_out for i in a)
    ids = ranked(counted)
    write(Path(config.output) / FILE, listing(ids, count))
    test = Counter(i for answer in tests for i in answer)
    control = set(made.tokenizer.control.values())
    sizes = sorted({min(size, count) for size in o.sizes}) or halves(count)
    figures: dict[str, Any] = {
        "vocabulary_tokens": count,
        "distinct_tokens": len(ids),
        "control_tokens": len(control),
        "counted_tokens": counted.total(),
        "held_out_tokens": test.total(),
        "coverage": {
            str(size): {
                "counted_coverage": coverage(test, {*ids[:size], *control}),
                "first_coverage": coverage(test, {*range(size), *control}),
            }
            for size in sizes
        },
    }
    return Outcome(figures, warnings=made.warnings)


def ranked(counted: Counter[int]) -> list[int]:
    """Tokens by falling count; of equal ones the lower id first."""
    return sorted(counted, key=lambda token: (-counted[token], token))


def halves(count: int) -> list[int]:
    """The vocabulary's size and its halves down to a thirty-second."""
    return [count >> n for n in reversed(range(6))]


def coverage(test: Counter[int], ids: Iterable[int]) -> float | None:
    """The share of the counted tokens that are among `ids`."""
    return sum(test[i] for i in ids) / test.total() if test else None
