"""Train the embedded model: the target from scratch on the collected texts and the synthetic tasks.

Two phases: short windows, then windows of the full context. A run that reaches `stop_after_s` saves
its state and ends; the same command with `resume` goes on from it, batch for batch. `start` begins
a new run from the weights of a finished one.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments import lookahead
from experiments.held_out import bits_per_byte, probe_rates
from experiments.packing import MIXTURE, build_tokens
from experiments.training import Master, Optimizer, captured, detached
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target
from tr.checkpoint.tokenizer import load_tokenizer
from tr.config import Config
from tr.model import text
from tr.progress import track
from tr.report.record import Outcome
from tr.tree import replace_tensors, tensors


@dataclass
class Options:
    corpus: str = "data/texts.jsonl.xz"
    tokenizer: str = "tr/assets/tiny"
    tokens: int = 80_000_000  # length of the token stream that windows are drawn from
    mixture: dict[str, float] = field(default_factory=lambda: dict(MIXTURE))
    processes: int = 0  # that build the stream; 0: one per core
    short_tokens: int = 2048
    short_batch: int = 32
    short_steps: int = 3500
    long_tokens: int = 8192
    long_batch: int = 8
    long_steps: int = 0
    lr: float = 4e-3
    warmup: int = 100
    decay: float = 0.05
    clip: float = 1.0
    stop_after_s: float = 480.0
    resume: str = ""  # folder of an unfinished run
    start: str = ""  # folder of a finished run whose weights to start from
    lookahead: int = 7  # auxiliary heads that guess further tokens
    lookahead_weight: float = 0.5  # of their mean loss beside the next token's
    response_weight: float = 3.0  # of a response's tokens in the loss; others weigh 1
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


def next_token_loss(params: text.Params, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean cross-entropy, in nats, of tokens [batch, n + 1] given those before them; and
    the final hidden of those tokens [batch, n, d_model]."""
    past = text.init_past(params, tokens.shape[0])
    hidden, _, _ = text.sequence(params, past, tokens[:, :-1], (), "train")
    logits = params.head.sequence(hidden).flatten(0, 1).float()
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    share = weight[:, 1:].flatten()
    return (loss * share).sum() / share.sum(), hidden


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
    params = text.init(shape, generator, torch.bfloat16)
    heads = lookahead.init(o.lookahead, shape.d_model, generator, torch.bfloat16)
    if o.start:
        params = load_target(Path(o.start, "target"), device, with_mtp=False).params
        saved = load_file(Path(o.start, "lookahead.safetensors"), str(device))
        heads = replace_tensors(heads, saved)
    masters = Master(params, frozen=("rope",)), Master(heads)
    master, further = masters
    leaves = {name: t for m in masters for name, t in m.leaves.items()}
    steps = o.short_steps + o.long_steps
    optimizer = Optimizer(masters, o.lr, steps, o.warmup, o.decay)
    done, losses = 0, []
    next_nats = torch.zeros((), device=device)
    if o.resume:
        saved = torch.load(Path(o.resume, "state.pt"), map_location=device, weights_only=True)
        done, losses = saved["step"], saved["losses"]
        for name, t in leaves.items():
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
            params, tokens, weight = master.view(), windows.tokens, windows.weight
            next_loss, hidden = next_token_loss(params, tokens, weight)
            next_nats.copy_(next_loss.detach())
            if not o.lookahead:
                return next_loss
            more = lookahead.loss(further.view(), params, hidden, tokens, weight)
            return next_loss + o.lookahead_weight * more

        step = captured(loss, masters, o.clip)
        for i in track(range(begin, end), f"{tokens}-token windows"):
            windows.load(i)
            step()
            optimizer.step(i)
            done = i + 1
            if i % 20 == 0 or done == end:
                losses.append([i, round(next_nats.item(), 4)])
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
    save_file(tensors(detached(further.view())), out / "lookahead.safetensors")
    if done < steps:
        data = {name: t.data for name, t in leaves.items()}
        state = {"step": done, "losses": losses, "leaves": data, "optimizer": optimizer.state()}
        torch.save(state, out / "state.pt")
    else:
        figures["held_out_bits_per_byte"] = bits_per_byte(params, tokenizer, o.corpus)
        figures["probe_rates"] = probe_rates(params, tokenizer, o.probes)
    return Outcome(figures=figures)
