"""HumanEval (arXiv 2107.03374): a function's head and words, to be completed; its own tests judge.

The published file is HumanEval.jsonl.gz of github.com/openai/human-eval.
"""

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tr.evals.listing import Json, Listing, field, own, read

ASK = (
    "Complete this Python function. Answer with the whole function in one code block.\n\n"
    "```python\n{prompt}```"
)
STOPS = ("\nclass ", "\ndef ", "\nif ", "\nprint(")  # of a plain text's body
FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Problem:
    """`test` defines check(candidate); `canonical_solution` is the body that passes."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


def problem(row: Json) -> Problem:
    names = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
    made = Problem(*(field(row, name, str) for name in names))
    if not made.entry_point.isidentifier():
        raise ValueError(f"field 'entry_point': expected a name, got {made.entry_point!r:.40}")
    if not _defines(made.entry_point).search(made.prompt):
        raise ValueError(f"field 'prompt': defines no function {made.entry_point}")
    if "def check(" not in made.test:
        raise ValueError("field 'test': defines no check(candidate)")
    return made


def load(path: str | Path) -> Listing[Problem]:
    return read(path, problem, lambda p: p.task_id)


def embedded(problems: Sequence[Problem]) -> Listing[Problem]:
    return own(problems, asdict)


def ask(asked: Problem) -> str:
    """A chat's question; plain text is the prompt as it stands, up to STOPS."""
    return ASK.replace("{prompt}", asked.prompt.rstrip() + "\n")


def code_of(asked: Problem, answer: str) -> str:
    """The program that a chat's answer means, without its tests.

    The first code block with the function, else the first block, else the whole answer. Where it
    has the function, what stands above the function in the prompt stays above it; else it is the
    function's body.
    """
    blocks = [textwrap.dedent(match[2]) for match in FENCE.finditer(answer)]
    defined = _defines(asked.entry_point)
    code = next((b for b in blocks if defined.search(b)), (*blocks, answer)[0])
    if not (match := defined.search(code)):
        return asked.prompt + body(code)
    if not blocks:  # words around it are no code
        code = _longest(code[_start(code, match.start()) :])
    head = defined.search(asked.prompt)
    assert head is not None
    return asked.prompt[: head.start()] + "\n" + code


def body(code: str) -> str:
    """A function's body as it follows its head: in by four spaces, where it is not in at all."""
    first = next((line for line in code.split("\n") if line.strip()), "")
    return code if first[:1] in (" ", "\t", "") else textwrap.indent(code, "    ")


def program(asked: Problem, code: str) -> str:
    return f"{code}\n\n{asked.test}\n\ncheck({asked.entry_point})\n"


def _defines(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async )?def {re.escape(name)}\s*\(", re.M)


def _start(code: str, function: int) -> int:
    """Where the imports and functions right above the function at `function` begin."""
    above = code[:function].split("\n")
    while above and not re.match(r"(?:import|from|def|class|@|[A-Z_]+ =)", above[0]):
        del above[0]
    return function - len("\n".join(above)) if above else function


def _longest(code: str) -> str:
    """As many of the first lines as are Python; all of them where none are."""
    lines = code.split("\n")
    for count in range(len(lines), 0, -1):
        part = "\n".join(lines[:count])
        try:
            ast.parse(part)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return part
    return code
