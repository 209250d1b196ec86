"""Reading prompts: tokens per second by length and by what tokens are rounded to; a chunk's parts.

`matmul_fraction` is the rate of a run's matrix products and attention, in operations that its
shapes ask for, over the rate of a large bf16 product in the same run (`matmul_tflops`, a median).
The parts are those of the longest prompt's last chunk, by the profiler: on a CPU only operators are
told apart, so that matrix products are among `other`.

`resume` reads a prompt in two runs. In chunks on the absolute grid (`strict`) everything must equal
the one that never paused, to the bit; elsewhere that holds on a CPU, and on a card, whose library
multiplies chunks of different lengths in different ways, the last row's distance is given.
`quality` holds the model's laws with rounded tokens beside those with bf16 ones.
"""

import re
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from experiments.ceilings import CPU_SIDE, CUDA_SIDE, ceilings
from experiments.kv_quality import compare, law, windows
from experiments.trace import OTHER, record, scoped
from tr.assemble import Assembly, assemble, read_as, sampling_of
from tr.bench import Draw, time_us
from tr.config import Config
from tr.decode.step import GRID, Model, State, cuts, init_state, prefill, read
from tr.drafts.base import Draft
from tr.nn.formats.many import ACTIVATIONS, Many
from tr.progress import track
from tr.report.record import Outcome, Verdict
from tr.roofline import prefill_flops
from tr.tree import tensors

LENGTHS = {"cuda": [2048, 8192, 32768], "cpu": [256, 1024]}
PARTS = {  # of operators; others are elementwise
    "int4_restore": "restore",
    "quantise_rows": "quantise",
    "gated_delta_chunk": "delta rule",
    "attention_prefill": "attention",
}
PRODUCTS = re.compile("nvjet|gemm|cutlass|xmma|cublas|splitk", re.I)  # a library's kernels
FUSED = re.compile("flash|fmha|attention", re.I)


@dataclass
class Options:
    lengths: list[int] = field(default_factory=list)  # empty: 2048, 8192, 32768; less on a CPU
    formats: list[str] = field(default_factory=list)  # of activations, beside the run's own
    rounds: int = 3
    quality_tokens: int = 1024  # of held-out text, for each of the formats


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o, device = config.options(Options), config.device.resolve()
    lengths = sorted(o.lengths or LENGTHS[device.type])
    _check(config, o, lengths)
    made = assemble(config, lengths[-1] + 1)
    limits, rate = ceilings(device), matmul_tflops(device)
    work = Work(config, made, made.draft(config), _ids(config, made, lengths[-1]), rate)
    figures: dict[str, Any] = {
        "matmul_tflops": rate,
        "chunk_tokens": made.model.chunk,
        "lengths": {str(n): work.timed(made.model, n, o.rounds) for n in track(lengths, "lengths")},
        "parts": work.parts(lengths[-1]),
        "resume": {},
    }
    exact = []
    for name, strict in (("multiple of 64", False), ("grid", True)):
        found = work.resumed(lengths[-1], strict)
        if found:
            figures["resume"][name] = found
            if strict or device.type == "cpu":
                exact.append(found["equal"])
    others = {name: _read_as(made, config, name) for name in o.formats}
    if others:
        figures["formats"] = {
            name: {str(n): work.timed(other.model, n, o.rounds) for n in lengths}
            for name, other in others.items()
        }
        figures["quality"] = _quality(config, made, others, o.quality_tokens)
    verdict = Verdict(all(exact), lengths[-1]) if exact else None
    return Outcome(figures, verdict, warnings=made.warnings, device=limits)


def _check(config: Config, o: Options, lengths: list[int]) -> None:
    limit = config.model.max_positions - 1
    if lengths[0] < 1 or lengths[-1] > limit:
        raise ValueError(
            f"params.lengths: expected 1 .. {limit} tokens, got {lengths}; shorten them"
        )
    for name in o.formats:
        if name not in ACTIVATIONS:
            raise ValueError(f"params.formats: expected {', '.join(ACTIVATIONS)}, got {name!r}")
    if o.formats and config.quant.format != "int4_g128":
        raise ValueError(
            f"params.formats are of tokens that meet int4 weights, got quant={config.quant.format};"
            " use quant=int4_g128"
        )


def matmul_tflops(device: torch.device) -> float:
    """The median rate of a large square bf16 product, by the library."""
    n, draw = CUDA_SIDE if device.type == "cuda" else CPU_SIDE, Draw(device)
    a, b = draw(n, n), draw(n, n)
    out = torch.empty_like(a)
    us = time_us([lambda: torch.mm(a, b, out=out)] * 10, device, 20)
    return 2 * n**3 / statistics.median(us) * 1e-6


def _ids(config: Config, made: Assembly, tokens: int) -> Tensor:
    """A prompt of random tokens: what they are changes no time."""
    device = made.model.params.norm.device
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randint(made.model.ids, (tokens,), generator=generator).to(device)


def _read_as(made: Assembly, config: Config, activations: str) -> Assembly:
    many = Many(activations, config.prefill.scratch_mib << 20)
    model = replace(made.model, params=read_as(made.model.params, many))
    return replace(made, model=model)


