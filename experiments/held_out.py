"""How good a target is on text it has not seen: bits per byte, and two teacher-forced probes."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F

from experiments.packing import read_corpus
from experiments.probes import Trial, copy_trials, needle_trials
from tr.checkpoint.tokenizer import Tokenizer
from tr.model import text

WINDOW = 2048


@torch.inference_mode()
def bits_per_byte(
    params: text.Params, tokenizer: Tokenizer, corpus: Path | str, documents: int = 120
) -> dict[str, float]:
    """By kind, over the first WINDOW tokens of up to `documents` held-out documents of each."""
    window = min(WINDOW, params.rope.cos.shape[0])
    end = tokenizer.control["<|endoftext|>"]
    device = params.embed.device
    nats: dict[str, float] = {}
    size: dict[str, int] = {}
    left: dict[str, int] = {}
    for document in read_corpus(corpus):
        kind = document["kind"]
        if document["split"] != "heldout" or left.setdefault(kind, documents) == 0:
            continue
        left[kind] -= 1
        ids = tokenizer.encode(document["text"])[:window]
        tokens = torch.tensor([[end, *ids]], device=device)
        hidden, _, _ = text.sequence(params, text.init_past(params, 1), tokens[:, :-1])
        logits = params.head.sequence(hidden)[0].float()
        loss = F.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
        nats[kind] = nats.get(kind, 0.0) + loss
        size[kind] = size.get(kind, 0) + len(tokenizer.decode(ids).encode())
    return {kind: nats[kind] / size[kind] / math.log(2) for kind in nats}


@torch.inference_mode()
def probe_rates(params: text.Params, tokenizer: Tokenizer, trials: int) -> dict[str, float]:
    """Share of trials whose answer is the argmax at every position: what greedy would write."""
    room = min(WINDOW, params.rope.cos.shape[0] - 256)
    sets = {
        "needle": needle_trials(tokenizer.full, trials, room),
        "copy": copy_trials(tokenizer.full, trials),
    }
    return {
        name: sum(_right(params, tokenizer, trial) for trial in chosen) / trials
        for name, chosen in sets.items()
    }


def _right(params: text.Params, tokenizer: Tokenizer, trial: Trial) -> bool:
    prompt = tokenizer.chat([{"role": "user", "content": trial.prompt}], enable_thinking=False)
    answer = [*tokenizer.encode(trial.answer), tokenizer.control["<|im_end|>"]]
    tokens = torch.tensor([prompt + answer], device=params.embed.device)
    hidden, _, _ = text.sequence(params, text.init_past(params, 1), tokens[:, :-1])
    best = params.head.sequence(hidden[0, len(prompt) - 1 :]).argmax(-1)
    return bool((best == tokens[0, len(prompt) :]).all())
