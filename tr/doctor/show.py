"""Findings as a table, and as one JSON object."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tr.doctor.finding import Finding, worst

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
Findings = Mapping[str, Sequence[Finding]]


def overall(found: Findings) -> str:
    return worst(finding.state for findings in found.values() for finding in findings)


def as_json(found: Findings, seconds: Mapping[str, float]) -> str:
    checks = {
        check: {
            "state": worst(finding.state for finding in findings),
            "seconds": round(seconds[check], 3),
            "findings": [asdict(finding) for finding in findings],
        }
        for check, findings in found.items()
    }
    return json.dumps({"state": overall(found), "checks": checks}, ensure_ascii=False)


def as_table(found: Findings, seconds: Mapping[str, float], console: Console) -> None:
    table = Table(title="What was found", show_lines=False)
    for column in ("check", "item", "state", "found", "what to do, or what it costs"):
        table.add_column(column, overflow="fold")
    for check, findings in found.items():
        for i, finding in enumerate(findings):
            state = Text(finding.state, COLOURS[finding.state])
            name = Text(check if i == 0 else "")
            table.add_row(name, Text(finding.item), state, Text(finding.found), Text(finding.todo))
        table.add_section()
    console.print(table)
    states = [finding.state for findings in found.values() for finding in findings]
    counts = ", ".join(f"{states.count(state)} {state}" for state in COLOURS)
    took = ", ".join(f"{check} {seconds[check]:.1f} s" for check in found)
    console.print(f"{counts}; {took}", highlight=False, markup=False)
