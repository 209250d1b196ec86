"""Collect the training texts of the tiny model from free Debian packages and the Python library.

Writes one xz file with a JSON object a line: source, kind (prose, code, chinese), split, text.
A document goes to the split "heldout" where the hash of its source and index falls in a 1 % bucket.
"""

import hashlib
import json
import lzma
import multiprocessing
import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.text_readers import READERS
from tr.config import Config
from tr.report.record import Outcome

SHORTEST, LONGEST = 1_000, 40_000  # characters of a document
HELDOUT_PER_MILLE = 10


@dataclass(frozen=True)
class Source:
    """Files of one Debian package (or of the running Python's library where package = python)."""

    package: str
    kind: str
    licence: str
    reader: str
    patterns: tuple[str, ...]
    skip: str = r"$^"  # regex of paths left out


def _docs(package: str, licence: str, *patterns: str, reader="html", kind="prose", skip=r"$^"):
    return Source(package, kind, licence, reader, patterns, skip)


CODE_SKIP = (
    r"/(tests?|idle_test|lib2to3|encodings|pydoc_data|site-packages|dist-packages/pip|locale"
    r"|migrations|testing|_vendor|benchmarks|parsetab|rust|autolev|rubi)/|/test_|_test\.py|tables?\.py"
    r"|_data\.py|/(_pydecimal|lextab|yacctab|_sysconfigdata.*|entities|_emoji.*|_unicode.*)\.py"
)
PY = "usr/lib/python3/dist-packages"

