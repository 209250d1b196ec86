"""IFBench's instructions that come with a task of their own."""

import csv
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

from tr.evals.instructions.words import MARKS, bare, sentences

AFRICA = 52  # countries at least
CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin"
    " Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz"
    " Chisinau Bern Ljubljana Zagreb"
).split()  # of European countries north of 45 degrees, from north to south
CITY = ("ID", "Country", "City", "Year", "Count")
PRODUCT = ("ProductID", "Category", "Brand", "Price", "Stock")
STUDENT = ("StudentID", "Subject", "Grade", "Semester", "Score")
NAPOLEON = range(1769, 1822)  # years
LONGEST = {1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}


def unaccented(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def multiples(text: str) -> bool:
    """Of seven, from 14 to 49, and no other number."""
    return re.findall(r"\d+", text) == [str(n) for n in range(14, 51, 7)]


def mcq_count_length(text: str) -> bool:
    """Four questions of five options, each question longer than the one before."""
    if not text.startswith("Question"):
        return False
    parts = re.split(r"\n*Question \d+[.|):;]?\s*", text)
    questions = [part.strip() for part in parts if part.strip()]
    lengths = []
    for question in questions:
        lines = [line.strip() for line in question.split("\n")]
        marked = [bool(re.match(r"[A-Ea-e][.|)]\s*\w", line)) for line in lines]
        if sum(marked) != 5:
            return False
        lengths.append(len(" ".join(lines[: marked.index(True)])))
    return len(questions) == 4 and all(a < b for a, b in pairwise(lengths))


def reverse_newline(text: str) -> bool:
    """African countries from Zimbabwe on, a line each, in falling order."""
    lines = [line for line in (raw.strip(MARKS) for raw in text.split("\n")) if line]
    start = next((i for i, line in enumerate(lines) if "Zimbabwe" in line), None)
    if start is None or len(lines) - start < AFRICA:
        return False
    names = [unaccented(line) for line in lines[start:]]
    return names == sorted(names, reverse=True)


def word_reverse(text: str) -> bool:
    """Read from its end, one sentence about the bald eagle."""
    return "bald eagle" in " ".join(bare(text.lower()).split()[::-1])


def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


def sentence_alphabet(text: str) -> bool:
    firsts = [sentence[0].lower() for sentence in sentences(text)]
    return "".join(firsts) == "abcdefghijklmnopqrstuvwxyz"


def european_capitals_sort(text: str) -> bool:
    return [c.strip() for c in unaccented(text).split(",") if c.strip()] == CAPITALS


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """Fields with the quotes that stand around them."""
    reader = csv.reader(text.replace('"', '"""').splitlines(), delimiter=delimiter)
    try:
        return list(reader)
    except csv.Error:
        return []


def _header(text: str, names: Sequence[str], delimiter: str) -> bool:
    fields = [rf'(?:{name}|"{name}")' for name in names]
    return bool(re.fullmatch(delimiter.join(fields), text.split("\n")[0].strip()))


def csv_city(text: str) -> bool:
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error:
        return False
    return len(rows) == 8 and tuple(rows[0]) == CITY and all(len(row) == 5 for row in rows[1:])


def csv_special_character(text: str) -> bool:
    """One field at least in quotes, with a mark in it."""
    rows = _rows(text, ",")
    if not _header(text, PRODUCT, r",[ \t]*") or len(rows) != 15:
        return False
    special = re.compile(r'".*[^\d\w\s].*"')
    return all(len(row) == 5 for row in rows[1:]) and any(
        special.match(value) for row in rows[1:] for value in row
    )


def csv_quotes(text: str) -> bool:
    """Tabs between fields, and each of them in quotes."""
    rows = _rows(text, "\t")
    if not _header(text, STUDENT, r"\t *") or len(rows) != 4:
        return False
    quoted = re.compile(r'\s*".*"\s*', re.DOTALL)
    return all(len(row) == 5 and all(quoted.fullmatch(v) for v in row) for row in rows)


def date_format_list(text: str) -> bool:
    """Dates of Napoleon's life, YYYY-MM-DD, between commas."""
    for date in text.split(","):
        match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", date.strip())
        if not match:
            return False
        year, month, day = map(int, match.groups())
        if year not in NAPOLEON or not 1 <= day <= LONGEST.get(month, 0):
            return False
    return True


CHECKS: dict[str, Callable[..., bool]] = {
    "custom:multiples": multiples,
    "custom:mcq_count_length": mcq_count_length,
    "custom:reverse_newline": reverse_newline,
    "custom:word_reverse": word_reverse,
    "custom:character_reverse": character_reverse,
    "custom:sentence_alphabet": sentence_alphabet,
    "custom:european_capitals_sort": european_capitals_sort,
    "custom:csv_city": csv_city,
    "custom:csv_special_character": csv_special_character,
    "custom:csv_quotes": csv_quotes,
    "custom:date_format_list": date_format_list,
}
