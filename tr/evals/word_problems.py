"""Arithmetic word problems from a seed, in GSM8K's form: large, negative, decimal, broken numbers.

No model of this project was trained on any of these kinds.
"""

from collections.abc import Callable
from fractions import Fraction
from random import Random

from tr.evals.gsm8k import MARK, Problem

Made = tuple[str, list[str], Fraction]  # question, steps, answer


def problems(count: int, seed: int = 0) -> list[Problem]:
    """`count` of them; each depends on the seed and its own place alone."""
    found = []
    for place in range(count):
        rng = Random(f"word_problems/{seed}/{place}")
        question, steps, answer = KINDS[place % len(KINDS)](rng)
        solution = "\n".join([*steps, f"{MARK} {written(answer)}"])
        found.append(Problem(question, solution, answer))
    return found


def written(value: Fraction) -> str:
    """As GSM8K writes numbers: thousands with commas, a decimal where it ends, else a fraction."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    if 100 % value.denominator == 0:
        return f"{float(value):,.2f}"
    return f"{value.numerator}/{value.denominator}"


def ferry(rng: Random) -> Made:
    """Thousands."""
    trips, people, fare = rng.randint(11, 60), rng.randint(40, 90), rng.randint(3, 9)
    question = (
        f"A ferry makes {trips} trips in a month and carries {people} passengers on each. Every"
        f" passenger pays ${fare}. How many dollars does the ferry take in that month?"
    )
    carried = trips * people
    steps = [
        f"It carries {trips} * {people} = {carried:,} passengers.",
        f"They pay {carried:,} * {fare} = ${carried * fare:,}.",
    ]
    return question, steps, Fraction(carried * fare)


def thermometer(rng: Random) -> Made:
    """Below zero."""
    start, fall, hours = rng.randint(1, 9), rng.randint(2, 5), rng.randint(4, 9)
    question = (
        f"At dusk it is {start} degrees. Until midnight it gets {fall} degrees colder every hour,"
        f" for {hours} hours. How many degrees is it at midnight?"
    )
    end = start - fall * hours
    steps = [
        f"It falls by {fall} * {hours} = {fall * hours} degrees.",
        f"At midnight it is {start} - {fall * hours} = {end} degrees.",
    ]
    return question, steps, Fraction(end)


def bakery(rng: Random) -> Made:
    """Cents."""
    loaves, cents, paid = rng.randint(2, 5), rng.choice((125, 175, 235, 260, 315)), 20
    left = Fraction(100 * paid - loaves * cents, 100)
    question = (
        f"A loaf of bread costs ${cents / 100:.2f}. Someone buys {loaves} loaves with a ${paid}"
        " note. How many dollars come back?"
    )
    steps = [
        f"The loaves cost {loaves} * {cents / 100:.2f} = ${loaves * cents / 100:.2f}.",
        f"{paid} - {loaves * cents / 100:.2f} = {written(left)} dollars come back.",
    ]
    return question, steps, left


def cake(rng: Random) -> Made:
    """Fractions."""
    parts = rng.choice((7, 9, 11, 13))
    eaten = rng.randint(2, parts - 2)
    question = (
        f"A pie is cut into {parts} equal pieces and {eaten} of them are eaten. Which fraction of"
        " the pie is left?"
    )
    steps = [f"{parts} - {eaten} = {parts - eaten} of {parts} pieces are left."]
    return question, steps, Fraction(parts - eaten, parts)


def orchard(rng: Random) -> Made:
    """Per cent."""
    trees, share = 20 * rng.randint(3, 15), 5 * rng.randint(2, 15)
    lost = trees * share // 100
    question = (
        f"An orchard has {trees} trees. A storm fells {share}% of them. How many trees still stand?"
    )
    steps = [
        f"The storm fells {trees} * {share} / 100 = {lost} trees.",
        f"{trees} - {lost} = {trees - lost} trees still stand.",
    ]
    return question, steps, Fraction(trees - lost)


def relay(rng: Random) -> Made:
    """Minutes and seconds."""
    runners, minutes, seconds = rng.randint(3, 6), rng.randint(2, 4), rng.randint(5, 55)
    each = 60 * minutes + seconds
    question = (
        f"Each of {runners} runners needs {minutes} minutes and {seconds} seconds for a lap. They"
        " run one after another. How many seconds does the relay take?"
    )
    steps = [
        f"A lap takes {minutes} * 60 + {seconds} = {each} seconds.",
        f"Together that is {runners} * {each} = {runners * each} seconds.",
    ]
    return question, steps, Fraction(runners * each)


KINDS: tuple[Callable[[Random], Made], ...] = (ferry, thermometer, bakery, cake, orchard, relay)
