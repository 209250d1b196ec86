"""What is generated from committed records: the README's figures, docs/figures.md and its plots."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tr.report import headlines, history, pictures
from tr.report.headlines import is_by_hand
from tr.report.kernels import fast_matmuls
from tr.report.machine import ROOT
from tr.report.origin import CELLS
from tr.report.pages import section
from tr.report.plot import SUFFIX, Plot, text
from tr.report.plot import load as load_plot
from tr.report.plots import plots
from tr.report.plots.across import progress, together
from tr.report.record import load, write
from tr.report.tables import Table, markdown

RECORDS = "experiments/records"
README = "README.md"
PAGE = "docs/figures.md"
FOLDER = "docs/figures"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
INLINE = re.compile(r"<!-- figure (\S+) (\S+) (\S+) -->(.*?)<!-- / -->", re.DOTALL)
NOTHING = "No records are committed yet."
Records = Mapping[str, Mapping[str, Any]]

#: plots by name: the experiment, and which of its plots; the first record by title that has it
CHOSEN = {
    "switches": ("ablation", "switches"),
    "tokens_per_s": ("draft_compare", "tokens_per_s"),
    "acceptance": ("draft_compare", "accepted_by_position"),
    "kl_by_bits": ("quality", "kl_by_bits"),
    "step_us": ("step_profile", "step_us"),
}
PROGRESS = ("h200/decode-int4", "contexts.0.tokens_per_s", "Raw decoding of the 27B's shape")
SHOWN = ("progress", "switches", "wall_by_context", "tokens_per_s", "kl_by_bits")
MOST = 4  # of these, in the README itself
CUT = {"kernel_bench": fast_matmuls}  # figures of which a page shows a part


def committed(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.relative_to(folder).with_suffix("")): load(path)
        for path in sorted(folder.glob("**/*.json"))
    }


def chosen(records: Records) -> dict[str, Plot]:
    """Plots of single records, and of raw decoding on cards side by side."""
    found: dict[str, Plot] = {}
    usual = {title: record for title, record in records.items() if not is_by_hand(record)}
    on_cards = {t: r for t, r in usual.items() if r["device"].get("kind") == "cuda"}
    if "wall_by_context" in (shared := together(on_cards)):
        found["wall_by_context"] = shared["wall_by_context"]
    for name, (experiment, plot) in CHOSEN.items():
        for record in usual.values():
            if record["experiment"] == experiment and not record["simulated_acceptance"]:
                if drawn := plots(record).get(plot):
                    found.setdefault(name, drawn)
    return found


def over_time(root: Path, records: Records) -> dict[str, Plot]:
    """The headline figure over commits: all of them where git has the history, and otherwise the
    stored ones, which a test checks wherever the history is.
    """
    title, figure, said = PROGRESS
    stored = root / FOLDER / f"progress{SUFFIX}"
    path = root / RECORDS / f"{title}.json"
    if title not in records:
        return {}
    if history.is_whole(path.parent):
        return {"progress": progress(path, figure, said)}
    if stored.exists():
        return {"progress": load_plot(stored)}
    return {}


def grid(drawn: Mapping[str, Plot]) -> str:
    """The README's plots, two in a row."""
    shown = [name for name in SHOWN if name in drawn][:MOST]
    return "\n".join(pictures.full_image(f"{FOLDER}/{n}", drawn[n], "49%") for n in shown)


def block(records: Records, drawn: Mapping[str, Plot]) -> str:
    """Between the README's markers: the headlines, their commands, and plots."""
    table = headlines.tables(records, PAGE)
    if not table:
        return NOTHING
    commands = headlines.commands(records)
    details = f"<details><summary>Commands that make these records</summary>\n\n{commands}\n\n"
    return "\n\n".join(filter(None, (table, f"{details}</details>", grid(drawn))))


def page(records: Records, drawn: Mapping[str, Plot]) -> str:
    """The plots, an index, and every record's tables."""
    parts = [
        "# Figures\n\nGenerated from `experiments/records/` by `python -m tr.report --readme`; the"
        " data of each plot lies beside it, as `NAME.plot.json`.\n"
    ]
    parts += [f"{pictures.full_image(f'figures/{name}', plot)}\n" for name, plot in drawn.items()]
    names = ("device", "power limit, W", "torch", "commit", "date", "exact")
    rows = tuple(
        (f"[{title}](#{title.replace('/', '').lower()})", *(CELLS[n](record) for n in names))
        for title, record in records.items()
    )
    parts.append(f"{markdown(Table('records', ('record', *names), rows), '---|')}\n")
    for title, record in records.items():
        figures = CUT.get(record["experiment"], dict)(record["figures"])
        parts.append(section({**record, "figures": figures}, title))
    return "\n".join(parts)


def inline(text: str, records: Records) -> str:
    """Numbers in sentences: <!-- figure RECORD PATH FORMAT -->0.54<!-- / -->."""

    def said(match: re.Match[str]) -> str:
        title, path, form = match.group(1, 2, 3)
        if title not in records:
            raise ValueError(f"README names the record {title}, which {RECORDS} does not hold")
        value = history.figure(records[title], path)
        if not isinstance(value, (int, float)):
            raise ValueError(f"README names {path} of {title}: expected a number, got {value}")
        return f"<!-- figure {title} {path} {form} -->{format(value, form)}<!-- / -->"

    return INLINE.sub(said, text)


def generated(root: Path = ROOT) -> tuple[dict[str, str], dict[str, Plot]]:
    """Texts by path under `root`, and plots by name."""
    old = (root / README).read_text(encoding="utf-8")
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{root / README}: expected the lines {BEGIN} and {END}, got none; put them where the"
            " figures are to stand"
        )
    records = committed(root / RECORDS)
    drawn = over_time(root, records) | chosen(records)
    made = f"{inline(head, records)}{BEGIN}\n\n{block(records, drawn)}\n\n{END}"
    texts = {README: made + inline(tail, records), PAGE: page(records, drawn)}
    texts |= {f"{FOLDER}/{name}{SUFFIX}": text(plot) for name, plot in drawn.items()}
    return texts, drawn


def pictures_of(name: str) -> list[str]:
    return [f"{FOLDER}/{name}-{theme.name}.svg" for theme in pictures.THEMES]


def update(root: Path = ROOT) -> list[str]:
    """Write what has changed; their paths. Pictures are drawn again where their data changed, so
    that another matplotlib leaves them alone.
    """
    texts, drawn = generated(root)
    changed = [
        path
        for path, made in texts.items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != made
    ]
    for name, plot in drawn.items():
        files = pictures_of(name)
        stale = f"{FOLDER}/{name}{SUFFIX}" in changed
        if stale or not all((root / file).exists() for file in files):
            for file, data in pictures.full(f"{FOLDER}/{name}", plot, ("svg",)).items():
                if file in files:
                    write(root / file, data)
                    changed.append(file)
    for path in changed:
        if path in texts:
            write(root / path, texts[path])
    return changed
