"""What 4-bit weights cost: next-token laws beside those of bf16, on one yardstick.

Every candidate is restored to numbers, rounded once to bf16, and read by the same forward on the
same ids: held-out prose and code, and arithmetic tasks of seeds that no training saw. Activations
are fp32, so that candidates differ by their weights alone; the noise floors show what bf16
activations and another chunking change. Calibration shares nothing with what is judged.
"""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.calibration import batch, digest, evaluation
from experiments.quantize import CONVERT, dtype_on, fingerprint, learn, quantise, texts
from experiments.quantize import Options as Making
from tr.assemble import read_found
from tr.checkpoint.load import Target, load_target
from tr.checkpoint.tokenizer import load_tokenizer
from tr.config import Config
from tr.model import text
from tr.progress import track
from tr.quant.numbers import bits_per_weight, numbers
from tr.quant.recipe import Recipe
from tr.quant.sequential import Plan
from tr.quant.shelf import Files
from tr.report.record import Outcome
from tr.tree import unchecked

CHUNK, OTHER = 4096, 192  # tokens at a time, and for the noise floor


@dataclass(frozen=True)
class Candidate:
    recipe: Recipe
    table: bool = False


CANDIDATES = {
    "rtn": Candidate(Recipe("rtn")),
    "mse": Candidate(Recipe("mse")),
    "gptq": Candidate(Recipe("gptq", search="none")),
    "gptq_search": Candidate(Recipe("gptq")),
    "gptaq": Candidate(Recipe("gptaq")),
    "refined": Candidate(Recipe("refined")),
    "tuned": Candidate(Recipe("tuned")),
    "table": Candidate(Recipe("mse"), table=True),
    "table_gptq": Candidate(Recipe("gptq"), table=True),
    "table_refined": Candidate(Recipe("refined"), table=True),
}


@dataclass
class Options(Making):
    """`output`: a folder for the parts of candidates, from which an interrupted run goes on."""

    candidates: list[str] = field(default_factory=lambda: list(CANDIDATES))
    judged_tokens: int = 4096  # of each kind
    window: int = 512  # tokens of a judged sequence at most


def run(config: Config) -> Outcome:
    o = config.options(Options)
    for name in o.candidates:
        if name not in CANDIDATES:
            raise ValueError(f"params.candidates: {name!r} is none of {', '.join(CANDIDATES)}")
    source, device = read_found(config)[0], config.device.resolve()
    loaded, tokenizer = load_target(source, device, with_mtp=False), load_tokenizer(source)
    judged = evaluation(tokenizer, o.judged_tokens, o.window, o.seed)
    ids = texts(loaded.params, tokenizer, o, [s for listed in judged.values() for s in listed])
    base = Laws(loaded.params, judged, tokenizer.count)
    figures: dict[str, Any] = {
        "ids": {
            "calibration": described(ids),
            **{kind: described(listed) for kind, listed in judged.items()},
        },
        "noise": {
            "same": base.compare(loaded.params),
            "chunks": base.compare(loaded.params, chunk=OTHER),
            "bf16_activations": base.compare(loaded.params, dtype=torch.bfloat16),
        },
        "bf16": {"perplexity": base.perplexity()},
        "candidates": {},
    }
    made: dict[str, text.Params] = {}
    for name in track(o.candidates, "quality", "candidates"):
        seconds: dict[str, float] = {}
        made[name] = make(name, loaded, ids, o, made, seconds)
        found = base.compare(made[name]) | {"bits_per_weight": bits_per_weight(made[name])}
        figures["candidates"][name] = found | {"made_in_s": sum(seconds.values())}
    if "rtn" in figures["candidates"]:
        for found in figures["candidates"].values():
            found["kl_of_rtn"] = found["kl_mean"] / figures["candidates"]["rtn"]["kl_mean"]
    return Outcome(figures, warnings=loaded.warnings)


def described(sequences: list[list[int]]) -> dict[str, Any]:
    return {
        "sequences": len(sequences),
        "tokens": sum(map(len, sequences)),
        "sha256": digest(sequences),
    }


