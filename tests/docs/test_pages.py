"""Links lead somewhere, what is named in backticks exists, and computed tables are current."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.docs import cards
from tests.docs.reading import pages, prose
from tr.report.machine import ROOT
from tr.report.readme import BEGIN, END

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`([^`\n]+)`")
ROOMS = ("configs", "docs", "experiments", "kernels", "notebooks", "tests", "tools", "tr")
PATH = re.compile(rf"(?:{'|'.join(ROOMS)})/[\w./-]*(?:::\w+)?")
PLACEHOLDER = re.compile(r"\b(?:NAME|OPERATOR|DEVICE)")  # a name that the reader chooses


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken(path: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(prose(path.read_text(encoding="utf-8"))):
        to, _, anchor = link.partition("#")
        if re.match(r"https?://", link):
            continue
        file = path.parent / to if to else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            found.append(link)
    return found


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def missing(text: str) -> list[str]:
    """Files and tests named in backticks that are not there."""
    found = []
    for name in NAMED.findall(text):
        if not PATH.fullmatch(name) or PLACEHOLDER.search(name):
            continue
        path, _, test = name.partition("::")
        file = ROOT / path
        if not file.exists() or (test and test not in functions(file)):
            found.append(name)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_and_names_exist(page):
    text = page.read_text(encoding="utf-8")
    assert broken(page) == []
    assert missing(re.sub(f"{BEGIN}.*?{END}", "", prose(text), flags=re.S)) == []


def test_what_is_not_there_is_noticed(tmp_path):
    (tmp_path / "b.md").write_text("# One thing\n")
    page = tmp_path / "a.md"
    page.write_text("[x](b.md#one-thing) [y](b.md#two) [z](c.md) [w](https://a.b/c)")
    assert broken(page) == ["b.md#two", "c.md"]
    here = "tests/docs/test_pages.py"
    assert missing(f"`{here}::test_links_and_names_exist` `tr/` `tr/NAME.py` `a/b`") == []
    assert missing(f"`{here}::test_none` `tr/none.py`") == [f"{here}::test_none", "tr/none.py"]


def test_every_page_is_reached_from_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {link.partition("#")[0] for link in LINK.findall(text)}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_every_trap_names_its_test():
    rows = re.findall(r"^\| (?!trap|--).*$", (ROOT / "docs/traps.md").read_text(), re.M)
    assert rows and all(re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", row) for row in rows)


def test_computed_tables_are_current():
    text = (ROOT / cards.PAGE).read_text(encoding="utf-8")
    assert cards.page(text) == text, "run: python -m tests.docs.cards"
