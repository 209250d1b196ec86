"""What is installed, against what pyproject.toml asks for, and what a missing part switches off.

It imports nothing but Python's own library: a machine may lack everything else.
"""

import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from tr.doctor.finding import FAIL, OK, WARN, Finding

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OFF = {  # what is not there without a package that is no hard requirement
    "gguf": "GGUF checkpoints cannot be read",
    "triton": "on a card, operators run their plain variants",
    "compressed-tensors": "tests of imports and exports against that library are skipped",
    "transformers": "tests of parity with that library cannot run",
}
NAME = re.compile(r"[\w.-]+")


def requirements() -> tuple[list[str], dict[str, list[str]], str]:
    """What is needed always, by extra, and of Python."""
    if PROJECT.is_file():
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
        own = project["dependencies"], project["optional-dependencies"]
        return *own, project["requires-python"]
    found: dict[str, list[str]] = {}
    for line in requires("tr") or []:
        need, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        found.setdefault(extra[1] if extra else "", []).append(need.strip())
    return found.pop("", []), found, ""


def name(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found is not None, requirement
    return found[0]


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def missing() -> list[str]:
    """The hard requirements that are not installed at all."""
    return [need for need in requirements()[0] if installed(name(need)) is None]


def check() -> Iterator[Finding]:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    needed, extras, python = requirements()
    here = platform.python_version()
    good = SpecifierSet(python).contains(here, prereleases=True)
    asked = f"pyproject.toml asks for {python}" if python else ""
    yield Finding(
        "python", OK if good else FAIL, f"{here} at {sys.executable}", "" if good else asked
    )
    met = 0
    for need in map(Requirement, needed):
        has = installed(need.name)
        if has is not None and need.specifier.contains(has, prereleases=True):
            met += 1
            if need.name == "torch":
                yield Finding("torch", OK, f"{has}, {built()}")
            continue
        found = "not installed" if has is None else f"{has}, {need.specifier} is needed"
        yield Finding(need.name, FAIL, found, f'pip install "{need}"')
    yield Finding("requirements", OK, f"{met} of {len(needed)} packages as pyproject.toml asks")
    optional = {r.name: r for lines in extras.values() for r in map(Requirement, lines)}
    for package, off in OFF.items():
        need, has = optional.get(package), installed(package)
        if has is None:
            yield Finding(package, WARN, "not installed", f"{off}; pip install {package}")
        elif need and not need.specifier.contains(has, prereleases=True):
            yield Finding(
                package, WARN, f"{has}, {need.specifier} is needed", f"pip install '{need}'"
            )
        else:
            yield Finding(package, OK, has)
    npm = shutil.which("npm")
    told = "make clients cannot run: coding clients against the server are not tested"
    yield Finding("npm", OK if npm else WARN, npm or "not found", "" if npm else told)


def built() -> str:
    """What torch was built for."""
    import torch

    hip = f"ROCm {torch.version.hip}" if torch.version.hip else "the CPU alone"
    return f"built for {f'CUDA {torch.version.cuda}' if torch.version.cuda else hip}"
