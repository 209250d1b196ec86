"""Published formats, read and compared: +exp=import_check [params.gb=6 model=qwen3_8_27b].

The embedded model is written as others publish theirs, one checkpoint for each format and oddity,
in a temporary folder; what is loaded must equal the numbers that the format's own library restores,
to the bit. Malformed twins of these must be refused by the name of the tensor. Then one file of
`gb` with random weights, as wide as `model`, is read tensor by tensor: peak memory against the
largest tensor's bytes. Raises RuntimeError at the first thing that is not so.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from experiments import large_file, published, published_twins
from experiments.peak import forget, peak_bytes
from experiments.published_cases import CASES
from experiments.published_twins import TWINS
from tr.assemble import EMBEDDED
from tr.checkpoint.imports.report import Held, summary
from tr.checkpoint.load import load_target, open_target, read_shape
from tr.checkpoint.survey import stream
from tr.config import Config, check_choice
from tr.progress import track
from tr.quant import rtn
from tr.report.record import Outcome

GGUF = "gguf"
CUT = {"ct_symmetric": "model.safetensors", GGUF: "model.gguf"}


@dataclass
class Options:
    formats: list[str] = field(default_factory=lambda: [*CASES, GGUF])
    twins: list[str] = field(default_factory=lambda: list(TWINS))
    gb: float = 0.02  # of the large file
    bound_gb: float = 3.0  # over its largest tensor
    folder: str = ""  # where files go for the time; empty: the system's


def run(config: Config) -> Outcome:
    o = config.options(Options)
    for key, chosen, known in (
        ("formats", o.formats, [*CASES, GGUF]),
        ("twins", o.twins, list(TWINS)),
    ):
        for name in chosen:
            check_choice(f"params.{key}", name, known)
    try:
        import compressed_tensors  # noqa: F401
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"import_check compares with the formats' own libraries: pip install {error.name}"
        ) from error
    plain = load_file(EMBEDDED / "model.safetensors")
    figures: dict[str, Any] = {"formats": {}, "twins": {}}
    with tempfile.TemporaryDirectory(dir=o.folder or None) as place:
        for name in track(o.formats, "import_check", "formats"):
            figures["formats"][name] = check(name, Path(place) / name, plain)
        for name in track(o.twins, "import_check", "twins"):
            sound = TWINS[name][0].replace(" ", "_")
            refuse(name, Path(place) / "twin", plain)
            figures["twins"][sound] = figures["twins"].get(sound, 0) + 1
        cut = [folder for folder in Path(place).iterdir() if folder.name in CUT]
        for folder in cut:
            refuse_cut(folder)
        figures["twins"]["cut_files"] = len(cut)
    with tempfile.TemporaryDirectory(dir=o.folder or None) as place:
        figures["stream"] = streamed(Path(place), config, o)
    return Outcome(figures)


def check(name: str, folder: Path, plain: dict[str, Tensor]) -> dict[str, Any]:
    """Write one checkpoint, load it, compare every tensor."""
    made = write_gguf(folder, plain) if name == GGUF else write(name, folder, plain)
    stored = sum(p.stat().st_size for p in folder.iterdir())
    before, start = forget(), perf_counter()
    loaded = load_target(folder)
    seconds, peak = perf_counter() - start, peak_bytes() - before
    if off := published.differences(loaded, made, plain):
        raise RuntimeError(
            f"{name}: {len(off)} tensors are not what the library restores, {off[0]} among them"
        )
    as_int4 = load_target(folder, requantise=rtn.arrive)
    return {
        "tensors": len(plain),
        "quantised_tensors": len(made.restored),
        "held": counts(loaded.report),
        "as_int4": counts(as_int4.report),
        "unequal_tensors": len(off),
        "stored_bytes": stored,
        "import_s": seconds,
        "peak_bytes": peak,
    }


def counts(report: tuple[Held, ...]) -> dict[str, int]:
    """Tensors by what became of them."""
    return {kind: row["tensors"] for kind, row in summary(report).kinds.items()}


def write(name: str, folder: Path, plain: dict[str, Tensor]) -> published.Published:
    made = CASES[name](plain)
    published.lay(made, folder, json.loads((EMBEDDED / "config.json").read_text()))
    return made


def write_gguf(folder: Path, plain: dict[str, Tensor]) -> published.Published:
    from gguf import GGMLQuantizationType as Type

    from experiments import published_gguf

    types = {
        "down_proj.weight": Type.Q4_K,
        "out_proj.weight": Type.BF16,
        "in_proj_a.weight": Type.F32,
        "gate_proj.weight": Type.Q5_1,
        "q_proj.weight": Type.Q4_0,
    }
    folder.mkdir()
    shape = read_shape(EMBEDDED)
    restored = published_gguf.write(folder / "model.gguf", plain, shape, types)
    for file in ("config.json", "generation_config.json"):
        (folder / file).write_bytes((EMBEDDED / file).read_bytes())
    return published.Published({}, {}, restored)


def refuse(name: str, folder: Path, plain: dict[str, Tensor]) -> None:
    """Write a malformed twin and see it refused in the right words."""
    sound, change, _ = TWINS[name]
    made = published_twins.one(plain, *published_twins.make(sound))
    change(made)
    published.lay(made, folder, json.loads((EMBEDDED / "config.json").read_text()))
    missing = published_twins.complaint_misses(name, complaint(folder))
    if missing:
        raise RuntimeError(f"{name}: the complaint has no {missing[0]!r}: {complaint(folder)!r}")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def complaint(folder: Path) -> str:
    """What loading says; empty where it loads."""
    try:
        load_target(folder)
    except ValueError as error:
        return str(error)
    return ""


def refuse_cut(folder: Path) -> None:
    """A file that ends early."""
    path = folder / CUT[folder.name]
    path.write_bytes(path.read_bytes()[:-1000])
    if f"{path.name} is truncated or damaged" not in complaint(folder):
        raise RuntimeError(f"{path.name} without its end: {complaint(folder)!r}")


def streamed(folder: Path, config: Config, o: Options) -> dict[str, Any]:
    """Read one large file tensor by tensor, restoring all numbers."""
    total, largest, layers = large_file.write(
        folder, config.model.spec(), int(o.gb * 1e9), config.seed
    )
    found = open_target(folder)
    before, start = forget(), perf_counter()
    report = tuple(stream(found))
    seconds, peak = perf_counter() - start, peak_bytes() - before
    if peak > largest + o.bound_gb * 1e9:
        raise RuntimeError(
            f"{total / 1e9:.2f} GB were read with {peak / 1e9:.2f} GB of memory; the bound is"
            f" {largest / 1e9:.2f} GB of the largest tensor and {o.bound_gb:g} GB"
        )
    return {
        "file_bytes": total,
        "largest_tensor_bytes": largest,
        "layers": layers,
        "peak_bytes": peak,
        "over_largest_bytes": peak - largest,
        "bound_bytes": o.bound_gb * 1e9,
        "import_s": seconds,
        "gb_per_s": total / seconds / 1e9,
        "held": counts(report),
    }