SOURCES = (
    _docs("r-cran-janeaustenr", "public domain (texts)", "usr/lib/R/**/Rdata.rdb",
          reader="r_strings"),
    _docs("anarchism", "GPL-2", "usr/share/doc/anarchism/markdown/*.md.gz", reader="markdown",
          skip="changelog|alinks"),
    _docs("endless-sky-data", "GPL-3+", "usr/share/games/endless-sky/data/**/*.txt",
          reader="backticks"),
    *(_docs(f"wesnoth-1.16-{c}", "GPL-2+", "usr/share/games/wesnoth/**/*.cfg", reader="wml")
      for c in "httt utbs tsg thot sof nr low l ei did dm trow ttb dw sotbe sota".split()),
    _docs("cataclysm-dda-data", "CC-BY-SA-3.0", "usr/share/games/cataclysm-dda/**/*.json",
          reader="json"),
    _docs("crawl-common", "GPL-2+", "usr/share/crawl/dat/descript/*.txt", reader="records"),
    _docs("jargon-text", "public domain", "usr/share/doc/jargon-text/jargon.txt.gz",
          reader="plain"),
    _docs("miscfiles", "public domain", "usr/share/state/*.gz", reader="plain"),
    _docs("fortunes", "BSD-3-Clause", "usr/share/games/fortunes/*", reader="records",
          skip=r"\.(dat|u8)$|/off/"),
    _docs("fortunes-min", "BSD-3-Clause", "usr/share/games/fortunes/*", reader="records",
          skip=r"\.(dat|u8)$"),
    _docs("rust-doc", "MIT or Apache-2.0",
          *(f"usr/share/doc/rust-doc/html/{b}/**/*.html" for b in
            "book nomicon reference rust-by-example cargo rustc edition-guide embedded-book "
            "rustdoc".split()), skip=r"/print\.html|/toc\.html"),
    _docs("python3.11-doc", "PSF-2.0", "usr/share/doc/python3.11/html/_sources/**/*.txt",
          reader="rst"),
    _docs("python-django-doc", "BSD-3-Clause", "usr/share/doc/python-django-doc/html/**/*.html",
          skip="genindex|py-modindex"),
    _docs("python-sqlalchemy-doc", "MIT", "usr/share/doc/python-sqlalchemy-doc/html/**/*.html",
          skip="genindex|changelog_"),
    _docs("sqlite3-doc", "public domain", "usr/share/doc/sqlite3/**/*.html",
          skip="/(releaselog|keyword_index|hlr|requirements|matrix)"),
    _docs("postgresql-doc-15", "PostgreSQL", "usr/share/doc/postgresql-doc-15/html/*.html",
          skip="bookindex|/release-"),
    _docs("perl-doc", "Artistic or GPL-1+", "usr/share/perl/*/pod/*.pod", reader="pod",
          skip="perltoc|perlapi"),
    _docs("apache2-doc", "Apache-2.0", "usr/share/doc/apache2-doc/manual/en/**/*.html"),
    _docs("git-doc", "GPL-2", "usr/share/doc/git-doc/*.html"),
    _docs("gnome-user-docs", "CC-BY-SA-3.0", "usr/share/help/C/**/*.page"),
    _docs("libreoffice-help-en-us", "MPL-2.0", "usr/share/libreoffice/help/en-US/**/*.html"),
    _docs("vim-runtime", "Vim", "usr/share/vim/vim90/doc/usr_*.txt", reader="plain"),
    _docs("debian-handbook", "GPL-2+ or CC-BY-SA-3.0",
          "usr/share/doc/debian-handbook/html/en-US/*.html"),
    _docs("debian-reference-en", "GPL-2+", "usr/share/doc/debian-reference*/docs/*.en.html",
          "usr/share/debian-reference/*.en.html"),
    _docs("debian-history", "GPL-2+", "usr/share/doc/debian-history/docs/*.en.html",
          "usr/share/doc/debian-history/docs/*.html", skip=r"\.(?!en)[a-z]{2}(-[a-z]+)?\.html"),
    _docs("debian-policy", "GPL-2+", "usr/share/doc/debian-policy/policy.txt.gz", reader="plain"),
    _docs("developers-reference", "GPL-2+", "usr/share/doc/developers-reference/**/*.html",
          "usr/share/developers-reference/*.html"),
    _docs("debmake-doc", "MIT", "usr/share/doc/debmake-doc/html/*.en.html",
          "usr/share/doc/debmake-doc/debmake-doc.en.txt.gz"),
    _docs("debian-faq", "GPL-2+", "usr/share/doc/debian/FAQ/*.en.html"),
    _docs("harden-doc", "GPL-2+", "usr/share/doc/harden-doc/html/**/*.en.html",
          "usr/share/doc/harden-doc/html/**/en*/*.html"),
    _docs("debian-edu-doc-en", "GPL-2+",
          "usr/share/doc/debian-edu-doc-en/debian-edu-bookworm-manual.html"),
    _docs("installation-guide-amd64", "GPL-2+", "usr/share/doc/**/en/*.html"),
    _docs("exim4-doc-html", "GPL-2+", "usr/share/doc/exim4-doc-html/**/*.html"),
    _docs("mutt", "GPL-2+", "usr/share/doc/mutt/html/*.html", skip="manual.html|reference.html"),
    _docs("zsh-doc", "Zsh (MIT style)", "usr/share/doc/zsh-common/html/*.html", skip="Index"),
    _docs("dict-foldoc", "GFDL-1.3", "usr/share/dictd/foldoc.dict.dz", reader="plain"),
    _docs("doc-debian", "free, public statements", "usr/share/doc/debian/*.txt.gz",
          reader="plain"),
    _docs("manpages", "GPL-2+, BSD and others", "usr/share/man/man7/*.gz", reader="man"),
    _docs("manpages-dev", "GPL-2+, BSD and others", "usr/share/man/man[23]/*.gz", reader="man"),
    _docs("fortunes-zh", "GPL-3+", "usr/share/games/fortunes/*", reader="records",
          kind="chinese", skip=r"\.(dat|u8)$"),
    _docs("debian-reference-zh-cn", "GPL-2+", "usr/share/**/*.zh-cn.html", kind="chinese"),
    _docs("debian-faq-zh-cn", "GPL-2+", "usr/share/doc/**/*.html", kind="chinese"),
    _docs("debian-edu-doc-zh-cn", "GPL-2+",
          "usr/share/doc/debian-edu-doc-zh-cn/debian-edu-bookworm-manual.html", kind="chinese"),
    _docs("maint-guide-zh-cn", "GPL-2+", "usr/share/doc/**/*.html", kind="chinese"),
    _docs("debian-handbook", "GPL-2+ or CC-BY-SA-3.0",
          "usr/share/doc/debian-handbook/html/zh-CN/*.html", kind="chinese"),
    _docs("gnome-user-docs", "CC-BY-SA-3.0", "usr/share/help/zh_CN/**/*.page", kind="chinese"),
    _docs("libreoffice-help-zh-cn", "MPL-2.0", "usr/share/libreoffice/help/zh-CN/**/*.html",
          kind="chinese"),
    _docs("manpages-zh", "GFDL-1.2+, GPL-2+", "usr/share/man/zh_CN/**/*.gz", reader="man",
          kind="chinese"),
    _docs("python", "PSF-2.0", "**/*.py", reader="code", kind="code", skip=CODE_SKIP),
    *(_docs(package, licence, f"{PY}/**/*.py", reader="code", kind="code", skip=CODE_SKIP)
      for package, licence in (
          ("python3-django", "BSD-3-Clause"), ("python3-twisted", "MIT"),
          ("python3-networkx", "BSD-3-Clause"), ("python3-sqlalchemy", "MIT"),
          ("python3-docutils", "public domain"), ("python3-tornado", "Apache-2.0"),
          ("python3-matplotlib", "PSF based"), ("python3-pandas", "BSD-3-Clause"),
          ("python3-sphinx", "BSD-2-Clause"), ("python3-scipy", "BSD-3-Clause"),
          ("python3-numpy", "BSD-3-Clause"), ("python3-sympy", "BSD-3-Clause"),
          ("python3-pytest", "MIT"), ("python3-werkzeug", "BSD-3-Clause"),
          ("python3-jinja2", "BSD-3-Clause"), ("python3-aiohttp", "Apache-2.0"),
          ("python3-requests", "Apache-2.0"), ("python3-attr", "MIT"))),
)  # fmt: skip