def make(
    name: str,
    loaded: Target,
    ids: list[list[int]],
    o: Options,
    before: dict[str, text.Params],
    seconds: dict[str, float],
) -> text.Params:
    """The candidate `name`; what is learned starts from refined ones, made `before` or now."""
    chosen = CANDIDATES[name].recipe
    if chosen.method == "tuned":
        start = before.get("refined") or make("refined", loaded, ids, o, before, seconds)
        tokens = batch(ids, loaded.params.embed.device)
        return learn(loaded.params, start, tokens, chosen, o, seconds)
    convert = CONVERT["table4" if CANDIDATES[name].table else "int4_g128"]
    plan = Plan(
        lambda dense, moments: convert(dense, moments, chosen),
        chosen.calibrated,
        chosen.asymmetric,
        chosen.refined,
        dtype_on(loaded.params.embed.device),
        o.batch,
        with_mtp=False,
    )
    shelf = None
    if o.output:
        decided = {"candidate": name, "calibration": digest(ids), "model": fingerprint(loaded)}
        decided |= {**asdict(chosen), "activations": str(plan.dtype)}
        shelf = Files(Path(o.output).expanduser() / name, decided)
    return quantise(loaded, ids, chosen, plan, seconds, shelf)[0]


class Laws:
    """The bf16 model's log probabilities on the judged ids, and others measured against them."""

    def __init__(self, params: text.Params, judged: dict[str, list[list[int]]], ids: int) -> None:
        self.judged, self.ids = judged, ids
        whole = numbers(params, torch.float32)
        self.base = {kind: self.read(whole, kind) for kind in judged}

    @torch.inference_mode()
    def read(self, params: text.Params, kind: str, chunk: int = CHUNK) -> list[Tensor]:
        """Log probabilities [tokens - 1, ids] fp32 of what follows, for each sequence of a kind."""
        found = []
        with unchecked():
            for sequence in self.judged[kind]:
                tokens = torch.tensor([sequence[:-1]], device=params.embed.device)
                past, hidden = text.init_past(params, 1), []
                for part in tokens.split(chunk, 1):
                    x, _, past = text.sequence(params, past, part)
                    hidden.append(x)
                logits = params.head.sequence(torch.cat(hidden, 1)[0])[:, : self.ids]
                found.append(logits.float().log_softmax(-1))
        return found

    def compare(
        self, params: text.Params, chunk: int = CHUNK, dtype: torch.dtype = torch.float32
    ) -> dict[str, float]:
        """KL(bf16 | params) in nats by position, agreement of the argmax, perplexity; all kinds
        together, and the mean KL of each.
        """
        params = numbers(params, dtype)
        kl, same, nll, figures = [], [], [], {}
        for kind in self.judged:
            laws = self.read(params, kind, chunk)
            own = [
                (a.double().exp() * (a.double() - b.double())).sum(-1)
                for a, b in zip(self.base[kind], laws, strict=True)
            ]
            same += [
                a.argmax(-1) == b.argmax(-1) for a, b in zip(self.base[kind], laws, strict=True)
            ]
            nll += self.losses(kind, laws)
            figures[f"kl_{kind}"] = torch.cat(own).mean().item()
            kl += own
        whole = torch.cat(kl)
        return {
            "kl_mean": whole.mean().item(),
            "kl_median": whole.median().item(),
            "kl_p99": whole.quantile(0.99).item(),
            "top1": torch.cat(same).double().mean().item(),
            "perplexity": math.exp(torch.cat(nll).mean().item()),
            **figures,
        }

    def losses(self, kind: str, laws: list[Tensor]) -> list[Tensor]:
        """Nats of each token that came, by sequence."""
        pairs = zip(self.judged[kind], laws, strict=True)
        return [
            -law.double()[range(len(law)), torch.tensor(ids[1:], device=law.device)]
            for ids, law in pairs
        ]

    def perplexity(self) -> float:
        losses = [x for kind in self.judged for x in self.losses(kind, self.base[kind])]
        return math.exp(torch.cat(losses).mean().item())
