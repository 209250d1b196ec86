"""Six programming problems of our own, in HumanEval's form."""

from tr.evals.humaneval import Problem

PROBLEMS = (
    Problem(
        "own/0",
        "def largest_gap(numbers: list[int]) -> int:\n"
        '    """The largest difference of two neighbours once the numbers are sorted; 0 for fewer\n'
        "    than two.\n\n"
        "    >>> largest_gap([3, 10, 4])\n"
        '    6\n    """\n',
        "largest_gap",
        "    ordered = sorted(numbers)\n"
        "    return max((b - a for a, b in zip(ordered, ordered[1:])), default=0)\n",
        "def check(candidate):\n"
        "    assert candidate([3, 10, 4]) == 6\n"
        "    assert candidate([]) == 0\n"
        "    assert candidate([7]) == 0\n"
        "    assert candidate([5, 5, 5]) == 0\n"
        "    assert candidate([-4, 0, 9, 2]) == 7\n",
    ),
    Problem(
        "own/1",
        "def runs(text: str) -> list[tuple[str, int]]:\n"
        '    """Each run of one character, with its length, in order.\n\n'
        '    >>> runs("aabccc")\n'
        "    [('a', 2), ('b', 1), ('c', 3)]\n"
        '    """\n',
        "runs",
        "    found = []\n"
        "    for character in text:\n"
        "        if found and found[-1][0] == character:\n"
        "            found[-1] = (character, found[-1][1] + 1)\n"
        "        else:\n"
        "            found.append((character, 1))\n"
        "    return found\n",
        "def check(candidate):\n"
        "    assert candidate('aabccc') == [('a', 2), ('b', 1), ('c', 3)]\n"
        "    assert candidate('') == []\n"
        "    assert candidate('abab') == [('a', 1), ('b', 1), ('a', 1), ('b', 1)]\n"
        "    assert candidate('  ') == [(' ', 2)]\n",
    ),
    Problem(
        "own/2",
        "import math\n\n\n"
        "def is_square(n: int) -> bool:\n"
        '    """Whether n is the square of a whole number."""\n'
        "    return n >= 0 and math.isqrt(n) ** 2 == n\n\n\n"
        "def squares_below(n: int) -> list[int]:\n"
        '    """The squares from 0 on that are smaller than n; is_square helps.\n\n'
        "    >>> squares_below(10)\n"
        '    [0, 1, 4, 9]\n    """\n',
        "squares_below",
        "    return [k for k in range(n) if is_square(k)]\n",
        "def check(candidate):\n"
        "    assert candidate(10) == [0, 1, 4, 9]\n"
        "    assert candidate(0) == []\n"
        "    assert candidate(1) == [0]\n"
        "    assert candidate(17)[-1] == 16\n",
    ),
    Problem(
        "own/3",
        "def balanced(text: str) -> bool:\n"
        '    """Whether every ( is closed by a later ) and nothing else is closed.\n\n'
        '    >>> balanced("a(b)c")\n    True\n'
        '    >>> balanced(")(")\n    False\n    """\n',
        "balanced",
        "    depth = 0\n"
        "    for character in text:\n"
        "        depth += (character == '(') - (character == ')')\n"
        "        if depth < 0:\n"
        "            return False\n"
        "    return depth == 0\n",
        "def check(candidate):\n"
        "    assert candidate('a(b)c') is True\n"
        "    assert candidate(')(') is False\n"
        "    assert candidate('((') is False\n"
        "    assert candidate('') is True\n"
        "    assert candidate('(()())') is True\n",
    ),
    Problem(
        "own/4",
        "def digits_product(n: int) -> int:\n"
        '    """The product of the digits of n that are not 0; 0 where there is none.\n\n'
        "    >>> digits_product(204)\n    8\n"
        '    """\n',
        "digits_product",
        "    product, any_digit = 1, False\n"
        "    for digit in str(abs(n)):\n"
        "        if digit != '0':\n"
        "            product, any_digit = product * int(digit), True\n"
        "    return product if any_digit else 0\n",
        "def check(candidate):\n"
        "    assert candidate(204) == 8\n"
        "    assert candidate(0) == 0\n"
        "    assert candidate(7) == 7\n"
        "    assert candidate(-35) == 15\n"
        "    assert candidate(1000) == 1\n",
    ),
    Problem(
        "own/5",
        "def merge(a: list[int], b: list[int]) -> list[int]:\n"
        '    """Two sorted lists as one sorted list; a number of both comes twice.\n\n'
        "    >>> merge([1, 4], [2, 4])\n    [1, 2, 4, 4]\n"
        '    """\n',
        "merge",
        "    return sorted(a + b)\n",
        "def check(candidate):\n"
        "    assert candidate([1, 4], [2, 4]) == [1, 2, 4, 4]\n"
        "    assert candidate([], []) == []\n"
        "    assert candidate([3], []) == [3]\n"
        "    assert candidate([1, 2, 9], [0, 10]) == [0, 1, 2, 9, 10]\n",
    ),
)
