"""Token ids to quantise with and to judge by: what the model writes itself, code, held-out texts.

Nothing of the evaluation is in the calibration: a calibration sequence that shares any run of
OVERLAP tokens with it is left out, and the record holds the hashes of both.
"""

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from experiments import tasks
from experiments.probes import heldout_texts
from experiments.regenerate import regenerate
from tr.checkpoint.tokenizer import Tokenizer
from tr.model import text
from tr.progress import track

OVERLAP = 48  # tokens
BATCH = 64  # sequences that are written at once
Ids = list[list[int]]


def written(
    params: text.Params, tokenizer: Tokenizer, sequences: int, tokens: int, seed: int
) -> Ids:
    """Documents of the model's own, sampled at temperature 1 from nothing but an end of text."""
    end = tokenizer.control["<|endoftext|>"]
    found: Ids = []
    device = params.embed.device
    for start in track(range(0, sequences, BATCH), "calibration text", "batches"):
        count = min(BATCH, sequences - start)
        prompts = torch.full((count, 1), end, device=device)
        heat = torch.ones(count, device=device)
        made = regenerate(params, prompts, tokens - 1, heat, tokenizer.count, seed + start)
        found += made.tolist()
    return found


def library(tokenizer: Tokenizer, sequences: int, tokens: int, seed: int) -> Ids:
    """Windows of the running Python's own sources, each of another file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [p for d in (folder, *(folder / n for n in PACKAGES)) for p in sorted(d.glob("*.py"))]
    draw = Random(f"{seed}/library")
    draw.shuffle(files)
    found: Ids = []
    for path in files:
        if len(found) == sequences:
            break
        source = path.read_text(encoding="utf-8", errors="replace")
        start = draw.randrange(max(1, len(source) - 4 * tokens))
        ids = tokenizer.encode(source[start : start + 8 * tokens])
        if len(ids) >= tokens:
            found.append(ids[:tokens])
    if len(found) < sequences:
        raise ValueError(
            f"params.code_sequences: Python's library gives {len(found)} sequences of {tokens}"
            f" tokens, got {sequences}"
        )
    return found


PACKAGES = ("asyncio", "concurrent/futures", "email", "html", "http", "json", "logging", "unittest")


def evaluation(tokenizer: Tokenizer, tokens: int, window: int, seed: int) -> dict[str, Ids]:
    """By kind, about `tokens` tokens in sequences of up to `window`, each behind an end of text."""
    end = tokenizer.control["<|endoftext|>"]
    found: dict[str, Ids] = {}
    for kind in ("prose", "code"):
        found[kind] = _windows((tokenizer.encode(t) for t in heldout_texts(kind)), tokens, window)
    found["math"] = _windows(_problems(tokenizer, seed), tokens, window)
    return {kind: [[end, *ids] for ids in listed] for kind, listed in found.items()}


def _problems(tokenizer: Tokenizer, seed: int):
    number = 0
    while True:
        chat = tasks.math_problem(Random(f"heldout/math/{seed}/{number}"))
        question, answer = chat.messages
        opened = tokenizer.chat([question], enable_thinking=False)
        yield [*opened, *tokenizer.encode(answer["content"]), tokenizer.control["<|im_end|>"]]
        number += 1


def _windows(documents, tokens: int, window: int) -> Ids:
    """One window of each document, then the next ones of those that are longer."""
    found: Ids = []
    left = tokens
    listed = []
    for ids in documents:
        if left <= 0:
            break
        found.append(ids[: min(window, left)])
        left -= len(found[-1])
        listed.append(ids)
    at = window
    while left > 0 and any(len(ids) > at for ids in listed):
        for ids in listed:
            part = ids[at : at + min(window, left)]
            if len(part) > 1 and left > 0:
                found.append(part)
                left -= len(part)
        at += window
    return found


def apart(calibration: Ids, judged: Sequence[Sequence[int]]) -> Ids:
    """The calibration sequences that share no run of OVERLAP tokens with what is judged."""
    runs = {run for ids in judged for run in _runs(ids)}
    return [ids for ids in calibration if not any(run in runs for run in _runs(ids))]


def _runs(ids: Sequence[int]):
    return (tuple(ids[i : i + OVERLAP]) for i in range(len(ids) - OVERLAP + 1))


def digest(sequences: Sequence[Sequence[int]]) -> str:
    """The first 16 hexadecimal digits of a sha256 over all ids."""
    own = hashlib.sha256()
    for ids in sequences:
        own.update(torch.tensor([len(ids), *ids], dtype=torch.int32).numpy().tobytes())
    return own.hexdigest()[:16]


def batch(calibration: Ids, device: torch.device) -> Tensor:
    """[sequences, tokens] int64."""
    return torch.tensor(calibration, device=device)
