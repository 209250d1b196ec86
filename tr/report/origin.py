"""Sentences and cells: where a record's numbers come from, what they were checked for."""

from collections.abc import Mapping
from typing import Any

from tr.report.tables import number

Record = Mapping[str, Any]

#: experiments that compare something else than speculation, and what holds where they find no fault
EQUAL = {
    "replay_check": "the backend's steps equal eager steps, rows alone equal rows among others",
    "device_check": "the device's texts equal the CPU reference's, up to near ties",
    "prefill": "a prompt read in two runs on the chunks' grid equals one read whole",
    "resume_exact": "a conversation taken up again writes what one that never paused writes",
    "serve_cost": "answers through HTTP equal the engine's own",
    "serve_load": "answers under load equal those of a quiet run",
    "rivals": "the server's texts equal the engine's own",
    "ablation": "steps with an exact switch off, and with all on again, equal those with all on",
}

#: what two people's runs of one experiment may differ by, beside their configs
CELLS = {
    "device": lambda record: record["device"].get("name", "unknown"),
    "power limit, W": lambda record: _device(record, "power_limit_w"),
    "SM clock now / most, MHz": lambda record: _pair(record, "clock_sm_mhz", "clock_sm_max_mhz"),
    "memory clock, MHz": lambda record: _device(record, "clock_memory_mhz"),
    "read, GB/s": lambda record: _device(record, "read_gb_per_s"),
    "threads": lambda record: _device(record, "threads"),
    "driver": lambda record: record["device"].get("driver", "-"),
    "python": lambda record: _version(record, "python"),
    "torch": lambda record: _version(record, "torch"),
    "triton": lambda record: _version(record, "triton"),
    "commit": lambda record: commit(record),
    "date": lambda record: record["utc"][:10],
    "exact": lambda record: verdict_word(record),
}


def _device(record: Record, key: str) -> str:
    """A number of the device's; nvidia-smi's arrive as text."""
    value = record["device"].get(key)
    try:
        return f"{float(value):,.0f}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "-"


def _pair(record: Record, *keys: str) -> str:
    shown = [_device(record, key) for key in keys]
    return "-" if set(shown) == {"-"} else " / ".join(shown)


def _version(record: Record, name: str) -> str:
    return record["versions"].get(name) or "-"


def commit(record: Record, digits: int = 12) -> str:
    return (record["commit"] or "unknown")[:digits] + (" + changes" if record["dirty"] else "")


def verdict_word(record: Record) -> str:
    verdict = record["verdict"]
    return "-" if verdict is None else "yes" if verdict["exact"] else "NO"


def verdict_line(record: Record) -> str:
    verdict = record["verdict"]
    if verdict is None:
        return "No exactness verdict: nothing was compared."
    compared = f"{verdict['compared_tokens']:,} tokens compared"
    if verdict["exact"]:
        equal = EQUAL.get(record["experiment"], "speculative output equals raw output")
        return f"Exact: {equal}, {compared}."
    return f"NOT exact, {compared}; first divergence: {verdict['first_divergence']}"


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


def origin_line(record: Record) -> str:
    return (
        f"{record['device'].get('name', 'unknown device')}, {record['utc'][:10]},"
        f" commit {commit(record)}, torch {record['versions'].get('torch')}, seed {record['seed']}"
    )


def machine(record: Record) -> str:
    """The device and its power limit."""
    name, power = record["device"].get("name", "unknown device"), _device(record, "power_limit_w")
    return name if power == "-" else f"{name} {power} W"


def brief(record: Record) -> str:
    """For a plot: the model, the machine, the day, the commit."""
    model = record["config"].get("model", {}).get("name")
    where = f"{model} on {machine(record)}" if model else machine(record)
    return f"{where}, {record['utc'][:10]}, commit {commit(record, 9)}"
