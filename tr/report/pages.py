"""Records as pages: a run's own report, a report over many records, the README's figures."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tr.report.kernels import fast_matmuls
from tr.report.machine import ROOT
from tr.report.plots import plots
from tr.report.record import load, write
from tr.report.tables import markdown, number, tables

RECORDS = ROOT / "experiments" / "records"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
NOTHING = "No records are committed yet."

#: experiments that the README shows, and what of their figures
HEADLINES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "dflash2_verify": dict,
    "decode": dict,
    "verify_cost": dict,
    "prefill": dict,
    "long_turn": dict,
    "kv_quality": dict,
    "step_profile": dict,
    "compile_compare": dict,
    "kernel_bench": fast_matmuls,
}

#: experiments that compare something else than speculation, and what holds where they find no fault
EQUAL = {
    "replay_check": "the backend's steps equal eager steps, rows alone equal rows among others",
    "device_check": "the device's texts equal the CPU reference's, up to near ties",
    "prefill": "a prompt read in two runs on the chunks' grid equals one read whole",
    "resume_exact": "a conversation taken up again writes what one that never paused writes",
    "serve_cost": "answers through HTTP equal the engine's own",
    "serve_load": "answers under load equal those of a quiet run",
}


def ceilings_line(device: Mapping[str, Any]) -> str:
    """The limits that a run measured, or an empty string."""
    units = {
        "read_gb_per_s": ("read", "GB/s"),
        "copy_gb_per_s": ("copy", "GB/s"),
        "matmul_tflops": ("bf16 matmul", "TFLOP/s"),
        "graph_node_us": ("graph node", "us"),
    }
    if "copy_gb_per_s" not in device:
        return ""
    parts = [f"{n} {number(device[k])} {unit}" for k, (n, unit) in units.items() if k in device]
    return f"Ceilings measured in this run: {', '.join(parts)}."


def verdict_line(record: Mapping[str, Any]) -> str:
    verdict = record["verdict"]
    if verdict is None:
        return "No exactness verdict: nothing was compared."
    compared = f"{verdict['compared_tokens']:,} tokens compared"
    if verdict["exact"]:
        equal = EQUAL.get(record["experiment"], "speculative output equals raw output")
        return f"Exact: {equal}, {compared}."
    return f"NOT exact, {compared}; first divergence: {verdict['first_divergence']}"


def origin_line(record: Mapping[str, Any]) -> str:
    commit = (record["commit"] or "unknown")[:12] + (" + changes" if record["dirty"] else "")
    return (
        f"{record['device'].get('name', 'unknown device')}, {record['utc'][:10]}, commit {commit},"
        f" torch {record['versions'].get('torch')}, seed {record['seed']}"
    )


def section(record: Mapping[str, Any], title: str, images: Mapping[str, str]) -> str:
    """Markdown of one record; `images` maps a plot's name to its address."""
    parts = [f"## {title}", verdict_line(record), f"{origin_line(record)}: `{record['command']}`"]
    if line := ceilings_line(record["device"]):
        parts.append(line)
    if record["simulated_acceptance"]:
        parts.append("Acceptance is simulated: these speeds are not those of a real draft.")
    if record["warnings"]:
        parts.append("\n".join(f"- warning: {text}" for text in record["warnings"]))
    for table in tables(record["figures"]):
        parts += [f"**{table.title}**", markdown(table)]
    parts += [f"![{name.replace('_', ' ')}]({address})" for name, address in images.items()]
    return "\n\n".join(parts) + "\n"


def write_report(records: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Write `report.md` and its plots for records by title; the path of the report."""
    sections = []
    for title, record in records.items():
        prefix = "" if len(records) == 1 else f"{title.replace('/', '-')}-"
        drawn = plots(record)
        for name, data in drawn.items():
            write(folder / f"{prefix}{name}.png", data)
        sections.append(section(record, title, {name: f"{prefix}{name}.png" for name in drawn}))
    write(folder / "report.md", "\n".join(sections))
    return folder / "report.md"


def figures_block(folder: Path = RECORDS) -> str:
    """What stands between the README's markers: headline records in the order of HEADLINES, and the
    others by name, which are also those with a kernel's variant chosen by hand.
    """
    found, sections, others = [], [], []
    order = list(HEADLINES)
    for path in sorted(folder.glob("**/*.json")):
        record, title = load(path), str(path.relative_to(folder).with_suffix(""))
        by_hand = any(v for k, v in record["config"].get("kernel", {}).items() if k != "variant")
        if (name := record["experiment"]) in HEADLINES and not by_hand:
            shown = {**record, "figures": HEADLINES[name](record["figures"])}
            found.append(((order.index(name), title), shown))
        else:
            others.append(f"`{title}`")
    for (*_, title), shown in sorted(found, key=lambda item: item[0]):
        sections.append(section(shown, title, {}).replace("## ", "### ", 1))
    if others:
        sections.append(f"Further records: {', '.join(others)}.\n")
    return "\n".join(sections) or NOTHING + "\n"


def update_readme(readme: Path = README, folder: Path = RECORDS) -> bool:
    """Regenerate the README's figures; whether they changed."""
    old = readme.read_text(encoding="utf-8")
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} lacks the lines {BEGIN} and {END}")
    new = f"{head}{BEGIN}\n\n{figures_block(folder)}\n{END}{tail}"
    if new != old:
        write(readme, new)
    return new != old
