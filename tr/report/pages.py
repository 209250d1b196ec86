"""Records as pages: a run's own report, and one over many records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tr.report import beside, pictures, sweep
from tr.report.origin import ceilings_line, origin_line, verdict_line
from tr.report.pictures import Files
from tr.report.plot import Plot
from tr.report.plots import plots
from tr.report.plots.across import together
from tr.report.record import write
from tr.report.tables import Table, markdown, tables

PAGE = "report.md"
WROTE = "<!-- tr.report wrote: "


def section(record: Mapping[str, Any], title: str, images: Sequence[str] = ()) -> str:
    """Markdown of one record; `images` are Markdown too."""
    parts = [f"## {title}", verdict_line(record), f"{origin_line(record)}: `{record['command']}`"]
    if line := ceilings_line(record["device"]):
        parts.append(line)
    if record["simulated_acceptance"]:
        parts.append("Acceptance is simulated: these speeds are not those of a real draft.")
    if record["warnings"]:
        parts.append("\n".join(f"- warning: {text}" for text in record["warnings"]))
    for table in tables(record["figures"]):
        parts += [f"**{table.title}**", markdown(table)]
    return "\n\n".join([*parts, *images]) + "\n"


def write_report(records: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """What a run leaves beside its record: `report.md`, and a picture and data of each plot."""
    sections = []
    for title, record in records.items():
        drawn = plots(record)
        for name, plot in drawn.items():
            for file, data in pictures.quick(name, plot).items():
                write(folder / file, data)
        images = [pictures.quick_image(name, plot) for name, plot in drawn.items()]
        sections.append(section(record, title, images))
    write(folder / PAGE, "\n".join(sections))
    return folder / PAGE


def whole(
    records: Mapping[str, Mapping[str, Any]],
    extra: Mapping[str, Plot] | None = None,
    only: Sequence[str] = (),
) -> Files:
    """A report over records: tables of those of one experiment beside each other, each record's
    own section, and plots in light and dark; `only` names the plots to draw, all by default.
    """
    shared = {**together(records), **(extra or {})}
    own = {title: plots(record) for title, record in records.items()}
    names = {*shared, *(name for drawn in own.values() for name in drawn)}
    for name in only:
        if name not in names:
            experiments = ", ".join(sorted({r["experiment"] for r in records.values()}))
            raise ValueError(
                f"plot {name} has nothing to show: expected records with its figures, got"
                f" {experiments}, whose plots are {', '.join(sorted(names)) or 'none'};"
                " choose among these, or other records"
            )
    files: Files = {}

    def image(file: str, name: str, plot: Plot) -> list[str]:
        if only and name not in only:
            return []
        files.update(pictures.full(file, plot))
        return [pictures.full_image(file, plot)]

    parts = [image(name, name, plot) for name, plot in shared.items()]
    pages = ["\n\n".join(line for part in parts for line in part) + "\n"] if any(parts) else []
    for table in [*summaries(records), *beside.tables(records)]:
        pages.append(f"## {table.title}\n\n{markdown(table)}\n")
    for title, record in records.items():
        prefix = "" if len(records) == 1 else f"{title.replace('/', '-')}-"
        found = [image(f"{prefix}{name}", name, plot) for name, plot in own[title].items()]
        pages.append(section(record, title, [line for part in found for line in part]))
    return sealed(files, "\n".join(pages))


def summaries(records: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Of each experiment with more records than fit beside each other, a row per record."""
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for title, record in records.items():
        groups.setdefault(record["experiment"], {})[title] = record
    many = {name: group for name, group in groups.items() if len(group) > beside.ACROSS}
    return [sweep.table(group, name, names=True) for name, group in many.items()]


def sealed(files: Files, page: str) -> Files:
    """A report whose page names the other files, so that a later one may replace them."""
    return {**files, PAGE: f"{page}\n{WROTE}{', '.join(sorted(files))} -->\n".encode()}


def replace_folder(folder: Path, files: Files) -> None:
    """Write a report's files where nothing is, or where only an earlier report's files are."""
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    earlier = text.rpartition(WROTE)[2].partition(" -->")[0].split(", ") if WROTE in text else []
    mine = {PAGE, *earlier} if WROTE in text else set()
    inside = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    others = [name for name in inside if name not in mine]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ValueError(
            f"{folder} holds other files: expected an empty folder or an earlier report, got"
            f" {', '.join(others[:3])}{more}; choose another --output"
        )
    for name, data in files.items():
        write(folder / name, data)
    for name in inside:
        if name not in files:
            (folder / name).unlink()
