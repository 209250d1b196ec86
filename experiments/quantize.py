"""Make a 4-bit checkpoint: `quant.method` by +exp=quantize quant.method=gptq params.output=FOLDER.

Part by part; finished parts are kept beside the folder, so that the same command after an
interruption goes on from them. What `probe_layer` times is one layer of the model's shape with
random weights, for an estimate of the whole.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from experiments import calibration
from experiments.calibration import Ids, apart, batch, digest
from kernels.int4_matmul.layout import GROUP
from tr.assemble import load_dflash2, read_dflash2, read_found
from tr.checkpoint.load import Target, load_target
from tr.checkpoint.names import dflash2_table
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import Config, Quant
from tr.model import layer, mtp, text
from tr.nn.formats.dense import dense
from tr.progress import stage
from tr.quant import folder as files
from tr.quant import recipe, table
from tr.quant.hessian import Moments, matrices, observe, replace_matrices
from tr.quant.numbers import bits_per_weight, numbers
from tr.quant.recipe import Recipe
from tr.quant.sequential import Plan, assembled, sequential
from tr.quant.shelf import Files
from tr.quant.tune import Settings, tune
from tr.report.record import Outcome
from tr.roofline import head_matrices, matrix_bytes
from tr.tree import tensors

CONVERT = {"int4_g128": recipe.convert, "table4": table.convert}  # a matrix, by quant.format
STAGES = 4  # of a layer: into the mixer, out of it, into the MLP, out of it
HEAD_ROWS = 16384  # of the head that are timed
PROBED = 1024  # numbers of a tensor that tell one model from another
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass
class Text:
    """What a calibration text is made of."""

    written: int = 48  # sequences that the model writes itself
    library: int = 16  # of Python's own sources
    tokens: int = 512  # of each sequence
    seed: int = 0


@dataclass
class Options(Text):
    output: str = ""  # the folder to make
    overwrite: bool = False
    keep_parts: bool = False  # afterwards, beside the folder
    batch: int = 8  # sequences at a time
    steps: int = 80  # of tuned
    step_sequences: int = 4
    probe_layer: bool = False  # time one layer instead, of `layers` to extrapolate to
    layers: int = 0  # 0: the model's


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.probe_layer:
        return Outcome(probe(config, o))
    if not o.output:
        raise ValueError("quantize: give params.output=FOLDER, where the checkpoint goes")
    if config.quant.format not in CONVERT:
        raise ValueError(
            f"quantize: quant={config.quant.format} has no codes; use quant={' or '.join(CONVERT)}"
        )
    place = Path(o.output).expanduser()
    if place.exists() and not o.overwrite:
        raise FileExistsError(f"{place} exists; choose another params.output or overwrite it")
    source = read_found(config)[0]
    device = config.device.resolve()
    loaded, tokenizer = load_target(source, device), load_tokenizer(source)
    made = recipe_of(config.quant)
    ids = texts(loaded.params, tokenizer, o) if made.calibrated else []
    note = describe(config.quant, o, ids)
    plan, seconds = plan_of(config, o, made), {}
    decided = {
        **note,
        "format": config.quant.format,
        "model": fingerprint(loaded),
        "activations": str(plan.dtype),
    }
    shelf = Files(place.with_name(f".{place.name}.parts"), decided)
    params, head = quantise(loaded, ids, made, plan, seconds, shelf)
    if made.method == "tuned":
        params = learn(loaded.params, params, batch(ids, device), made, o, seconds)
    extra = {name: (source / name).read_text() for name in TEXTS if (source / name).is_file()}
    files.save_target(
        place, loaded.config, params, head, loaded.eos, note, extra, overwrite=o.overwrite
    )
    save_draft(config, source, place, loaded)
    if not o.keep_parts:
        shutil.rmtree(shelf.folder)
    figures = {
        "calibration": {"tokens": sum(map(len, ids)), "sha256": digest(ids)},
        "bits_per_weight": bits_per_weight((params, head)),
        "reused_parts": len(shelf.reused),
        "part_s": seconds,
        "bytes": sum(p.stat().st_size for p in place.rglob("*.safetensors")),
    }
    return Outcome(figures, warnings=loaded.warnings)


def recipe_of(quant: Quant) -> Recipe:
    return Recipe(**{f.name: getattr(quant, f.name) for f in fields(Recipe)})


def describe(quant: Quant, o: Text, ids: Ids) -> dict[str, Any]:
    """What decides the codes, for the checkpoint's own record."""
    own = {**asdict(recipe_of(quant)), "head": quant.head, "mtp": quant.mtp}
    text = {"sequences": len(ids), "tokens": sum(map(len, ids)), "sha256": digest(ids)}
    return {**own, "calibration": {**text, "seed": o.seed}}


