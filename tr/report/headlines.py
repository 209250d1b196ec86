"""The README's first table: what committed records say in one line each."""

from collections.abc import Callable, Mapping
from typing import Any

from tr.report.origin import commit, machine, verdict_word
from tr.report.tables import Table, markdown, number

Record = Mapping[str, Any]
Line = tuple[str, str, str]  # what, figure, share of a limit


def is_by_hand(record: Record) -> bool:
    """Whether a kernel's variant was chosen by hand, or one of its switches turned off."""
    kernel = record["config"].get("kernel", {})
    return any(value not in ("", True, []) for key, value in kernel.items() if key != "variant")


def formats(record: Record) -> str:
    config = record["config"]
    return f"{config['quant']['format']}, {config['kv']['format']} cache"


def said(share: float | None, of: str) -> str:
    return "no limit known" if share is None else f"{share:.2f} {of}"


def decode(record: Record) -> list[Line]:
    """The shortest and the longest context."""
    contexts = record["figures"]["contexts"]
    ends = sorted(contexts, key=int)
    lines = []
    for context in dict.fromkeys((ends[0], ends[-1])):
        values = contexts[context]
        share = values.get("wall_fraction")
        lines.append(
            (
                f"raw decoding after {int(context):,} tokens, {formats(record)}",
                f"{number(values['tokens_per_s'])} tokens/s",
                said(share, "of the read wall"),
            )
        )
    return lines


def verify_cost(record: Record) -> list[Line]:
    """A speculative step beside a raw one, or the widest step."""
    figures = record["figures"]
    if s := figures.get("speculative"):
        what, step = f"DFlash 2 step, {s['rows']} rows drafted and verified", s
    else:
        rows = max(figures["rows"], key=int)
        what, step = f"step of {rows} rows", figures["rows"][rows]
    return [(what, f"{number(step['step_ms'])} ms", f"{step['ratio']:.2f} of a raw step")]


def dflash2_verify(record: Record) -> list[Line]:
    families = record["figures"]["families"]
    lines = []
    for name, values in families.items():
        speed, raw = values["speculative_tokens_per_s"], values["raw_tokens_per_s"]
        if speed is not None and raw is not None:
            figure = f"{number(speed)} tokens/s, raw {number(raw)}"
            step = f"{number(values['tokens_per_step'])} tokens a step"
            lines.append((f"{record['figures']['draft']}, {name}", figure, step))
    return lines


def prefill(record: Record) -> list[Line]:
    longest = max(record["figures"]["lengths"], key=int)
    values = record["figures"]["lengths"][longest]
    share = values.get("matmul_fraction")
    what = f"reading {int(longest):,} tokens, {formats(record)}"
    beside = said(share, "of the matmul ceiling")
    return [(what, f"{number(values['tokens_per_s'])} tokens/s", beside)]


def long_turn(record: Record) -> list[Line]:
    longest = max(record["figures"]["contexts"], key=int)
    values = record["figures"]["contexts"][longest]
    what = f"next turn after {int(longest):,} tokens, {formats(record)}"
    reused = f"{int(values['reused_tokens']):,} tokens reused"
    return [(what, f"{number(values['ttft_ms'])} ms to its first token", reused)]


def quality(record: Record) -> list[Line]:
    """The best candidate at no more bits than the first one's."""
    found = record["figures"]["candidates"]
    bits = next(iter(found.values()))["bits_per_weight"]
    same = {name: v for name, v in found.items() if v["bits_per_weight"] <= bits}
    best = min(same, key=lambda name: same[name]["kl_mean"])
    values = same[best]
    first, kl = next(iter(found)), f"{values['kl_mean']:.4f}"
    ratio = values["kl_mean"] / next(iter(found.values()))["kl_mean"]
    what = f"weights at {values['bits_per_weight']:.2f} bits, {best}"
    return [(what, f"KL {kl} nats, {ratio:.2f} of {first}'s", f"{values['top1']:.3f} same token")]


LINES: dict[str, Callable[[Record], list[Line]]] = {
    "decode": decode,
    "verify_cost": verify_cost,
    "prefill": prefill,
    "long_turn": long_turn,
    "dflash2_verify": dflash2_verify,
    "quality": quality,
}


def used(records: Mapping[str, Record]) -> dict[str, Record]:
    """Records that the table shows, in the order of LINES."""
    order = list(LINES)
    titles = [
        title
        for title, record in records.items()
        if record["experiment"] in LINES and not is_by_hand(record)
    ]
    titles.sort(key=lambda title: (order.index(records[title]["experiment"]), title))
    return {title: records[title] for title in titles}


def place(record: Record) -> str:
    """The device, its power limit, and which model ran on it."""
    config = record["config"]
    weights = ", random weights" if config["weights"].get("source") == "random" else ""
    return f"**{machine(record)}**, model `{config['model']['name']}`{weights}"


def tables(records: Mapping[str, Record], page: str) -> str:
    """Markdown, a table per device and model; `page` holds the whole tables. Empty where no record
    has a line.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for title, record in used(records).items():
        link = f"[{title}]({page}#{title.replace('/', '').lower()})"
        origin = f"{link}, {record['utc'][:10]}, {commit(record, 9)}"
        exact = {"yes": "; exact", "NO": "; NOT exact"}.get(verdict_word(record), "")
        for what, figure, beside in LINES[record["experiment"]](record):
            groups.setdefault(place(record), []).append((what, figure, beside + exact, origin))
    head = ("measured", "figure", "beside it", "record, date, commit")
    parts = [
        f"{where}\n\n{markdown(Table(where, head, tuple(rows)), '---|')}"
        for where, rows in groups.items()
    ]
    return "\n\n".join(parts)


def commands(records: Mapping[str, Record]) -> str:
    return "\n".join(f"- {title}: `{record['command']}`" for title, record in used(records).items())
