"""What program an answer means, whatever stands around it."""

import json
from dataclasses import asdict

import pytest

from tr.evals.execute import runner
from tr.evals.humaneval import ask, body, code_of, load, problem, program
from tr.evals.programs import PROBLEMS

RUNS, SQUARES = PROBLEMS[1], PROBLEMS[2]
BODY = SQUARES.canonical_solution
WHOLE = f'def squares_below(n: int) -> list[int]:\n    """Squares."""\n{BODY}'


@pytest.fixture(scope="module")
def how():
    return runner(5, 512)[0]


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{WHOLE}```",
        f"Sure! Here it is:\n\n```py\n{WHOLE}```\nIt keeps `k` where it is a square.",
        f"```python\n{SQUARES.prompt}{BODY}```",
        f"First:\n```python\nprint(1)\n```\nthen\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}",  # cut
        f"~~~\n{WHOLE}~~~",
        f"1. So:\n\n   ```python\n   {WHOLE.replace(chr(10), chr(10) + '   ')}\n   ```",
        f"{SQUARES.prompt}{BODY}",
        f"Here is the function.\n\n{WHOLE}\n\nIt keeps what is a square: all of it.",
        BODY,
        "return [k for k in range(n) if is_square(k)]",
        f"```python\n{BODY}```",
        f"import sys\n\n{WHOLE}",
    ],
)  # fmt: skip
def test_the_function_is_found(how, answer):
    ran = how.run(program(SQUARES, code_of(SQUARES, answer)))
    assert ran.passed, ran


@pytest.mark.parametrize(
    "answer", ["", "I cannot do that.", "```python\n```", "```python\nexit()\n```", WHOLE[:70]]
)
def test_no_function_fails(how, answer):
    assert not how.run(program(SQUARES, code_of(SQUARES, answer))).passed


@pytest.mark.parametrize("asked", PROBLEMS, ids=lambda p: p.task_id)
def test_our_own_problems_tell_right_from_wrong(how, asked):
    assert problem(asdict(asked)) == asked and asked.prompt.strip() in ask(asked)
    assert how.run(program(asked, asked.prompt + asked.canonical_solution)).passed
    assert not how.run(program(asked, asked.prompt + "    return None\n")).passed


def test_a_body_is_set_in_once():
    assert body("return 1\nx") == "    return 1\n    x"
    assert body("\n    return 1") == "\n    return 1"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"entry_point": "a b"}, "expected a name"),
        ({"entry_point": "other"}, "defines no function other"),
        ({"test": "assert True"}, "defines no check"),
        ({"test": 3}, "field 'test': expected a str"),
    ],
)
def test_damaged_problems_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        problem({**asdict(RUNS), **change})


def test_a_file_of_problems(tmp_path):
    path = tmp_path / "he.jsonl"
    path.write_text("\n".join(json.dumps(asdict(p)) for p in PROBLEMS))
    assert load(path).problems == list(PROBLEMS)
    path.write_text("\n".join(json.dumps(asdict(PROBLEMS[0])) for _ in range(2)))
    with pytest.raises(ValueError, match="he.jsonl:2: 'own/0' stands in line 1 already"):
        load(path)
