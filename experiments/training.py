"""What the two training experiments share: fp32 master weights, optimizers, a captured step."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tr.tree import map_tensors, replace_tensors, tensors

T = TypeVar("T")
Step = Callable[[], Tensor]


class Master(Generic[T]):
    """fp32 copies of a pytree's trainable tensors; `view()` is the pytree in its serving dtype.

    Gradients flow through the cast, so training sees the numerics that decoding will have.
    """

    def __init__(self, params: T, frozen: Iterable[str] = ()) -> None:
        self.params = params
        skip = tuple(frozen)
        self.leaves = {
            name: t.detach().float().clone().requires_grad_()
            for name, t in tensors(params).items()
            if not name.startswith(skip)
        }
        self.dtypes = {name: tensors(params)[name].dtype for name in self.leaves}

    def view(self) -> T:
        cast = {name: t.to(self.dtypes[name]) for name, t in self.leaves.items()}
        return replace_tensors(self.params, cast)


class Optimizer:
    """Muon for hidden matrices, AdamW for the rest (embeddings, codebooks, norms, gates, taps).

    The rate rises over `warmup` steps and falls linearly to zero at `steps`.
    """

    def __init__(
        self, masters: Iterable[Master[Any]], lr: float, steps: int, warmup: int, decay: float
    ) -> None:
        named = [(name, t) for m in masters for name, t in m.leaves.items()]
        hidden = [t for name, t in named if is_hidden(name, t)]
        other = [t for name, t in named if not is_hidden(name, t)]
        fused = bool(other) and other[0].is_cuda
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(hidden, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(other, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused),
        ]
        self.lr, self.steps, self.warmup = lr, steps, warmup

    def rate(self, step: int) -> float:
        return self.lr * min((step + 1) / self.warmup, max(0.0, 1 - step / self.steps))

    def step(self, step: int) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.rate(step)
            part.step()

    def state(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load(self, state: list[dict]) -> None:
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


def is_hidden(name: str, t: Tensor) -> bool:
    """Whether Muon should train a tensor: matrices between hidden layers, no tables, no taps."""
    outside = ("embed", "predecessor", "successor", "conv")
    return t.ndim == 2 and min(t.shape) >= 32 and not any(part in name for part in outside)


def captured(loss: Callable[[], Tensor], masters: Iterable[Master[Any]], clip: float) -> Step:
    """`loss()` with gradients put into the masters, clipped by their joint norm, as one step.

    On a GPU the forward and backward pass are one CUDA graph: `loss` must read its batch from
    buffers that the caller overwrites. Returns a function that gives the loss, detached.
    """
    leaves = [t for m in masters for t in m.leaves.values()]

    def step() -> Tensor:
        value = loss()
        grads = torch.autograd.grad(value, leaves)
        norm = torch.stack([g.norm() for g in grads]).norm()
        scale = (clip / (norm + 1e-6)).clamp(max=1.0)
        for leaf, g in zip(leaves, grads, strict=True):
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
            leaf.grad.copy_(g * scale)
        return value.detach()

    if not leaves[0].is_cuda:
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def detached(params: T) -> T:
    """The same pytree without autograd history."""
    return map_tensors(Tensor.detach, params)
