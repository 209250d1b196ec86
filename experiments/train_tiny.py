"""Train the embedded model: the target from scratch on the collected texts and the synthetic tasks.

Two phases: short windows, then windows of the full context. A run that reaches `stop_after_s` saves
its state and ends; the same command with `resume` goes on from it, batch for batch.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.held_out import bits_per_byte, probe_rates
from experiments.packing import MIXTURE, build_tokens
from experiments.training import Master, Optimizer, captured, detached
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target
from tr.checkpoint.tokenizer import load_tokenizer
from tr.config import Config
from tr.model import text
from tr.report.progress import track
from tr.report.record import Outcome


@dataclass
class Options:
    corpus: str = "data/texts.jsonl.xz"
    tokenizer: str = "tr/assets/tiny"
    tokens: int = 60_000_000  # length of the token stream that windows are drawn from
    mixture: dict[str, float] = field(default_factory=lambda: dict(MIXTURE))
    processes: int = 0  # that build the stream; 0: one per core
    short_tokens: int = 2048
    short_batch: int = 32
    short_steps: int = 3000
    long_tokens: int = 8192
    long_batch: int = 8
    long_steps: int = 400
    lr: float = 4e-3
    warmup: int = 100
    decay: float = 0.05
    clip: float = 1.0
    stop_after_s: float = 480.0
    resume: str = ""  # folder of an unfinished run
    start: str = ""  # checkpoint to start from instead of random weights
    response_weight: float = 1.0  # of a response's tokens in the loss; others weigh 1
    probes: int = 20


class Windows:
    """Random windows of a token stream that lies on the device; step i's windows depend on i only.

    `tokens` [batch, n + 1] int64 and `weight`, the loss weight of each, are overwritten by `load`.
    """

    def __init__(self, ids: Tensor, weight: Tensor, batch: int, tokens: int, seed: int) -> None:
        self.stream, self.seed = (ids, weight), seed
        self.offsets = torch.arange(tokens + 1, device=ids.device)
        self.tokens = torch.zeros(batch, tokens + 1, dtype=torch.int64, device=ids.device)
        self.weight = torch.zeros(batch, tokens + 1, device=ids.device)

    def load(self, step: int) -> None:
        batch, width = self.tokens.shape
        ids, weight = self.stream
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(0, len(ids) - width, (batch, 1), generator=generator)
        at = starts.to(ids.device) + self.offsets
        self.tokens.copy_(ids[at])
        self.weight.copy_(weight[at])


def next_token_loss(params: text.Params, tokens: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross-entropy, in nats, of tokens [batch, n + 1] given those before them."""
    past = text.init_past(params, tokens.shape[0])
    hidden, _, _ = text.sequence(params, past, tokens[:, :-1], (), "train")
    logits = params.head.sequence(hidden).flatten(0, 1).float()
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    share = weight[:, 1:].flatten()
    return (loss * share).sum() / share.sum()


def run(config: Config) -> Outcome:
    o = config.options(Options)
    device = config.device.resolve()
    torch.set_float32_matmul_precision("high")
    shape = config.model.spec()
    tokenizer = load_tokenizer(o.tokenizer)
    started = time.perf_counter()
    path = f"{o.tokenizer}/tokenizer.json"
    stream, said = build_tokens(o.corpus, path, config.seed, o.tokens, o.mixture, o.processes)
    ids = torch.from_numpy(stream.astype("int32")).to(device)
    weight = 1 + (o.response_weight - 1) * torch.from_numpy(said).to(device).float()
    build_s = time.perf_counter() - started
    generator = torch.Generator(device).manual_seed(config.seed)
    if o.start:
        params = load_target(o.start, device, with_mtp=False).params
    else:
        params = text.init(shape, generator, torch.bfloat16)
    master = Master(params, frozen=("rope",))
    steps = o.short_steps + o.long_steps
    optimizer = Optimizer([master], o.lr, steps, o.warmup, o.decay)
    done, losses = 0, []
    if o.resume:
        saved = torch.load(Path(o.resume, "state.pt"), map_location=device, weights_only=True)
        done, losses = saved["step"], saved["losses"]
        for name, t in master.leaves.items():
            t.data.copy_(saved["leaves"][name])
        optimizer.load(saved["optimizer"])
    phases = (
        (o.short_batch, o.short_tokens, 0, o.short_steps),
        (o.long_batch, o.long_tokens, o.short_steps, steps),
    )
    trained = time.perf_counter()
    for batch, tokens, begin, end in phases:
        begin = max(begin, done)
        if begin >= end:
            continue
        windows = Windows(ids, weight, batch, tokens, config.seed)
        windows.load(begin)

        def loss(windows: Windows = windows) -> Tensor:
            return next_token_loss(master.view(), windows.tokens, windows.weight)

        step = captured(loss, [master], o.clip)
        for i in track(range(begin, end), f"{tokens}-token windows"):
            windows.load(i)
            value = step()
            optimizer.step(i)
            done = i + 1
            if i % 20 == 0 or done == end:
                losses.append([i, round(value.item(), 4)])
                if time.perf_counter() - started > o.stop_after_s:
                    break
        del step
        if done < end:
            break
    train_s = time.perf_counter() - trained
    params = detached(master.view())
    out = Path(config.output)
    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "parameters": sum(t.numel() for t in master.leaves.values()),
        "steps": done,
        "steps_planned": steps,
        "tokens_seen": min(done, o.short_steps) * o.short_batch * o.short_tokens
        + max(0, done - o.short_steps) * o.long_batch * o.long_tokens,
        "stream_tokens": len(ids),
        "build_s": build_s,
        "train_s": train_s,
        "losses_nats": {str(i): value for i, value in losses},
    }
    save_target(out / "target", replace(shape, mtp_layers=0), params, None, tokenizer.eos)
    if done < steps:
        leaves = {name: t.data for name, t in master.leaves.items()}
        state = {"step": done, "losses": losses, "leaves": leaves, "optimizer": optimizer.state()}
        torch.save(state, out / "state.pt")
    else:
        figures["held_out_bits_per_byte"] = bits_per_byte(params, tokenizer, o.corpus)
        figures["probe_rates"] = probe_rates(params, tokenizer, o.probes)
    return Outcome(figures=figures)
