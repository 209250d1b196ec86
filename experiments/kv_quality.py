"""What a cache format costs: the model's next-token laws beside those with a bf16 cache.

Held-out texts of each length are read chunk by chunk, every row attending to keys and values as
the format holds them; the last `positions` of each text are compared. The noise floor is a bf16
cache read in other chunks. What a draft keeps is the more sensitive detector: each text is also
continued by the run's draft, and its tokens per step are given.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from experiments.measure import Job, Tally, loop_start
from experiments.probes import heldout_texts
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.model import text
from tr.model.config import FULL
from tr.nn.formats.kv.cache import bytes_per_token
from tr.progress import track
from tr.report.record import Outcome

KINDS = ("prose", "code")
CHUNK, OTHER = 512, 448  # tokens at a time, and for the noise floor
BASE = "bf16"


@dataclass
class Options:
    kv: list[str] = field(default_factory=lambda: ["fp8", "int8", "int4"])
    contexts: list[int] = field(default_factory=lambda: [2048, 8192])
    texts: int = 2  # of each length
    positions: int = 512  # the last ones of a text
    continued: int = 64  # tokens that the draft goes on with; 0: none


def run(config: Config) -> Outcome:
    o = config.options(Options)
    capacity = max(o.contexts)
    made = {
        kv: assemble(replace(config, kv=replace(config.kv, format=kv)), capacity)
        for kv in dict.fromkeys([BASE, *o.kv])
    }
    figures: dict[str, Any] = {"contexts": {}}
    for context in o.contexts:
        found: dict[str, Any] = {}
        texts = windows(made[BASE], context, o.texts, config.seed)
        laws = [law(made[BASE], ids, o.positions, CHUNK) for ids in texts]
        floor = [law(made[BASE], ids, o.positions, OTHER) for ids in texts]
        found["noise floor"] = compare(laws, floor)
        for kv in track([*made], f"{context} tokens", "formats"):
            other = laws if kv == BASE else [law(made[kv], t, o.positions, CHUNK) for t in texts]
            shape = made[kv].shape
            found[kv] = compare(laws, other) | {
                "bytes_per_token": bytes_per_token(kv, shape.kv_heads, shape.d_head)
                * shape.layer_types.count(FULL),
                "tokens_per_step": continued(config, made[kv], texts, o.continued),
            }
        figures["contexts"][str(context)] = found
    said = tuple(dict.fromkeys(w for m in made.values() for w in m.warnings))
    return Outcome(figures, warnings=said)


def windows(made: Assembly, tokens: int, count: int, seed: int) -> list[list[int]]:
    """`count` texts of `tokens` tokens, of held-out documents in a drawn order."""
    tokenizer = made.tokenizer
    found = []
    for n in range(count):
        documents = [t for kind in KINDS for t in heldout_texts(kind)]
        random.Random(f"{seed}/{n}").shuffle(documents)
        ids = tokenizer.encode("\n\n".join(documents))
        if len(ids) < tokens:
            raise ValueError(
                f"params.contexts: {tokens} exceeds the held-out text's {len(ids)} tokens"
            )
        found.append(ids[:tokens])
    return found


@torch.inference_mode()
def law(made: Assembly, ids: list[int], positions: int, chunk: int) -> Tensor:
    """Log probabilities [positions, ids] after each of the last tokens of a text, in float64."""
    model = made.model
    state = text.init_state(model.params, len(ids), 1)
    tokens = torch.tensor(ids, device=model.params.norm.device)
    hidden = []
    for part in tokens.split(chunk):
        x, _, state = text.prefill(model.params, state, part, model.ops)
        hidden.append(x)
    last = torch.cat(hidden)[-positions:]
    return model.params.head.sequence(last)[:, : model.ids].double().log_softmax(-1)


def compare(base: list[Tensor], other: list[Tensor]) -> dict[str, float]:
    """Mean and 99th percentile of KL(base | other) in nats, and how often the argmax agrees."""
    a, b = torch.cat(base), torch.cat(other)
    kl = (a.exp() * (a - b)).sum(-1)
    return {
        "kl_mean": kl.mean().item(),
        "kl_p99": kl.quantile(0.99).item(),
        "top1": (a.argmax(-1) == b.argmax(-1)).double().mean().item(),
    }


def continued(config: Config, made: Assembly, texts: list[list[int]], tokens: int) -> float | None:
    """Tokens per step of the run's draft behind the texts, up to where it repeats itself."""
    if not tokens or config.draft.strategy == "raw":
        return None
    draft, capacity = made.draft(config), max(map(len, texts))
    job = Job(replace(made, eos=()), draft, sampling_of(config), tokens, capacity)
    tally = Tally()
    for ids in texts:
        prompt = ids[: len(ids) - tokens]
        counts = job.run(prompt)
        tally.add(counts, loop_start(prompt, counts.tokens))
    return tally.tokens_per_step
