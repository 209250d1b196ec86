"""A checkpoint as others serve it: +exp=export params.to=hf|compressed_tensors params.path=FOLDER.

hf: every number in the model's dtype. compressed_tensors: int4 codes as pack-quantized, where their
minimums are integer multiples of their scales (+exp=quantize quant.zero_point=integer). A draft
beside the weights goes to draft/ in its published layout. Read and written tensor by tensor.
"""

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from tr.assemble import open_dflash2, read_found
from tr.checkpoint.exports.layouts import of_draft, of_target
from tr.checkpoint.exports.write import KINDS, Written, write
from tr.checkpoint.files import new_folder
from tr.checkpoint.imports.report import sentences, summary
from tr.checkpoint.load import Loading
from tr.config import Config, check_choice
from tr.report.record import Outcome


@dataclass
class Options:
    to: str = "hf"
    path: str = ""  # the folder to make
    overwrite: bool = False
    plain: list[str] = field(default_factory=list)  # matrices to write as numbers: names, re:REGEX
    draft: bool = True  # where there is one
    shard_gb: float = 2.0  # of a file at most


def run(config: Config) -> Outcome:
    o = config.options(Options)
    check_choice("params.to", o.to, KINDS)
    if not o.path:
        raise ValueError("export: give params.path=FOLDER, where the checkpoint goes")
    if config.quant.format != "bf16":
        raise ValueError(
            f"export: quant={config.quant.format} makes codes at load; export writes what a"
            " checkpoint holds: make one with +exp=quantize, then weights.path=FOLDER"
        )
    source, found = read_found(config)
    place = Path(o.path).expanduser()
    if place.resolve() == source.resolve():
        raise ValueError(f"export: {place} is the checkpoint itself; choose another params.path")
    start = perf_counter()
    figures: dict[str, Any] = {}
    warnings = found.warnings
    with new_folder(place, o.overwrite) as new:
        loading = Loading(found.files, found.plan, "cpu")
        layout = of_target(source, found, o.to, o.plain, int(o.shard_gb * 1e9))
        written = write(new, loading, found.with_tables("cpu"), layout)
        figures |= described(written)
        warnings += said(written, o.to)
        if o.draft and (source / "draft").is_dir():
            (new / "draft").mkdir()
            dtype = found.shapes.text.norm.dtype
            figures["draft"], more = draft(source / "draft", new / "draft", o, dtype)
            warnings += more
    return Outcome({**figures, "seconds": perf_counter() - start}, warnings=warnings)


def draft(
    source: Path, place: Path, o: Options, dtype: torch.dtype
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Figures and warnings of the draft's export; as numbers where it has no codes to pack."""
    loading, shapes, table = open_dflash2(source, dtype)
    coded = any(one.foreign for parts in loading.plan.reads.values() for one in parts)
    kind = o.to if coded else "hf"
    layout = of_draft(source, table, dtype, kind, o.plain, int(o.shard_gb * 1e9))
    written = write(place, loading, shapes, layout)
    return described(written), said(written, kind)


def described(written: Written) -> dict[str, Any]:
    return {
        "tensors": written.tensors,
        "bytes": written.nbytes,
        "coded_matrices": len(written.coded),
        "plain_matrices": len(written.numbers),
        "read": summary(written.report).kinds,
    }


def said(written: Written, kind: str) -> tuple[str, ...]:
    """Warnings: what is not as it was stored."""
    known = set(written.coded)
    restored = [h.name for h in written.report if h.format != "plain" and h.name not in known]
    if kind == "hf" or not restored:
        return sentences(written.report)
    return sentences(written.report) + (
        f"{len(restored)} matrices that were stored as codes are written as numbers,"
        f" {restored[0]} among them",
    )