def fingerprint(loaded: Target) -> str:
    """16 hexadecimal digits of the first numbers of every tensor."""
    own = hashlib.sha256()
    for tensor in tensors((loaded.params, loaded.mtp)).values():
        own.update(tensor.flatten()[:PROBED].float().cpu().numpy().tobytes())
    return own.hexdigest()[:16]


def texts(params: text.Params, tokenizer: Tokenizer, o: Text, judged: Ids | None = None) -> Ids:
    """The calibration text, without what shares a run with `judged`."""
    ids = calibration.written(params, tokenizer, o.written, o.tokens, o.seed)
    ids += calibration.library(tokenizer, o.library, o.tokens, o.seed)
    return apart(ids, judged) if judged else ids


def plan_of(config: Config, o: Options, made: Recipe) -> Plan:
    convert = CONVERT[config.quant.format]
    return Plan(
        lambda dense, moments: convert(dense, moments, made),
        made.calibrated,
        made.asymmetric,
        made.refined,
        dtype_on(config.device.resolve()),
        o.batch,
        with_head=config.quant.head == "same",
        with_mtp=config.quant.mtp == "same",
    )


def dtype_on(device: torch.device) -> torch.dtype:
    """What activations are while a model is calibrated."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def quantise(
    loaded: Target,
    ids: Ids,
    made: Recipe,
    plan: Plan,
    seconds: dict[str, float],
    shelf: Files | None = None,
) -> tuple[text.Params, mtp.Params | None]:
    """Every part in turn under a bar; `seconds` takes the time of each."""
    done: dict[str, Any] = {}
    tokens = batch(ids, loaded.params.embed.device) if ids else torch.zeros(1, 1).long()
    total = len(plan.parts(loaded.params, loaded.mtp))
    with stage(made.method, total, "parts") as told:
        start = time.perf_counter()
        for name, part in sequential(loaded.params, loaded.mtp, tokens, plan, shelf):
            done[name] = part
            told.advance()
            now = time.perf_counter()
            seconds[name], start = now - start, now
    return assembled(loaded.params, loaded.mtp, done)


def learn(
    whole: text.Params,
    start: text.Params,
    tokens: torch.Tensor,
    made: Recipe,
    o: Options,
    seconds: dict[str, float],
) -> text.Params:
    """`start` after `o.steps` of `tr.quant.tune` under a bar."""
    settings = Settings(o.steps, o.step_sequences, seed=o.seed)
    begun = time.perf_counter()
    with stage(f"{made.method}: KL", o.steps) as told:
        done = tune(
            whole,
            start,
            tokens,
            settings,
            lambda step, loss: told.advance(name=f"{made.method}: KL {loss:.4f}"),
        )
    seconds["tune"] = time.perf_counter() - begun
    return done


def save_draft(config: Config, source: Path, place: Path, loaded: Target) -> None:
    """The block draft beside the target, as `quant.draft` says: copied, or by its weights alone."""
    draft = source / "draft"
    if not draft.is_dir():
        return
    if config.quant.draft == "bf16":
        shutil.copytree(draft, place / "draft")
        return
    made = Recipe(config.quant.draft, zero_point=config.quant.zero_point)
    params, convert = load_dflash2(draft, loaded.params), CONVERT[config.quant.format]
    params = replace_matrices(params, lambda name, dense: convert(dense, None, made))
    shape = read_dflash2(draft)
    raw: Mapping[str, Any] = json.loads((draft / "config.json").read_text())
    files.save(
        place / "draft", params, dflash2_table(shape.layers), raw, {"method": made.method}, {}
    )


def probe(config: Config, o: Options) -> dict[str, Any]:
    """Seconds and bytes of one layer of each kind, random weights and inputs, and what the whole
    model would take by them: an extrapolation. Head rows are timed on a slice.
    """
    shape, device = config.model.spec(), config.device.resolve()
    made = recipe_of(config.quant)
    plan = plan_of(config, o, made)
    count = o.layers or shape.layers
    generator = torch.Generator(device).manual_seed(o.seed)
    dtype = torch.bfloat16
    sequences = o.written + o.library
    size = (min(o.batch, sequences), o.tokens, shape.d_model)
    batches = -(-sequences // size[0])
    rope = text.tables(shape, plan.dtype, str(device))
    eye = torch.eye(GROUP, device=device)
    plan.convert(dense((GROUP,), GROUP, generator, dtype), Moments(eye, 0 * eye, 1))  # warm
    figures: dict[str, Any] = {"kinds": {}}
    total = 0.0
    for kind in dict.fromkeys(shape.layer_types):
        own = layer.init(shape, kind, generator, dtype)
        x = [torch.randn(size, generator=generator, device=device).to(plan.dtype)] * batches
        found = time_layer(own, x, rope, plan, made, device)
        found["bytes_bf16"] = sum(2 * m.weight.numel() for m in matrices(own).values())
        figures["kinds"][kind] = found
        whole = sum(v for key, v in found.items() if key.endswith("_s"))
        total += whole * shape.layer_types.count(kind) * count / shape.layers
    rows = min(shape.vocab, HEAD_ROWS)
    head = dense((rows,), shape.d_model, generator, dtype)
    moments = Moments(torch.eye(shape.d_model, device=device), None, 1)
    head_s = timed(lambda: plan.convert(head, moments), device)[1] * shape.vocab / rows
    tokens = sequences * o.tokens
    large = {**shape.matrices, **head_matrices(shape)}
    figures["estimate"] = {
        "extrapolated": True,
        "bytes_bf16": sum(matrix_bytes(n, own, "bf16") for n, own in large.items()),
        "bytes_coded": sum(matrix_bytes(n, own, config.quant.format) for n, own in large.items()),
        "layers": count,
        "calibration_tokens": tokens,
        "passes_per_layer": passes(made),
        "stream_bytes": (1 + made.asymmetric) * tokens * shape.d_model * plan.dtype.itemsize,
        "largest_hessian_bytes": 8 * max(k for _, _, k in shape.matrices.values()) ** 2,
        "layers_s": total,
        "head_s": head_s,
        "whole_s": total + head_s,
    }
    if device.type == "cuda":
        figures["estimate"]["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return figures


def passes(made: Recipe) -> int:
    """Times that every calibration token runs through a layer."""
    observed = STAGES if made.refined else 1
    return 1 + (1 + made.asymmetric) * observed if made.calibrated else 0


@torch.inference_mode()
def time_layer(
    own: layer.Params,
    x: list[torch.Tensor],
    rope: Any,
    plan: Plan,
    made: Recipe,
    device: torch.device,
) -> dict[str, float]:
    """Seconds of gathering moments, of each matrix, and of the pass through the result.

    A layer that is quantised in stages is run once more for each; every input is gathered once.
    """

    def forward(p: layer.Params, x: torch.Tensor) -> torch.Tensor:
        return layer.sequence(p, layer.init_past(p, len(x)), x, rope, "chunk")[0]

    whole = numbers(own, plan.dtype)
    forward(whole, x[0])  # warm
    right = x if made.asymmetric else None
    (moments, _), observe_s = timed(
        lambda: observe(whole, whole, matrices(own), forward, x, right), device
    )
    forward_s = timed(lambda: [forward(whole, part) for part in x], device)[1]
    again = (STAGES - 1) * (1 + made.asymmetric) if made.refined else 0
    found = {"observe_s": observe_s + again * forward_s}
    for name, matrix in matrices(own).items():
        convert_s = timed(lambda m=matrix, n=name: plan.convert(m, moments[n]), device)[1]
        found[f"{name.rpartition('.')[2]}_s"] = convert_s
    return {**found, "forward_s": forward_s}


def timed(fn: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """What fn returns, and its seconds, the device's work included."""
    start = time.perf_counter()
    result = fn()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - start
