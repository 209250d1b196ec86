"""Read a checkpoint tensor by tensor: what is stored, and how it would be held; no model, no GPU.

weights=checkpoint weights.path=FOLDER. `decode` reads every tensor, restores its numbers and lets
them go, so that errors are measured and memory stays at one matrix; without it headers and scales
are read alone.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from experiments.peak import forget, peak_bytes
from tr.assemble import open_dflash2, read_found, requantises
from tr.checkpoint import survey
from tr.checkpoint.imports.report import Held, sentences, summary
from tr.config import Config
from tr.quant import rtn
from tr.report.record import Outcome


@dataclass
class Options:
    decode: bool = True
    worst: int = 8  # tensors that are named with their errors


def describe(held: Held) -> dict[str, Any]:
    return {
        "format": held.format,
        "kind": held.kind,
        "largest_error": held.max_error,
        "relative_error": held.relative_error,
    }


def draft(folder: Path, dtype: torch.dtype) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Figures and warnings of a draft's files, every tensor decoded."""
    loading, shapes, _ = open_dflash2(folder, dtype)
    report = tuple(survey.streamed(loading, shapes))
    told = summary(report)
    figures = {
        "tensors": len(report),
        "stored_bytes": sum(held.stored_bytes for held in report),
        "kinds": told.kinds,
        "formats": told.formats,
    }
    return figures, tuple(f"draft: {sentence}" for sentence in sentences(report))


def run(config: Config) -> Outcome:
    o = config.options(Options)
    before = forget()
    start = perf_counter()
    folder, found = read_found(config)
    stored = [one for parts in found.plan.reads.values() for one in parts]
    rounding = requantises(config)
    packed = config.quant.format == "int4_g128"
    items = survey.sizes(found, rounding, packed)
    plan_s = perf_counter() - start
    formats: dict[str, dict[str, Any]] = {}
    for one in stored:
        row = formats.setdefault(one.format.name, {"tensors": 0, "stored_bytes": 0})
        row["tensors"] += 1
        row["stored_bytes"] += one.nbytes
    figures: dict[str, Any] = {
        "tensors": len(stored),
        "skipped_tensors": len(found.plan.skipped),
        "stored_bytes": sum(one.nbytes for one in stored),
        "largest_tensor_bytes": max(one.nbytes for one in stored),
        "plan_s": plan_s,
        "inventory": formats,
        "held": {
            name: {"as_numbers_gb": 2e-9 * size.numbers, "as_int4_gb": 1e-9 * size.tiles}
            for name, size in items.items()
        },
    }
    warnings = found.warnings
    if o.decode:
        start = perf_counter()
        report = tuple(
            survey.stream(found, rtn.arrive if packed else None, rtn.arrive if rounding else None)
        )
        seconds = perf_counter() - start
        told = summary(report)
        warnings += sentences(report)
        worst = sorted(report, key=lambda held: -(held.relative_error or 0.0))[: o.worst]
        figures |= {
            "worst": {held.name: describe(held) for held in worst if held.relative_error},
            "kinds": told.kinds,
            "formats": told.formats,
            "decode_s": seconds,
            "decode_gb_per_s": figures["stored_bytes"] / seconds / 1e9,
            "peak_rss_bytes": peak_bytes(),
            "rss_before_bytes": before,
        }
    if o.decode and (folder / "draft").is_dir():
        figures["draft"], said = draft(folder / "draft", found.shapes.text.norm.dtype)
        warnings += said
    if found.plan.skipped:
        warnings += (
            f"{len(found.plan.skipped)} tensors are left unread, {found.plan.skipped[0]}"
            " among them",
        )
    return Outcome({"folder": folder.name, **figures}, warnings=warnings)
