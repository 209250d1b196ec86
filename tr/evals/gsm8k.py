"""GSM8K: word problems with one number as the answer, which stands behind #### in the solution."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tr.evals.listing import Json, Listing, field, read

MARK = "####"
DIGITS = 100  # a longer number is none
ASK = "{question}\n\nEnd with a line that holds #### and the answer as a number alone."
STOPS = ("\nQuestion:",)  # of plain text: the next problem

_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)\].])[-−])?
    (?:[$€£¥]\s?)?
    (?P<minus>(?<=[$€£¥])[-−])?
    (?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?
    (?P<rest>\.\d+)?
    """,
    re.VERBOSE,
)
_OVER = re.compile(r"\s?/\s?(\d{1,100})(?![\d.]*\d)")
_MIXED = re.compile(r"\s(\d{1,100})\s?/\s?(\d{1,100})(?![\d.]*\d)")
_FRAC = re.compile(r"\s?\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")


@dataclass(frozen=True)
class Problem:
    """`solution` ends in its #### line."""

    question: str
    solution: str
    answer: Fraction


def numbers(text: str) -> list[Fraction]:
    """Every number of a text: thousands with commas, decimals, fractions, mixed ones, signs.

    A dash is a sign unless it follows a word or number. Currencies, units and percent signs around
    a number are no part of it; nothing divides by zero.
    """
    text = _FRAC.sub(r" \1/\2", text.replace("{,}", ",").replace(r"\$", "$").replace("\\,", ""))
    found, place = [], 0
    while match := _next(text, place):
        whole, rest = match["whole"], match["rest"]
        place = match.end()
        if len(match[0]) > DIGITS:
            continue
        value = Fraction((whole or "0").replace(",", "") + (rest or ""))
        if whole and not rest:
            if (over := _OVER.match(text, place)) and int(over[1]):
                value, place = value / int(over[1]), over.end()
            elif (mixed := _MIXED.match(text, place)) and int(mixed[2]):
                value += Fraction(int(mixed[1]), int(mixed[2]))
                place = mixed.end()
        found.append(-value if match["sign"] or match["minus"] else value)
    return found


def _next(text: str, place: int) -> re.Match[str] | None:
    """The next match from `place` on that has a digit."""
    for match in _NUMBER.finditer(text, place):
        if match["whole"] or match["rest"]:
            return match
    return None


def answer_of(text: str) -> Fraction | None:
    """The number that a text gives as its answer; None: it has none.

    The first one behind the last ####, else the last one in the last \\boxed{}, else the last one.
    """
    _, mark, after = text.rpartition(MARK)
    if mark and (found := numbers(after.strip().partition("\n")[0])):
        return found[0]
    for boxed in reversed(_BOXED.findall(text)):
        if found := numbers(boxed):
            return found[-1]
    found = numbers(text)
    return found[-1] if found else None


def problem(row: Json) -> Problem:
    question, solution = field(row, "question", str), field(row, "answer", str)
    if not question.strip():
        raise ValueError("field 'question': expected a text, got an empty one")
    _, mark, after = solution.rpartition(MARK)
    found = numbers(after)
    if not mark or len(found) != 1:
        raise ValueError(
            f"field 'answer': expected it to end in '{MARK} NUMBER', got {after!r:.60}"
        )
    return Problem(question, solution, found[0])


def load(path: str | Path) -> Listing[Problem]:
    return read(path, problem, lambda p: p.question)


def turns(
    asked: Problem, shots: Sequence[Problem], template: str = "{question}"
) -> list[tuple[str, str]]:
    """A conversation: every shot as a user's and an assistant's turn, then the problem."""
    found = []
    for shot in shots:
        found.append(("user", template.replace("{question}", shot.question)))
        found.append(("assistant", shot.solution))
    return [*found, ("user", template.replace("{question}", asked.question))]


def plain(asked: Problem, shots: Sequence[Problem]) -> str:
    """The same as one text that is continued."""
    told = [f"Question: {s.question}\nAnswer: {s.solution}\n\n" for s in shots]
    return "".join(told) + f"Question: {asked.question}\nAnswer:"
