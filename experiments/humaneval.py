"""Python functions from their head and words: the share whose own tests pass, pass@k of samples.

This runs programs that a model wrote, on this machine: each in a process of its own under limits of
time and memory, which is no security sandbox. `params.execute=true` says that you want that.
`params.path`: the published HumanEval.jsonl.gz, or a file of its form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments import evaluating
from experiments.evaluating import Ask, chosen, evaluation, first, share
from tr.config import Config
from tr.evals.execute import TIMED_OUT, Runner, runner
from tr.evals.humaneval import STOPS, Problem, ask, body, code_of, embedded, load, program
from tr.evals.intervals import pass_at
from tr.evals.programs import PROBLEMS
from tr.report.record import Outcome


@dataclass
class Options(evaluating.Options):
    execute: bool = False  # run what the model writes
    samples: int = 1  # of each problem
    k: list[int] = field(default_factory=lambda: [1])  # of pass@k
    timeout_s: float = 10.0  # of a program
    memory_mib: int = 1024  # of a program


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if not o.execute:
        raise ValueError(
            "humaneval runs programs that the model writes, as this user and with no security"
            " sandbox; params.execute=true allows it"
        )
    if o.samples < 1 or not o.k or not all(1 <= k <= o.samples for k in o.k):
        raise ValueError(f"params.k: expected 1 .. params.samples={o.samples}, got {o.k}")
    sets = chosen(o, load) or {"own": embedded(PROBLEMS)}
    how, said = runner(o.timeout_s, o.memory_mib)
    figures = {}
    with evaluation(config, o) as e:
        for name, listing in sets.items():
            problems = first(o, listing)
            asks = [
                Ask(p.task_id, [("user", ask(p))]) if o.chat else Ask(p.task_id, p.prompt, STOPS)
                for p in problems
            ]

            def judge(place: int, text: str, problems=problems) -> dict[str, object]:
                return score(problems[place], text, o.chat, how)

            scores = e.ask(name, asks, judge, o.samples)
            right = [sum(bool(s["passed"]) for s in samples) for samples in scores]
            outcomes = [s["outcome"] for samples in scores for s in samples]
            figures[name] = {
                **share("accuracy", [n / o.samples for n in right], config.seed),
                **pass_k(o, right, config.seed),
                "timed_out": outcomes.count(TIMED_OUT),
                **e.figures(name, listing, len(problems)),
            }
        return e.outcome(figures, said)


def pass_k(o: Options, right: Sequence[int], seed: int) -> dict[str, float | None]:
    """pass@1 is the accuracy."""
    found: dict[str, float | None] = {}
    for k in sorted({k for k in o.k if k > 1}):
        found |= share(f"pass_{k}", [pass_at(k, o.samples, n) for n in right], seed)
    return found


def score(asked: Problem, text: str, chat: bool, how: Runner) -> dict[str, object]:
    code = code_of(asked, text) if chat else asked.prompt + body(text)
    ran = how.run(program(asked, code))
    return {"passed": ran.passed, "outcome": ran.outcome, "error": ran.error}