def _quality(
    config: Config, made: Assembly, others: dict[str, Assembly], tokens: int
) -> dict[str, Any]:
    """Empty where there is no tokenizer: a model of random weights says nothing."""
    if made.text is None:
        return {}
    (ids,) = windows(made, tokens, 1, config.seed)
    chunk = made.model.chunk
    plain = law(_read_as(made, config, "bf16"), ids, tokens - 1, chunk)
    return {
        name: compare([plain], [law(other, ids, tokens - 1, chunk)])
        for name, other in others.items()
    }


@dataclass(frozen=True, eq=False)
class Work:
    """Prompts read by one model, a draft's part included where one is chosen."""

    config: Config
    made: Assembly
    draft: Draft
    ids: Tensor
    tflops: float

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def fresh(self) -> State:
        return init_state(self.made.model, self.draft, len(self.ids) + 1)

    def read(self, model: Model, state: State, ids: Tensor, strict: bool = False) -> State:
        return prefill(model, self.draft, state, ids, sampling_of(self.config), strict)

    def timed(self, model: Model, tokens: int, rounds: int) -> dict[str, float]:
        """Median seconds of a cold prompt up to its first token, after one that does not count."""
        runs = [self._once(model, tokens) for _ in range(rounds + 1)][1:]
        median = statistics.median(seconds for seconds, *_ in runs)
        flops = prefill_flops(self.made.shape, tokens)
        found = {
            "tokens_per_s": tokens / median,
            "seconds": median,
            "tflops": flops / median * 1e-12,
            "matmul_fraction": flops / median / (self.tflops * 1e12),
        }
        if self.device.type == "cuda":
            _, held, peak = runs[-1]
            found |= {"peak_gb": peak * 1e-9, "working_gb": (peak - held) * 1e-9}
        return found

    def _once(self, model: Model, tokens: int) -> tuple[float, int, int]:
        """Seconds, and on a card the bytes that were held before and at most."""
        state, cuda, held = self.fresh(), self.device.type == "cuda", 0
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        began = time.perf_counter()
        state = self.read(model, state, self.ids[:tokens])
        int(state.feed.anchor)  # waits for the device
        seconds = time.perf_counter() - began
        return seconds, held, torch.cuda.max_memory_allocated() if cuda else 0

    def parts(self, tokens: int) -> dict[str, dict[str, float]]:
        """Microseconds of the last chunk of a prompt, by what they go into."""
        made, state = self.made, self.fresh()
        model = replace(made.model, ops=scoped(made.ops))
        ends = cuts(0, tokens, model.chunk)
        chunks = [self.ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        for chunk in chunks[:-1]:
            state = read(made.model, self.draft, state, chunk, tokens)
        before = int(state.target.pos)
        read(model, self.draft, self.fresh(), chunks[-1], tokens)  # compiles
        began = time.perf_counter()
        trace = record(lambda: read(model, self.draft, state, chunks[-1], tokens), self.device)
        wall = (time.perf_counter() - began) * 1e6
        us: defaultdict[str, float] = defaultdict(float)
        if self.device.type == "cuda":
            for kernel, owner in zip(trace.kernels, trace.owners, strict=True):
                us[_part(owner, kernel.name)] += kernel.us
            wall = (trace.kernels[-1].end_ns - trace.kernels[0].start_ns) * 1e-3
            us["idle"] = max(0.0, wall - sum(us.values()))
        else:
            for scope in trace.scopes:
                us[PARTS.get(scope.name, "elementwise")] += scope.us
            us["other"] = max(0.0, wall - sum(us.values()))
        whole = {"us": wall, "share": 1.0, "tokens": len(chunks[-1]), "before": before}
        named = sorted(us.items(), key=lambda item: -item[1])
        return {"chunk": whole} | {n: {"us": t, "share": t / wall} for n, t in named}

    def resumed(self, tokens: int, strict: bool) -> dict[str, Any]:
        """A prompt in two runs beside one; empty where it has no place to be taken up at."""
        model, step = self.made.model, self.made.model.chunk if strict else GRID
        at = (tokens - 1) // step * step if strict else tokens // 2 // step * step
        if not strict and at % model.chunk == 0:
            at -= step  # in the grid's midst
        if at < 1:
            return {}
        whole = self.read(model, self.fresh(), self.ids[:tokens], strict)
        half = self.read(model, self.fresh(), self.ids[:at], strict)
        half = self.read(model, half, self.ids[at:tokens], strict)
        a, b = (tensors([s.target, s.feed.hidden[:1], s.feed.anchor]) for s in (whole, half))
        last, other = (s.feed.hidden[0].float() for s in (whole, half))
        return {
            "tokens": tokens,
            "at": at,
            "equal": all(torch.equal(a[name], b[name]) for name in a),
            "hidden_distance": ((last - other).norm() / last.norm()).item(),
            "same_token": torch.equal(whole.feed.anchor, half.feed.anchor),
        }


def _part(owner: str, kernel: str) -> str:
    if owner in PARTS:
        return PARTS[owner]
    if owner == OTHER and PRODUCTS.search(kernel):
        return "matrix products"
    return "attention" if owner == OTHER and FUSED.search(kernel) else "elementwise"