CHARACTERS = {"prose": 42_000_000, "code": 31_000_000, "chinese": 2_500_000}


@dataclass
class Options:
    path: str = "data/texts.jsonl.xz"
    packages: str = "data/packages"
    characters: dict[str, int] = field(default_factory=lambda: dict(CHARACTERS))
    processes: int = 0
    download: bool = True


def fetch(packages: Sequence[str], folder: Path) -> list[str]:
    """Download and unpack packages below `folder`; the names that could not be had."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for package in packages:
        target = folder / package
        if target.is_dir():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            command = ["apt-get", "download", "-q", package]
            try:
                subprocess.run(command, cwd=scratch, check=True, capture_output=True)
                (deb,) = Path(scratch).glob("*.deb")
                subprocess.run(["dpkg", "-x", str(deb), str(target)], check=True)
            except (OSError, subprocess.CalledProcessError):
                missing.append(package)
    return missing


def paths_of(source: Source, packages: Path) -> list[tuple[str, Path]]:
    """(name, path) of the files of one source, sorted by name."""
    if source.package == "python":
        root = Path(sysconfig.get_paths()["stdlib"])
    else:
        root = packages / source.package
    found = {p for pattern in source.patterns for p in root.glob(pattern) if p.is_file()}
    named = sorted((str(p.relative_to(root)), p) for p in found if not p.is_symlink())
    return [(n, p) for n, p in named if not re.search(source.skip, "/" + n)]


def is_prose(paragraph: str) -> bool:
    """A sentence or more: mostly letters, starting like text and ending with punctuation."""
    if len(paragraph) < 50 or not re.match(r"[\"'(“‘\[]?[A-Z0-9`*]", paragraph):
        return False
    letters = sum(c.isalpha() and c.isascii() or c == " " for c in paragraph)
    if letters < 0.88 * len(paragraph) or paragraph[-1] not in ".!?:;\"')”’…":
        return False
    words = paragraph.split()
    return len(words) >= 8 and len(paragraph) < 7.5 * len(words) and max(map(len, words)) < 45


def is_chinese(paragraph: str) -> bool:
    han = sum("\u4e00" <= c <= "\u9fff" for c in paragraph)
    return han >= 8 and han > 0.35 * len(paragraph)


BOILERPLATE = re.compile(
    r"(?i)copyright|permission is (hereby )?granted|without warranty|all rights reserved|http://"
    r"|https://|licensed under|terms of the gnu|@|\\begin|&lt;|JavaScript"
)


def is_code(text: str) -> bool:
    lines = text.splitlines()
    if len(text) < SHORTEST or "def " not in text or "auto-generated" in text[:2000].lower():
        return False
    digits = sum(c.isdigit() for c in text)
    odd = sum(len(line) > 110 for line in lines)
    strange = sum(not c.isascii() for c in text)
    data = sum(bool(re.match(r"\s*[\"'(\[{\d-].*,$", line)) for line in lines)
    return (
        digits < 0.06 * len(text)
        and odd < 0.02 * len(lines)
        and strange < 0.01 * len(text)
        and data < 0.2 * len(lines)
    )


def read(task: tuple[str, str, Path]) -> list[str]:
    """Clean paragraphs (or one code file) of a (kind, reader, path)."""
    kind, reader, path = task
    try:
        paragraphs = READERS[reader](path)
    except (OSError, ValueError, EOFError):
        return []
    if kind == "code":
        return [p for p in paragraphs if is_code(p)]
    keep = is_prose if kind == "prose" else is_chinese
    return [p for p in paragraphs if keep(p) and not BOILERPLATE.search(p)]


def cut_code(text: str, longest: int) -> list[str]:
    """Split a module before top-level definitions into parts of at most `longest` characters."""
    parts, current = [], ""
    for piece in re.split(r"\n(?=(?:@|def |class |async def )\S)", text):
        if current and len(current) + len(piece) > longest:
            parts.append(current)
            current = ""
        current = f"{current}\n{piece}" if current else piece
    return [p for p in [*parts, current] if len(p) <= 1.5 * longest]


def documents(files: Iterable[tuple[str, list[str]]], kind: str) -> Iterable[tuple[str, str]]:
    """(name, text) of SHORTEST..LONGEST characters; short files join their neighbours."""
    name, parts, size = "", [], 0
    for file, paragraphs in files:
        if kind == "code":
            for text in paragraphs:
                yield from ((file, part) for part in cut_code(text, LONGEST // 2))
            continue
        name = name or file
        for paragraph in paragraphs:
            parts.append(paragraph)
            size += len(paragraph) + 2
            if size > LONGEST // 2:
                yield name, "\n\n".join(parts)
                name, parts, size = file, [], 0
        if size >= SHORTEST:
            yield name, "\n\n".join(parts)
            name, parts, size = "", [], 0
    if size >= SHORTEST // 2:
        yield name, "\n\n".join(parts)


def split_of(source: str, index: int) -> str:
    digest = hashlib.sha256(f"{source}#{index}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") % 1000 < HELDOUT_PER_MILLE else "train"


def collect(
    path: str | Path = "data/texts.jsonl.xz",
    packages: str | Path = "data/packages",
    characters: dict[str, int] | None = None,
    processes: int = 0,
    download: bool = True,
    sources: Sequence[Source] = SOURCES,
) -> dict[str, Any]:
    """Write the corpus to `path`; figures: bytes by kind and source with licences, warnings.

    Sources come in order and stop at the `characters` of their kind; what is missing is a warning.
    """
    room = dict(characters or CHARACTERS)
    needed = sorted({s.package for s in sources} - {"python"})
    missing = fetch(needed, Path(packages)) if download else []
    warnings = [f"package not available: {p}" for p in missing]
    seen: set[bytes] = set()
    table: list[dict[str, Any]] = []
    totals: dict[str, int] = {}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial_path = target.with_name(target.name + ".part")
    with (
        multiprocessing.Pool(processes or os.cpu_count()) as pool,
        lzma.open(partial_path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as out,
    ):
        for source in sources:
            files = paths_of(source, Path(packages))
            tasks = [(source.kind, source.reader, p) for _, p in files]
            texts = pool.map(read, tasks, chunksize=8)
            fresh = [(n, _unseen(t, seen)) for (n, _), t in zip(files, texts, strict=True)]
            written, count = 0, 0
            for index, (name, text) in enumerate(documents(fresh, source.kind)):
                if room.get(source.kind, 0) < len(text):
                    break
                room[source.kind] -= len(text)
                label = f"{source.package}:{name}"
                line = {"source": label, "kind": source.kind, "split": split_of(label, index)}
                out.write(json.dumps({**line, "text": text}, ensure_ascii=False) + "\n")
                written, count = written + len(text.encode()), count + 1
                key = f"{source.kind}_{line['split']}_bytes"
                totals[key] = totals.get(key, 0) + len(text.encode())
            full = f"the {source.kind} part is full"
            if room.get(source.kind, 0) < LONGEST and full not in warnings:
                warnings.append(full)
            elif not files and source.package not in missing:
                warnings.append(f"no files matched in {source.package}")
            row = {"package": source.package, "kind": source.kind, "licence": source.licence}
            table.append({**row, "files": len(files), "documents": count, "bytes": written})
    partial_path.replace(target)
    return {**totals, "xz_bytes": target.stat().st_size, "sources": table, "warnings": warnings}


def _unseen(paragraphs: list[str], seen: set[bytes]) -> list[str]:
    """Paragraphs not met before in the corpus; `seen` takes their hashes."""
    fresh = []
    for paragraph in paragraphs:
        key = hashlib.blake2b(re.sub(r"\W+", "", paragraph).lower().encode(), digest_size=8)
        if key.digest() not in seen:
            seen.add(key.digest())
            fresh.append(paragraph)
    return fresh


def run(config: Config) -> Outcome:
    figures = collect(**vars(config.options(Options)))
    return Outcome(figures=figures, warnings=tuple(figures.pop("warnings")))
