"""The number that a text gives as its answer, and problems that were made."""

from fractions import Fraction

import pytest

from tr.evals import word_problems
from tr.evals.gsm8k import DIGITS, answer_of, load, numbers, plain, problem, turns


@pytest.mark.parametrize(
    "text, found",
    [
        ("1,234", [1234]),
        ("1,234,567.5 kg", ["1234567.5"]),
        ("1, 2 and 12,3456", [1, 2, 12, 3456]),
        ("$1,000.", [1000]),
        ("-$5 or $-5 or −5 or (-5)", [-5, -5, -5, -5]),
        ("10-3 and 20 - 5 = 15", [10, 3, 20, 5, 15]),
        ("- 4 apples", [4]),
        ("x=-2", [-2]),
        ("50% of .5", [50, "1/2"]),
        ("3/4 and 1 1/2 and 5 / 10", ["3/4", "3/2", "1/2"]),
        (r"\frac{3}{4} and 1{,}234 and \$7", ["3/4", 1234, 7]),
        ("1/0", [1, 0]),
        ("**18** dollars a day.", [18]),
        ("v1.2.3", ["1.2", "0.3"]),
        ("none at all", []),
        ("9" * (DIGITS + 1) + " 7", [7]),
        ("1/" + "9" * 5000, [1]),
    ],
)
def test_numbers(text, found):
    assert numbers(text) == [Fraction(x) for x in found]


@pytest.mark.parametrize(
    "text, answer",
    [
        ("3 + 4 = 7.\n#### 7 apples, not 8", "7"),
        ("#### 3\nNo, wrong.\n#### $1,250.50", "2501/2"),
        (r"So 4 of 9. \boxed{\frac{1}{2}} is it, in 3 steps", "1/2"),
        ("The answer is 12.", "12"),
        ("#### none\n5", "5"),
        ("It is minus seven.", None),
        ("", None),
    ],
)
def test_the_answer_of_a_text(text, answer):
    assert answer_of(text) == (None if answer is None else Fraction(answer))


def test_a_huge_output_is_read_quickly():
    assert answer_of("1,234," * 20_000 + "7 - " * 20_000 + "9") == 9
    assert answer_of("9" * 200_000) is None


def test_problems_of_a_file(tmp_path):
    path = tmp_path / "gsm.jsonl"
    path.write_text(
        '{"question": "Why?", "answer": "2 + 1,000 = <<2+1000=1002>>1002\\n#### 1,002"}'
    )
    (one,) = load(path).problems
    assert one.answer == 1002
    for row, said in (
        ({"question": "Why?", "answer": "It is 3"}, "expected it to end in '#### NUMBER'"),
        ({"question": "Why?", "answer": "#### 3 or 4"}, "expected it to end in '#### NUMBER'"),
        ({"question": " ", "answer": "#### 3"}, "got an empty one"),
        ({"question": "Why?"}, "expected a field 'answer'"),
    ):
        with pytest.raises(ValueError, match=said):
            problem(row)


def test_shots_stand_before_a_problem():
    shot, asked = word_problems.problems(2)
    told = turns(asked, [shot], "Q: {question}")
    assert [role for role, _ in told] == ["user", "assistant", "user"]
    assert told[0][1] == f"Q: {shot.question}" and told[1][1] == shot.solution
    assert plain(asked, [shot]).endswith(f"Question: {asked.question}\nAnswer:")
    assert plain(asked, [shot]).count(shot.solution) == 1


def test_made_problems_end_in_their_answer():
    made = word_problems.problems(60, 3)
    assert [answer_of(p.solution) for p in made] == [p.answer for p in made]
    assert len({p.question for p in made}) > 50
    assert made[:7] == word_problems.problems(7, 3) != word_problems.problems(7, 4)
    values = {p.answer for p in made}
    assert any(v < 0 for v in values) and any(v.denominator > 2 for v in values)
    assert any(v >= 1000 for v in values)
