"""Arithmetic word problems whose answers restate each step and end in "The answer is N."."""

from random import Random

from experiments.task_words import NAMES, OBJECTS, PLACES

Problem = tuple[str, list[str], int]  # question, steps, answer

OPENERS = (
    "Let us solve this step by step.",
    "Here is the solution, one step at a time.",
    "We can work this out step by step.",
)


def problem(rng: Random) -> tuple[str, str, int]:
    """(question, answer text, the number it ends in)."""
    question, steps, answer = rng.choice(FAMILIES)(rng)
    lines = [rng.choice(OPENERS), *(f"Step {i}: {s}" for i, s in enumerate(steps, 1))]
    return question, "\n".join([*lines, f"The answer is {answer}."]), answer


def two(rng: Random, words: list[str]) -> tuple[str, str]:
    a, b = rng.sample(words, 2)
    return a, b


def shop(rng: Random) -> Problem:
    name = rng.choice(NAMES)
    x, y = two(rng, OBJECTS)
    n, m, p, q = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    cost = n * p + m * q
    paid = (cost // 10 + rng.randint(1, 3)) * 10
    question = (
        f"{name} buys {n} {x} for {p} coins each and {m} {y} for {q} coins each. "
        f"{name} pays with {paid} coins. How much do the {x} cost, how much do the {y} cost, "
        "how much is it in total, and how many coins are given back?"
    )
    steps = [
        f"The {x} cost {n} * {p} = {n * p} coins.",
        f"The {y} cost {m} * {q} = {m * q} coins.",
        f"In total {name} has to pay {n * p} + {m * q} = {cost} coins.",
        f"{name} pays with {paid} coins and gets back {paid} - {cost} = {paid - cost} coins.",
    ]
    return question, steps, paid - cost


def collection(rng: Random) -> Problem:
    name, friend = two(rng, NAMES)
    x = rng.choice(OBJECTS)
    a, b = rng.randint(10, 60), rng.randint(5, 40)
    c = rng.randint(3, a + b - 4)
    d = rng.randint(2, 4)
    left = a + b - c
    question = (
        f"{name} has {a} {x}. {name} finds {b} more {x} and then gives {c} {x} to {friend}. "
        f"After that, {name} gets {d} bags with 10 {x} in each bag. "
        f"How many {x} does {name} have after each change, and how many at the end?"
    )
    steps = [
        f"At first {name} has {a} {x}.",
        f"{name} finds {b} more, so now {name} has {a} + {b} = {a + b} {x}.",
        f"{name} gives {c} {x} to {friend}, so {name} has {a + b} - {c} = {left} {x} left.",
        f"The {d} bags hold {d} * 10 = {10 * d} {x}.",
        f"At the end {name} has {left} + {10 * d} = {left + 10 * d} {x}.",
    ]
    return question, steps, left + 10 * d


def sharing(rng: Random) -> Problem:
    name, x = rng.choice(NAMES), rng.choice(OBJECTS)
    boxes, friends = rng.randint(2, 6), rng.randint(2, 9)
    each = rng.randint(2, 9)
    rest = rng.randint(0, friends - 1)
    total = each * friends + rest
    first = rng.randint(1, total - 1)
    question = (
        f"{name} has {first} {x} in one bag and {total - first} {x} in another bag. "
        f"{name} shares all the {x} equally among {friends} friends. Each friend then puts the "
        f"{x} away in {boxes} boxes. How many {x} are there in all, how many does each friend "
        "get, and how many are left over?"
    )
    steps = [
        f"Together the two bags hold {first} + {total - first} = {total} {x}.",
        f"Shared among {friends} friends, each friend gets {each} {x}, because "
        f"{friends} * {each} = {friends * each}.",
        f"The friends take {friends * each} {x}, so {total} - {friends * each} = {rest} {x} are "
        "left over.",
        "The number of boxes does not change how many are left over.",
    ]
    return question, steps, rest


def journey(rng: Random) -> Problem:
    name = rng.choice(NAMES)
    start, end = two(rng, PLACES)
    v, t, w, u = (
        rng.randint(2, 9) * 10,
        rng.randint(2, 5),
        rng.randint(2, 9) * 10,
        rng.randint(2, 5),
    )
    total = v * t + w * u
    extra = rng.randint(5, 50)
    question = (
        f"{name} travels from {start} to {end}. For {t} hours {name} drives at {v} km per hour, "
        f"then for {u} hours at {w} km per hour. The last {extra} km {name} goes by bus. "
        "How far is each part, and how long is the whole way in km?"
    )
    steps = [
        f"In the first {t} hours {name} drives {t} * {v} = {t * v} km.",
        f"In the next {u} hours {name} drives {u} * {w} = {u * w} km.",
        f"By car that is {t * v} + {u * w} = {total} km.",
        f"With the bus, the way from {start} to {end} is {total} + {extra} = {total + extra} km.",
    ]
    return question, steps, total + extra


def rectangle(rng: Random) -> Problem:
    name = rng.choice(NAMES)
    a, b, cost = rng.randint(3, 20), rng.randint(3, 12), rng.randint(2, 5)
    around = 2 * (a + b)
    question = (
        f"The garden of {name} is {a} metres long and {b} metres wide. A fence goes all the way "
        f"around it and costs {cost} coins for each metre. What is the area of the garden, how "
        "long is the fence, and what does the fence cost?"
    )
    steps = [
        f"The area of the garden is {a} * {b} = {a * b} square metres.",
        f"One long side and one short side make {a} + {b} = {a + b} metres.",
        f"The fence is 2 * {a + b} = {around} metres long.",
        f"The fence costs {around} * {cost} = {around * cost} coins.",
    ]
    return question, steps, around * cost


def ages(rng: Random) -> Problem:
    a, b, c = rng.sample(NAMES, 3)
    x, older, years = rng.randint(5, 30), rng.randint(2, 12), rng.randint(2, 9)
    y = x + older
    z = 2 * x
    total = x + y + z
    question = (
        f"{a} is {x} years old. {b} is {older} years older than {a}. {c} is twice as old as {a}. "
        f"How old are {b} and {c}, how old are the three together now, and how old will they be "
        f"together in {years} years?"
    )
    steps = [
        f"{b} is {x} + {older} = {y} years old.",
        f"{c} is 2 * {x} = {z} years old.",
        f"Together they are {x} + {y} + {z} = {total} years old now.",
        f"In {years} years each of the three is {years} years older, which adds "
        f"3 * {years} = {3 * years} years.",
        f"Together they will be {total} + {3 * years} = {total + 3 * years} years old.",
    ]
    return question, steps, total + 3 * years


def hall(rng: Random) -> Problem:
    place = rng.choice(PLACES)
    rows, seats, price = rng.randint(4, 12), rng.randint(5, 12), rng.randint(2, 6)
    total = rows * seats
    empty = rng.randint(1, total // 2)
    sold = total - empty
    question = (
        f"The hall in {place} has {rows} rows with {seats} seats in each row. Tonight {empty} "
        f"seats stay empty. A ticket costs {price} coins. How many seats are there, how many "
        "people come, and how many coins do they pay in total?"
    )
    steps = [
        f"The hall has {rows} * {seats} = {total} seats.",
        f"{empty} seats stay empty, so {total} - {empty} = {sold} people come.",
        f"Each of them pays {price} coins, which makes {sold} * {price} = {sold * price} coins.",
    ]
    return question, steps, sold * price


def savings(rng: Random) -> Problem:
    name = rng.choice(NAMES)
    start, week, weeks = rng.randint(5, 50), rng.randint(3, 12), rng.randint(3, 9)
    saved = start + week * weeks
    price = rng.randint(5, saved - 1)
    question = (
        f"{name} has {start} coins and saves {week} coins every week for {weeks} weeks. Then "
        f"{name} buys a present for {price} coins. How many coins are saved in these weeks, how "
        "many are there before the present is bought, and how many are left?"
    )
    steps = [
        f"In {weeks} weeks {name} saves {weeks} * {week} = {week * weeks} coins.",
        f"With the {start} coins from before, {name} has {start} + {week * weeks} = {saved} coins.",
        f"After the present, {saved} - {price} = {saved - price} coins are left.",
    ]
    return question, steps, saved - price


def factory(rng: Random) -> Problem:
    x = rng.choice(OBJECTS)
    machines, rate, hours = rng.randint(2, 9), rng.randint(3, 12), rng.randint(2, 8)
    hourly = machines * rate
    total = hourly * hours
    bad = rng.randint(1, min(30, total - 1))
    question = (
        f"A factory has {machines} machines. Each machine packs {rate} {x} per hour and works for "
        f"{hours} hours. In the evening {bad} of the {x} turn out to be damaged. How many {x} are "
        "packed per hour, how many on the whole day, and how many of them are good?"
    )
    steps = [
        f"In one hour the machines pack {machines} * {rate} = {hourly} {x}.",
        f"In {hours} hours they pack {hours} * {hourly} = {total} {x}.",
        f"{bad} of them are damaged, so {total} - {bad} = {total - bad} {x} are good.",
    ]
    return question, steps, total - bad


def reading(rng: Random) -> Problem:
    name = rng.choice(NAMES)
    a, b, c = (rng.randint(5, 40) for _ in range(3))
    read = a + b + c
    pages = read + rng.randint(5, 80)
    question = (
        f"{name} reads a book with {pages} pages: {a} pages on Monday, {b} pages on Tuesday and "
        f"{c} pages on Wednesday. How many pages has {name} read after each day, and how many "
        "pages are still to be read?"
    )
    steps = [
        f"On Monday {name} reads {a} pages.",
        f"After Tuesday {name} has read {a} + {b} = {a + b} pages.",
        f"After Wednesday {name} has read {a + b} + {c} = {read} pages.",
        f"The book has {pages} pages, so {pages} - {read} = {pages - read} pages are still to be "
        "read.",
    ]
    return question, steps, pages - read


FAMILIES = (
    shop, collection, sharing, journey, rectangle, ages, hall, savings, factory, reading,
)  # fmt: skip
