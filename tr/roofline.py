"""Bytes: what a model holds in memory and what one step must move, by item, without a GPU.

The wall of single-stream decoding is read bandwidth: a step cannot be faster than the bytes it must
move over the bytes the card reads a second. Activations and row records are left out of what moves:
they stay in the card's cache.
"""

from dataclasses import dataclass

from kernels.define import MAX_ROWS
from tr.model.config import FULL, LINEAR, ModelConfig

BITS = {"bf16": 16.0, "int4_g128": 4.25}  # per weight, scales and minimums included
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}  # per element of a cached key or value
GROUP = 128  # inputs that share a scale in int4_g128


@dataclass(frozen=True)
class Item:
    """`held`: bytes in memory. `moved`: bytes a step reads, and writes where it writes them."""

    name: str
    held: float
    moved: float


@dataclass(frozen=True)
class Plan:
    items: tuple[Item, ...]

    @property
    def held(self) -> float:
        return sum(item.held for item in self.items)

    @property
    def moved(self) -> float:
        return sum(item.moved for item in self.items)


def matrices(c: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """Large matrices of the text path, stacked as they are read: name -> (count, rows, columns)."""
    linear, full = c.layer_types.count(LINEAR), c.layer_types.count(FULL)
    value, key = c.v_heads * c.d_v, c.k_heads * c.d_k
    inner, kv = c.heads * c.d_head, c.kv_heads * c.d_head
    return {
        "delta in_qkvz": (linear, 2 * key + 2 * value, c.d_model),
        "delta out": (linear, c.d_model, value),
        "attention qkv": (full, 2 * inner + 2 * kv, c.d_model),
        "attention out": (full, c.d_model, inner),
        "mlp gate_up": (c.layers, 2 * c.d_ff, c.d_model),
        "mlp down": (c.layers, c.d_model, c.d_ff),
        "lm_head": (1, c.vocab, c.d_model),
    }


def plan(
    c: ModelConfig,
    weights: str = "bf16",
    kv: str = "bf16",
    context: int = 0,
    rows: int = 1,
    capacity: int | None = None,
) -> Plan:
    """Bytes of a decoding step of `rows` rows at `context` tokens, and of what is held for it.

    `capacity` tokens of cache are held (default: `context`). Raises ValueError for an unknown
    format or a matrix that the format cannot take.
    """
    if weights not in BITS:
        raise ValueError(f"quant: expected {' or '.join(BITS)}, got {weights!r}")
    if kv not in KV_BYTES:
        raise ValueError(f"kv: expected {' or '.join(KV_BYTES)}, got {kv!r}")
    held_tokens = context if capacity is None else capacity
    items = []
    for name, (count, n, k) in matrices(c).items():
        if weights == "int4_g128" and k % GROUP:
            raise ValueError(
                f"quant=int4_g128: {name} has {k} columns, not a multiple of {GROUP};"
                " use quant=bf16"
            )
        size = count * n * k * BITS[weights] / 8
        tied = name == "lm_head" and c.tie_embeddings and weights == "bf16"
        items.append(Item(name, 0.0 if tied else size, size))
    linear, full = c.layer_types.count(LINEAR), c.layer_types.count(FULL)
    channels = c.delta.channels
    small = linear * (2 * c.v_heads * c.d_model + channels * c.conv_width + 2 * c.v_heads + c.d_v)
    small += full * 2 * c.d_head + c.d_model * (2 * c.layers + 1)
    items.append(Item("gates, convolutions, norms", 2.0 * small, 2.0 * small))
    items.append(Item("embedding", 2.0 * c.vocab * c.d_model, 2.0 * rows * c.d_model))
    state = 4.0 * linear * c.v_heads * c.d_k * c.d_v
    items.append(Item("recurrent state", state, 2 * state))
    record = 4.0 * (c.k_heads * c.d_k + c.v_heads * c.d_v + c.v_heads) + 2.0 * channels
    items.append(Item("records of rows", MAX_ROWS * linear * record, 0.0))
    per_token = full * 2 * c.kv_heads * c.d_head * KV_BYTES[kv]
    items.append(Item("key-value cache", held_tokens * per_token, (context + rows) * per_token))
    return Plan(tuple(items))


def largest_context(c: ModelConfig, weights: str, kv: str, memory: float) -> int:
    """Tokens of cache that fit beside the weights in `memory` bytes; at most the positions."""
    free = memory - plan(c, weights, kv, capacity=0).held
    per_token = plan(c, weights, kv, capacity=1).held - plan(c, weights, kv, capacity=0).held
    if free < 0:
        return 0
    return min(c.max_positions, int(free / per_token)) if per_token else c.max_positions
