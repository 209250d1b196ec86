"""A card's memory in an experiment: what is held, what a part of it takes at most, letting go."""

import gc

import torch

from tr.decode.snapshot import caches
from tr.decode.step import Model, State
from tr.tree import tensors


def held() -> int:
    """Bytes that tensors have on the card; 0 without one."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def release(model: Model) -> None:
    """Let go of states that nobody holds any more, of what was captured on them, and of the room.

    Conversations and captured steps refer to each other in circles: they would wait for Python's
    collector while the next state is made.
    """
    gc.collect()
    model.forget()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def cache_bytes(state: State) -> int:
    """Of all keys and values, a draft's caches included."""
    return sum(x.nbytes for cache in caches(state) for x in tensors(cache).values())


def peaks(weights: int, draft: int, kv: int) -> dict[str, float]:
    """GB at most since `release`, and of that what the run's parts hold; empty without a card.

    `other`: the rest of the state, a prompt's scratch, copies, captured steps. `reserved`: what the
    allocator took for all that.
    """
    if not torch.cuda.is_available():
        return {}
    peak = torch.cuda.max_memory_allocated()
    parts = {"weights": weights, "draft": draft, "kv": kv, "other": peak - weights - draft - kv}
    found = {"peak": peak, "reserved": torch.cuda.max_memory_reserved(), **parts}
    return {f"{name}_gb": n / 1e9 for name, n in found.items()}
