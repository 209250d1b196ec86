"""Bytes: what a run holds in memory and what one step must move, by item, without a GPU.

The wall of single-stream decoding is read bandwidth: a step cannot be faster than the bytes it must
move over the bytes the card reads a second. What moves is a raw step's, or a verify step's of some
rows: each weight once, the recurrent state read and written, the live keys and values. Activations
and row records are left out: they stay in the card's cache. So are drafts, which have steps of
their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.define import MAX_ROWS
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.kvarn import RING, TILE
from tr.model.config import FULL, LINEAR, ModelConfig
from tr.nn.formats import int4
from tr.nn.formats.kv.cache import FORMATS, bytes_beside, bytes_per_token
from tr.nn.formats.kv.spans import SPAN
from tr.nn.formats.many import Many

#: per weight, with what belongs to groups; table4: and a byte for each row
BITS = {"bf16": 16.0, "int4_g128": 4.25, "table4": 4.25}
EXACT = TILE + RING  # rows that a kvarn cache keeps in fp16
RESTORING = 13.0  # bytes per 4-bit weight while a block of them is restored for a prompt
DELTA = 64  # tokens of a system of the delta rule


@dataclass(frozen=True)
class Item:
    """`held`: bytes in memory. `moved`: bytes a step reads, and writes where it writes them."""

    name: str
    held: float
    moved: float = 0.0


@dataclass(frozen=True)
class Plan:
    items: tuple[Item, ...]

    @property
    def held(self) -> float:
        return sum(item.held for item in self.items)

    @property
    def moved(self) -> float:
        return sum(item.moved for item in self.items)

    def table(self) -> str:
        """One line per item that holds anything, then the sum."""
        rows = [(item.name, item.held) for item in self.items if item.held]
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            f"  {name:<{width}}  {size(held):>10}" for name, held in [*rows, ("total", self.held)]
        )


def size(n: float) -> str:
    return f"{n / 1e9:.3f} GB" if n >= 1e8 else f"{n / 1e6:.3f} MB"


def head_matrices(c: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """Large matrices of the multi-token-prediction head, as `ModelConfig.matrices`."""
    inner, kv = c.heads * c.d_head, c.kv_heads * c.d_head
    found = {
        "fc": (1, c.d_model, 2 * c.d_model),
        "attention qkv": (1, 2 * inner + 2 * kv, c.d_model),
        "attention out": (1, c.d_model, inner),
        "mlp gate_up": (1, 2 * c.d_ff, c.d_model),
        "mlp down": (1, c.d_model, c.d_ff),
    }
    return {f"mtp {name}": shape for name, shape in found.items()} if c.mtp_layers else {}


def coded_columns(name: str, n: int, k: int, weights: str) -> bool:
    """Whether a 4-bit format takes a matrix [n, k]: small ones stay as they are.

    Raises ValueError for one whose columns are no multiple of the group.
    """
    if weights == "bf16" or min(n, k) < GROUP:
        return False
    if k % GROUP:
        raise ValueError(
            f"quant={weights}: {name} has {k} columns, not a multiple of {GROUP}; use quant=bf16"
        )
    return True


def matrix_bytes(
    name: str, shape: tuple[int, int, int], weights: str, element: float = 2.0
) -> float:
    """Bytes of `shape` = (count, rows, columns); `element` is the size of an unquantised weight.

    Coded rows fill whole tiles of 64.
    """
    count, n, k = shape
    if coded_columns(name, n, k, weights):
        beside = n if weights == "table4" else 0
        return count * (-(-n // ROWS) * ROWS * k * BITS[weights] / 8 + beside)
    return count * n * k * element


def plan(
    c: ModelConfig,
    weights: str = "bf16",
    kv: str = "bf16",
    context: int = 0,
    rows: int = 1,
    capacity: int | None = None,
    element: float = 2.0,
) -> Plan:
    """Bytes of a decoding step of `rows` rows at `context` tokens, and of what is held for it.

    `capacity` tokens of cache are held (default: `context`), unquantised matrices in `element`
    bytes a weight. Raises ValueError for an unknown format or a matrix that the format cannot take.
    """
    if weights not in BITS:
        raise ValueError(f"quant: expected {' or '.join(BITS)}, got {weights!r}")
    if kv not in FORMATS:
        raise ValueError(f"kv: expected {' or '.join(FORMATS)}, got {kv!r}")
    held_tokens = context if capacity is None else capacity
    items = []
    for name, shape in c.matrices.items():
        tied = name == "lm_head" and c.tie_embeddings and weights == "bf16"
        held = 0.0 if tied else matrix_bytes(name, shape, weights, element)
        items.append(Item(name, held, matrix_bytes(name, shape, weights)))
    linear, full = c.layer_types.count(LINEAR), c.layer_types.count(FULL)
    channels = c.delta.channels
    gates = linear * 2.0 * c.v_heads * c.d_model
    small = linear * (channels * c.conv_width + 2 * c.v_heads + c.d_v)
    small += full * 2 * c.d_head + c.d_model * (2 * c.layers + 1)
    items.append(
        Item("gates, convolutions, norms", element * gates + 2.0 * small, 2.0 * (gates + small))
    )
    items.append(Item("embedding", 2.0 * c.vocab * c.d_model, 2.0 * rows * c.d_model))
    items.append(Item("rotary tables", 2.0 * c.max_positions * c.rotary_dim))
    state = 4.0 * linear * c.v_heads * c.d_k * c.d_v
    items.append(Item("recurrent state", state, 2 * state))
    record = 4.0 * (c.k_heads * c.d_k + c.v_heads * c.d_v + c.v_heads) + 2.0 * channels
    tail = 2.0 * (c.conv_width - 1) * channels
    items.append(Item("records of rows", linear * (MAX_ROWS * record + tail)))
    per_token = full * bytes_per_token(kv, c.kv_heads, c.d_head)
    items.append(Item("key-value cache", held_tokens * per_token, (context + rows) * per_token))
    beside = full * bytes_beside(kv, c.kv_heads, c.d_head)
    items.append(Item("exact rows beside it", beside, beside * min(1.0, (context + rows) / EXACT)))
    return Plan(tuple(items))


def prefill_flops(c: ModelConfig, tokens: int, before: int = 0) -> float:
    """Operations of matrices and attention for `tokens` prompt tokens behind `before` others.

    A multiply-add counts as two; a token attends to itself and what is before it; logits are
    wanted of the last token alone. Convolutions, the delta rule and norms are left out.
    """
    found = dict(c.matrices)
    _, vocab, width = found.pop("lm_head")
    weights = sum(count * n * k for count, n, k in found.values())
    weights += c.layer_types.count(LINEAR) * 2 * c.v_heads * c.d_model
    pairs = tokens * before + tokens * (tokens + 1) / 2
    attention = c.layer_types.count(FULL) * 2 * c.heads * c.d_head * pairs
    return 2.0 * (tokens * weights + vocab * width + attention)


def mtp_items(
    c: ModelConfig, weights: str, kv: str, capacity: int, element: float = 2.0
) -> tuple[Item, ...]:
    """What the multi-token-prediction head holds, its cache of `capacity` tokens included."""
    if not c.mtp_layers:
        return ()
    large = sum(matrix_bytes(n, s, weights, element) for n, s in head_matrices(c).items())
    norms = 2.0 * (5 * c.d_model + 2 * c.d_head)
    per_token = bytes_per_token(kv, c.kv_heads, c.d_head)
    held = capacity * per_token + bytes_beside(kv, c.kv_heads, c.d_head)
    return Item("MTP head", large + norms), Item("MTP cache", held)


def workspace(c: ModelConfig, weights: str, capacity: int, chunk: int) -> Item:
    """Scratch of a prompt chunk behind a full cache, without operators: an estimate from above.

    A layer's activations; a block of restored weights; keys and values of the whole context,
    joined and repeated per query head, with the mask.
    """
    inner, channels = c.v_heads * c.d_v, c.delta.channels
    fixed = 4.0 * chunk * (8 * inner + 3 * channels + 3 * c.d_ff + 6 * c.d_model)
    if weights != "bf16":
        largest = max(n * k for _, n, k in c.matrices.values())
        fixed += RESTORING * min(int4.BLOCK, largest)
    attending = capacity * (4.0 * (c.heads + 2 * c.kv_heads) * c.d_head + 4.0 * chunk)
    return Item("workspace", fixed + attending + 8.0 * MAX_ROWS * c.vocab)


def operators_workspace(
    c: ModelConfig, weights: str, capacity: int, chunk: int, many: Many, taps: float = 0.0
) -> Item:
    """The same with operators on a card: the widest moment of a layer, in 16 bits.

    Beside it stand three rows of each token as wide as the model, and `taps` bytes of a draft's.
    """
    inner, channels = c.v_heads * c.d_v, c.delta.channels
    q, kv = c.heads * c.d_head, c.kv_heads * c.d_head
    keys = min(capacity, SPAN)
    moments = {name: 2.0 * chunk * n for name, (_, n, _) in c.matrices.items() if name != "lm_head"}
    if weights != "bf16":
        for name in moments:
            _, n, k = c.matrices[name]
            moments[name] += many.held(n, k, chunk)
    mixed = channels + inner  # q, k, v and z
    systems = 2.0 * (2 * DELTA) + 4.0 * 2  # per token and value head: the inverse, scores, decays
    moments["delta rule"] = chunk * (2.0 * (mixed + channels + inner) + c.v_heads * systems)
    projected = 2.0 * chunk * (2 * q + 2 * kv)
    moments["query norm"] = projected + 10.0 * chunk * q  # two in 32 bits and the result
    sums = chunk * (2 * 2.0 * q + 4.0 * (q + 2 * c.heads))  # queries, result; fp32 sums
    moments["attention"] = projected + sums + 2 * 2.0 * keys * kv
    moments["silu"] = 2.0 * chunk * 3 * c.d_ff
    beside = 3 * 2.0 * chunk * c.d_model + taps
    return Item("workspace", max(moments.values()) + beside + 8.0 * MAX_ROWS * c.vocab)


def largest(plan_of: Callable[[int], Plan], memory: float, limit: int) -> int:
    """The most tokens, 0 .. limit, whose plan holds at most `memory` bytes; 0 where none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if plan_of(middle).held <= memory:
            low = middle
        else:
            high = middle - 1
    return low


def largest_context(c: ModelConfig, weights: str, kv: str, memory: float) -> int:
    """Tokens of cache that fit beside the weights in `memory` bytes; at most the positions."""
    return largest(lambda n: plan(c, weights, kv, capacity=n), memory, c.max_positions)


def require(
    plan_of: Callable[[int], Plan], capacity: int, limit: int, free: float, formats: str, where: str
) -> Plan:
    """The plan at `capacity` tokens; ValueError with its table where `free` bytes do not hold it.

    `limit`: the model's positions. The message names the largest capacity that would fit.
    """
    wanted = plan_of(capacity)
    if wanted.held <= free:
        return wanted
    most = largest(plan_of, free, limit)
    remedy = (
        f"kv.capacity_tokens={most} is the most that fits"
        if most
        else "not even an empty cache fits: use quant=int4_g128, kv=int4 or a smaller model"
    )
    raise ValueError(
        f"memory: {capacity} tokens of cache, with {formats}, need {size(wanted.held)}; {where} has"
        f" {size(free)} free; {remedy}\n{wanted.table()}"
    )
