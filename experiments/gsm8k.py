"""Arithmetic word problems: the share whose last number is right, exactly, as a fraction.

Our own problems are of the kinds that the embedded model was trained on, of seeds that no training
saw, and of new kinds. `params.path`: a file of GSM8K's form, each line a `question` and an `answer`
that ends in `#### NUMBER`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from experiments import evaluating, math_tasks
from experiments.evaluating import Ask, chosen, evaluation, first, share
from tr.config import Config
from tr.evals import word_problems
from tr.evals.gsm8k import ASK, MARK, STOPS, Problem, answer_of, load, plain, turns
from tr.evals.listing import Listing, own
from tr.report.record import Outcome


@dataclass
class Options(evaluating.Options):
    """`template`: a user's turn, with {question} in it; empty: the question alone for our own
    problems, for a file's with a word on how to end.
    """

    problems: int = 12  # of each of our own sets
    shots: int = 0  # solved problems before each one
    shots_path: str = ""  # a file of them; empty: our own ones, of other seeds
    template: str = ""


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.problems < 1 or o.shots < 0:
        raise ValueError("params.problems must be positive, params.shots 0 or more")
    template = o.template or (ASK if o.path else "{question}")
    if "{question}" not in template:
        raise ValueError(f"params.template: expected {{question}} in it, got {template!r:.60}")
    sets = chosen(o, load) or embedded(o.problems, config.seed)
    figures = {}
    with evaluation(config, o) as e:
        for name, listing in sets.items():
            problems = first(o, listing)
            shots = shown(o, config.seed, problems)
            asks = [
                Ask(f"{name}/{place}", turns(p, shots, template))
                if o.chat
                else Ask(f"{name}/{place}", plain(p, shots), STOPS)
                for place, p in enumerate(problems)
            ]
            scores = e.ask(name, asks, lambda i, text, ps=problems: score(ps[i], text))
            right = [float(one["right"]) for (one,) in scores]
            answered = [one["answer"] is not None for (one,) in scores]
            figures[name] = {
                **share("accuracy", right, config.seed),
                "without_a_number": answered.count(False),
                **e.figures(name, listing, len(problems)),
            }
        return e.outcome(figures)


def score(asked: Problem, text: str) -> dict[str, object]:
    answer = answer_of(text)
    told = None if answer is None else str(answer)
    return {"right": answer == asked.answer, "answer": told, "expected": str(asked.answer)}


def embedded(count: int, seed: int) -> dict[str, Listing[Problem]]:
    sets = {"trained_kinds": trained(count, seed), "new_kinds": word_problems.problems(count, seed)}
    return {name: own(made, lambda p: [p.question, p.solution]) for name, made in sets.items()}


def trained(count: int, seed: int) -> list[Problem]:
    """Of the kinds that are trained on; training draws from other seeds."""
    found = []
    for place in range(count):
        question, solution, answer = math_tasks.problem(Random(f"heldout/gsm8k/{seed}/{place}"))
        found.append(Problem(question, f"{solution}\n{MARK} {answer}", Fraction(answer)))
    return found


def shown(o: Options, seed: int, problems: Sequence[Problem]) -> list[Problem]:
    """The solved problems; none of them is asked."""
    if not o.shots:
        return []
    if not o.shots_path:
        return word_problems.problems(o.shots, seed + 1)
    listed = load(o.shots_path).problems[: o.shots]
    if len(listed) < o.shots:
        raise ValueError(f"params.shots: {o.shots} of the {len(listed)} in {o.shots_path}")
    asked = {p.question for p in problems}
    if both := [p.question for p in listed if p.question in asked]:
        raise ValueError(f"params.shots_path: {both[0]!r:.60} is asked as well; take another file")
    return list(listed)
