"""Train the embedded model's drafts, DFlash 2 and the MTP head, on text the target itself wrote.

Prompts are windows of the token stream that end where a response begins, or anywhere in a document;
the target continues them greedily and at several temperatures; both drafts then learn its
distribution at random anchors inside its own continuations. What they read of the target is
computed once and stays on the device.
"""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.draft_losses import dflash2_loss, mtp_loss, pick_anchors
from experiments.packing import build_tokens
from experiments.regenerate import regenerate
from experiments.training import Master, Optimizer, captured, detached
from tr.checkpoint.load import load_target
from tr.checkpoint.names import dflash2_table
from tr.checkpoint.save import save_from, save_target
from tr.checkpoint.tokenizer import load_tokenizer
from tr.config import Config
from tr.drafts import dflash2_net as net
from tr.model import mtp, text
from tr.progress import track
from tr.report.record import Outcome

MIXTURE = {
    "prose": 0.24, "code": 0.24, "chinese": 0.02,
    "math": 0.05, "copy": 0.37, "needle": 0.01, "chat": 0.02, "tool": 0.02, "essay": 0.015,
    "code_task": 0.015,
}  # fmt: skip


@dataclass
class Options:
    target: str = "tr/assets/tiny"
    tokenizer: str = "tr/assets/tiny"
    corpus: str = "data/texts.jsonl.xz"
    stream_tokens: int = 20_000_000
    mixture: dict[str, float] = field(default_factory=lambda: dict(MIXTURE))
    processes: int = 0  # that build the stream; 0: one per core
    prompt_tokens: int = 768
    response_tokens: int = 160
    response_share: float = 0.5  # of the prompts end where a response begins, the others anywhere
    rounds: int = 30  # batches of continuations
    round_sequences: int = 1024
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.4, 0.6, 0.8])
    steps: int = 6500
    batch: int = 64  # sequences a step; the MTP head learns from the first mtp_batch of them
    mtp_batch: int = 16
    anchors: int = 48
    lr: float = 4e-3
    warmup: int = 100
    decay: float = 0.0
    clip: float = 1.0
    stop_after_s: float = 480.0  # end the draft steps early, counted from the start of the run
    gamma: float = 4.0
    mtp_depth: int = 3
    layers: int = 3
    kv_heads: int = 3
    d_ff: int = 384
    block: int = 8
    mask_token: str = "<|audio_start|>"
    taps: list[int] = field(default_factory=lambda: [2, 5, 7])
    window: int = 512
    selector_rank: int = 32
    selector_top: int = 16


def draft_config(o: Options, target: text.Params, mask_token: int) -> net.Config:
    """A DFlash 2 shape for `target`: its width and vocabulary, heads of 64."""
    vocab, d_model = target.embed.shape
    return net.Config(
        d_model=d_model,
        d_ff=o.d_ff,
        layers=o.layers,
        heads=d_model // 64,
        kv_heads=o.kv_heads,
        d_head=64,
        vocab=vocab,
        block=o.block,
        mask_token=mask_token,
        taps=tuple(o.taps),
        window=o.window,
        conv_width=2,
        conv_group=16,
        selector_rank=o.selector_rank,
        selector_top=o.selector_top,
        eps=target.eps,
        rope_theta=1e7,
        max_positions=target.rope.cos.shape[0],
    )


def prompt_windows(
    ids: np.ndarray, response: np.ndarray, end: int, o: Options, seed: int
) -> np.ndarray:
    """[rounds * round_sequences, prompt_tokens] of a stream whose documents close with token `end`.

    `response_share` of them end where a response begins, and hold all that comes before it in its
    document; the others end anywhere.
    """
    rng = np.random.default_rng(seed)
    count = o.rounds * o.round_sequences
    starts = np.flatnonzero(response[1:] & ~response[:-1]) + 1
    starts = starts[starts >= o.prompt_tokens]
    closed = np.concatenate([[-1], np.flatnonzero(ids == end)])
    begun = closed[np.searchsorted(closed, starts) - 1] + 1
    starts = starts[starts - begun <= o.prompt_tokens]
    at = rng.integers(o.prompt_tokens, len(ids), count)
    if len(starts):
        chosen = rng.random(count) < o.response_share
        at[chosen] = rng.choice(starts, int(chosen.sum()))
    return ids[at[:, None] - np.arange(o.prompt_tokens, 0, -1)].astype(np.int64)


