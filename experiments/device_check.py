"""Whether a device's operators decode what the reference operators decode on a CPU.

Raw greedy texts of both from the same prompts. They compute the same sums in other orders, so a
near tie in bfloat16 may fall either way: at the first token that differs, the reference's own
logits say by how much it preferred its token, and the verdict allows TIES steps of bfloat16 at the
larger logit. Texts are compared up to there.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from experiments.measure import Job, encode
from tr.assemble import assemble
from tr.config import Config, Jit, Kernel
from tr.drafts.raw import Raw
from tr.model import text
from tr.model.sampling import sampling
from tr.progress import track
from tr.report.record import Outcome, Verdict

TIES = 2


@dataclass
class Options:
    prompts: int = 3  # of each family; 0: all


def run(config: Config) -> Outcome:
    o = config.options(Options)
    made = assemble(config)
    cpu = replace(config.device, name="cpu", torch="cpu", card="", memory_gib=None)
    plain = assemble(
        replace(config, device=cpu, kernel=Kernel(variant="reference"), jit=Jit(backend="eager"))
    )
    tokens, capacity = config.max_new_tokens, config.kv.capacity_tokens
    jobs = [
        Job(a, Raw(), sampling(0.0, device=a.model.params.norm.device), tokens, capacity)
        for a in (plain, made)
    ]
    families = config.prompts.families()
    figures: dict[str, Any] = {"families": {}}
    compared, bad = 0, None
    for family, prompts in families.items():
        same, gaps = 0, []
        for i, prompt in enumerate(track(prompts[: o.prompts or None], family, "prompts")):
            ids = encode(plain.tokenizer, prompt)
            want, got = (job.run(ids).tokens for job in jobs)
            if want == got:
                same += len(want)
                continue
            at = next(n for n, (a, b) in enumerate(zip(want, got, strict=False)) if a != b)
            gap = preference(plain.model.params, ids + want[:at], want[at], got[at])
            where = {"prompt": i, "position": at, "reference": want[at], "device": got[at], **gap}
            same += at
            gaps.append(where)
            if gap["logit_gap"] > gap["tolerance"] and bad is None:
                bad = {"family": family, **where}
        figures["families"][family] = {
            "tokens_equal": same,
            "ties": len(gaps),
            "first_divergences": {str(g["prompt"]): g for g in gaps},
        }
        compared += same
    return Outcome(figures, Verdict(bad is None, compared, bad), False, made.warnings)


@torch.inference_mode()
def preference(params: text.Params, ids: list[int], a: int, b: int) -> dict[str, float]:
    """By how much the token after `ids` is rather `a` than `b`, and what a tie may be."""
    tokens = torch.tensor([ids])
    hidden, _, _ = text.sequence(params, text.init_past(params, 1), tokens)
    logits = params.head.sequence(hidden[0, -1:])[0].float()
    top = max(abs(logits[a].item()), abs(logits[b].item()))
    spacing = 2.0 ** (math.floor(math.log2(top)) - 7) if top else 0.0
    return {"logit_gap": (logits[a] - logits[b]).item(), "tolerance": TIES * spacing}
