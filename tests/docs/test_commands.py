"""Every command of the written pages is one that its program takes; the marked ones run."""

import functools
import importlib
import re
import shlex
import sys

import pytest

from tests.docs.reading import Command, commands, pages
from tr import overrides
from tr.experiment import DEMO
from tr.report.__main__ import parser
from tr.report.machine import ROOT

ROOTS = {"tr.experiment": "config", "tr.generate": "generate", "tr.serve": "serve"}
ROOTS |= {"tr.doctor": "doctor"}
MODULES = (*ROOTS, "tr.report", "pytest")
#: programs of others, in sh blocks: nothing is known of them but their names
OTHERS = ("claude", "export", "hf", "llama-server", "ollama", "pip", "python", "qwen", "vllm")
CHOOSING = ("+exp=", "+sweep=", "run=")
ASSIGNED = re.compile(r"[A-Z_]+=")
ALL = [command for page in pages() for command in commands(page)]
BLOCKS = [command for command in ALL if command.runs]


def words(command: Command) -> list[str]:
    """A command's words behind the variables that it sets."""
    found = shlex.split(command.text, comments=True)
    while found and ASSIGNED.match(found[0]):
        del found[0]
    return found


@functools.cache
def composed(args: tuple[str, ...], root: str) -> None:
    """Raises ValueError for what the command would refuse before it does anything."""
    if "--help" in args:
        group = next((arg for arg in args if not arg.startswith("-")), "")
        overrides.usage("a command", root, group)
        return
    if root == "config" and not any(arg.startswith(CHOOSING) for arg in args):
        args = (DEMO, *args)
    line = overrides.read(list(args), root)
    for job in line.jobs if root == "config" else ():
        job.config.options(importlib.import_module(f"experiments.{job.config.run}").Options)


def check(found: list[str]) -> None:
    program, *args = found
    if program == "make":
        rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        targets = [arg for arg in args if "=" not in arg]
        assert targets and set(targets) <= set(rules), f"make knows {rules}, got {targets}"
        return
    if [program, *args[:1]] != ["python", "-m"] or args[1] not in MODULES:
        raise ValueError(f"expected make or python -m with one of {', '.join(MODULES)}")
    module, args = args[1], args[2:]
    if module in ROOTS:
        composed(tuple(args), ROOTS[module])
    elif module == "tr.report":
        if "--help" not in args:
            parser().parse_args(args)
    elif module == "pytest":
        for path in (arg for arg in args if arg.startswith("tests")):
            assert (ROOT / path).exists(), f"{path} is not there"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_programs_take_what_is_written(page):
    for command in commands(page):
        found = words(command)
        try:
            if command.language == "bash":
                check(found)
            else:
                assert not found or found[0] in OTHERS, f"expected one of {', '.join(OTHERS)}"
        except (ValueError, AssertionError, SystemExit) as error:
            raise AssertionError(f"{command}: {command.text}: {error}") from error


@pytest.mark.parametrize(
    "text, reason",
    [
        ("python -m tr.experiment +exp=decode params.kontexts=[0]", "kontexts"),
        ("python -m tr.experiment +exp=decod", "decod"),
        ("python -m tr.serve prot=8000", "prot"),
        ("python -m tr.doctor checks=[memry]", "memry"),
        ("python -m tr.experiment -m +sweep=kernel", "kernel"),
        ("python -m tr.reports outputs", "expected make or"),
        ("python -m pytest tests/none.py", "is not there"),
        ("make demos", "make knows"),
    ],
)
def test_a_wrong_command_is_noticed(text, reason):
    with pytest.raises((ValueError, AssertionError), match=reason):
        check(words(Command("page", 1, text, "bash", False)))


def test_commands_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "a\n\n<!-- run -->\n```bash\n# no\npython -m a \\\n  b  # c\nd\n```\n\n```\ne\n```\n"
    )
    assert [(c.line, shlex.split(c.text, comments=True), c.runs) for c in commands(page)] == [
        (7, ["python", "-m", "a", "b"], True),
        (8, ["d"], True),
    ]


@pytest.mark.parametrize("command", BLOCKS, ids=str)
def test_marked_commands_run(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the doctor leaves it
    module, *args = words(command)[2:]
    monkeypatch.setattr(sys, "argv", [module, *args])
    code = importlib.import_module(entry(module)).main()
    assert code == 0, capsys.readouterr()


def entry(module: str) -> str:
    return f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module


def test_some_commands_run():
    assert {command.page for command in BLOCKS} >= {"docs/cards.md", "docs/evaluating.md"}
