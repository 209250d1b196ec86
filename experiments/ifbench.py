"""Instructions that a program can check: IFEval's 25 families and IFBench's 57 that need no tagger.

Accuracy by prompt (all its instructions) and by instruction; strict: the answer as it stands;
loose: any of it without stars, its first line or its last passes. `params.path`: a file of their
form, each line `key`, `prompt`, `instruction_id_list`, `kwargs`. Instructions that cannot be
checked here are refused by name; with `params.skip_unknown` the prompts with them are left out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from experiments import evaluating
from experiments.evaluating import Ask, Score, chosen, evaluation, first, share
from tr.config import Config
from tr.evals import intervals
from tr.evals.instructions.follow import Problem, embedded, follow, load, unknown
from tr.evals.instructions.prompts import ROWS
from tr.evals.listing import Listing
from tr.report.record import Outcome

WAYS = ("strict", "loose")


@dataclass
class Options(evaluating.Options):
    skip_unknown: bool = False  # leave out prompts whose instructions cannot be checked


def run(config: Config) -> Outcome:
    o = config.options(Options)
    sets = chosen(o, load) or {"own": embedded(ROWS)}
    figures, each, said = {}, {}, []
    checked = {name: checkable(o, name, listing, said) for name, listing in sets.items()}
    with evaluation(config, o) as e:
        for name, listing in sets.items():
            problems = checked[name]
            asks = [Ask(p.key, [("user", p.prompt)] if o.chat else p.prompt) for p in problems]
            scores = e.ask(name, asks, lambda i, text, ps=problems: asdict(follow(ps[i], text)))
            figures[name] = {
                **accuracies([one for (one,) in scores], config.seed),
                "left_out": len(first(o, listing)) - len(problems),
                **e.figures(name, listing, len(problems)),
            }
            each[name] = families(problems, [one for (one,) in scores])
        return e.outcome(figures, said, families=each)


def checkable(
    o: Options, name: str, listing: Listing[Problem], said: list[str]
) -> Sequence[Problem]:
    """The problems that are asked; `said` takes what the record must warn of."""
    problems = first(o, listing)
    if not (reasons := unknown(problems)):
        return problems
    told = "; ".join(f"{key} {reason}" for key, reason in reasons.items())
    if not o.skip_unknown:
        raise ValueError(
            f"{name}: cannot check {told}; params.skip_unknown=true leaves their prompts out"
        )
    known = [p for p in problems if not any(i.id in reasons for i in p.instructions)]
    if not known:
        raise ValueError(f"{name}: no prompt is left without {told}")
    said.append(f"{name}: {len(problems) - len(known)} prompts are left out: {told}")
    return known


def accuracies(scores: Sequence[Score], seed: int) -> dict[str, float | None]:
    """`accuracy` is that of prompts, strict. Intervals of instructions are by a bootstrap over
    prompts, whose instructions are not independent.
    """
    found: dict[str, float | None] = {}
    for way in WAYS:
        key = "accuracy" if way == "strict" else f"prompt_{way}"
        found |= share(key, [float(all(s[way])) for s in scores], seed)
        right, count = [sum(s[way]) for s in scores], [len(s[way]) for s in scores]
        low, high = intervals.ratio(right, count, seed) or (None, None)
        key = f"instruction_{way}"
        found |= {key: sum(right) / sum(count), f"{key}_low": low, f"{key}_high": high}
    return found


def families(problems: Sequence[Problem], scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """By instruction: how many there are, and the share that is followed."""
    found: dict[str, dict[str, float]] = {}
    for p, s in zip(problems, scores, strict=True):
        for place, instruction in enumerate(p.instructions):
            row = found.setdefault(instruction.id, {"instructions": 0, "strict": 0, "loose": 0})
            row["instructions"] += 1
            for way in WAYS:
                row[way] += s[way][place]
    for row in found.values():
        for way in WAYS:
            row[way] /= row["instructions"]
    return dict(sorted(found.items()))