@torch.no_grad()
def read(target: text.Params, texts: Tensor, o: Options) -> tuple[Tensor, Tensor]:
    """The taps [texts, tokens, taps d_model] and final hiddens of texts [texts, tokens]."""
    d, shape = target.embed.shape[1], texts.shape
    taps = torch.empty(*shape, len(o.taps) * d, dtype=target.embed.dtype, device=texts.device)
    hidden = torch.empty(*shape, d, dtype=target.embed.dtype, device=texts.device)
    parts = zip(texts.split(o.batch), taps.split(o.batch), hidden.split(o.batch), strict=True)
    for tokens, some_taps, some_hidden in parts:
        past = text.init_past(target, len(tokens))
        x, tapped, _ = text.sequence(target, past, tokens, o.taps, "train")
        some_taps.copy_(tapped)
        some_hidden.copy_(x)
    return taps, hidden


def run(config: Config) -> Outcome:
    o = config.options(Options)
    device = config.device.resolve()
    torch.set_float32_matmul_precision("high")
    tokenizer = load_tokenizer(o.tokenizer)
    loaded = load_target(o.target, device, with_mtp=False)
    target = loaded.params
    began = started = time.perf_counter()
    path = f"{o.tokenizer}/tokenizer.json"
    ids, response = build_tokens(
        o.corpus, path, config.seed + 1, o.stream_tokens, o.mixture, o.processes
    )
    end = tokenizer.control["<|endoftext|>"]
    prompts = torch.from_numpy(prompt_windows(ids, response, end, o, config.seed))
    build_s, started = time.perf_counter() - started, time.perf_counter()
    heat = torch.tensor(o.temperatures, device=device).repeat(o.round_sequences)
    heat = heat[: o.round_sequences]
    rounds = [
        regenerate(target, part.to(device), o.response_tokens, heat, tokenizer.count, i).cpu()
        for i, part in enumerate(track(prompts.split(o.round_sequences), "continuations"))
    ]
    texts = torch.cat(rounds).to(device)
    every_taps, every_hidden = read(target, texts, o)
    regenerate_s, started = time.perf_counter() - started, time.perf_counter()

    shape = draft_config(o, target, tokenizer.control[o.mask_token])
    generator = torch.Generator(device).manual_seed(config.seed)
    draft = Master(net.init(shape, generator, torch.bfloat16), frozen=("rope",))
    head = Master(mtp.init(loaded.config, generator, torch.bfloat16))
    optimizer = Optimizer([draft, head], o.lr, o.steps, o.warmup, o.decay)
    batch, total = min(o.batch, len(texts)), texts.shape[1]
    tokens, taps, hidden = (t[:batch].clone() for t in (texts, every_taps, every_hidden))
    anchors = torch.zeros(batch, o.anchors, dtype=torch.int64, device=device)
    overlap = torch.zeros(o.block - 1, device=device)

    def load() -> None:
        rows = torch.randint(0, len(texts), (batch,), generator=generator, device=device)
        for buffer, every in ((tokens, texts), (taps, every_taps), (hidden, every_hidden)):
            torch.index_select(every, 0, rows, out=buffer)
        last = total - o.block
        anchors.copy_(pick_anchors(o.prompt_tokens - 1, last, batch, o.anchors, generator))

    def loss() -> Tensor:
        block_loss, kept = dflash2_loss(
            draft.view(), target.embed, target.head, tokens, taps, hidden, anchors, o.gamma
        )
        overlap.copy_(kept)
        some = slice(o.mtp_batch)
        return block_loss + mtp_loss(
            head.view(), target, tokens[some], hidden[some], anchors[some], o.mtp_depth
        )

    load()
    step = captured(loss, [draft, head], o.clip)
    losses: dict[str, float] = {}
    overlaps: deque[Tensor] = deque(maxlen=50)
    done = 0
    for i in track(range(o.steps), "draft steps"):
        load()
        value = step()
        optimizer.step(i)
        overlaps.append(overlap.clone())
        done = i + 1
        if i % 20 == 0 or done == o.steps:
            losses[str(i)] = round(value.item(), 4)
            if time.perf_counter() - began > o.stop_after_s:
                break
    out = Path(config.output)
    shape_hf = shape.to_hf(loaded.config.layers)
    full = replace(loaded.config, mtp_layers=1)
    save_target(out / "target", full, target, detached(head.view()), tokenizer.eos)
    table = dflash2_table(o.layers)
    save_from(out / "target" / "draft", detached(draft.view()), table, shape_hf)
    return Outcome(
        figures={
            "draft_parameters": sum(t.numel() for t in draft.leaves.values()),
            "mtp_parameters": sum(t.numel() for t in head.leaves.values()),
            "steps": done,
            "steps_planned": o.steps,
            "regenerated_tokens": len(texts) * o.response_tokens,
            "build_s": build_s,
            "regenerate_s": regenerate_s,
            "train_s": time.perf_counter() - started,
            "losses_nats": losses,
            "overlap_by_row": [round(v, 4) for v in torch.stack(list(overlaps)).mean(0).tolist()],
        }
    )
