"""Whether a run fits the memory that its device has free: asked before anything is loaded."""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from kernels.define import MAX_ROWS
from kernels.int4_matmul.layout import GROUP
from kernels.kvarn import RING, TILE
from tr.checkpoint.load import skeleton
from tr.config import MtpDraft, Run
from tr.decode.porter import AHEAD
from tr.drafts import dflash2, dflash2_net
from tr.model.config import ModelConfig
from tr.model.text import cache_rows
from tr.nn.formats.kv.cache import bytes_per_token
from tr.nn.formats.many import Many
from tr.roofline import (
    Item,
    Plan,
    matrix_bytes,
    mtp_items,
    operators_workspace,
    plan,
    require,
    workspace,
)
from tr.tree import tensors

GRAPHS = 2.0**29  # compiled code and captured graphs of a few row counts, on CUDA
# rows of a cache around a text's end that a step may write, in whole tiles
WRITTEN = -(-(RING + 3 * MAX_ROWS) // TILE) * TILE + TILE
COPIED = ("recurrent state", "records of rows", "key-value cache", "exact rows beside it")
MEMINFO = Path("/proc/meminfo")


def budget(
    config: Run,
    shape: ModelConfig,
    capacity: int,
    draft: dflash2_net.Config | None,
    element: float,
    known: Mapping[str, float] | None = None,
    device: torch.device | None = None,
) -> Plan:
    """What a run of `config` holds at most with caches for `capacity` tokens.

    `draft`: a block draft's shape. `element`: bytes of an unquantised matrix's weight as it is
    held. `known`: bytes of items that are not what `config` alone would make them. `device`: where
    it runs, if not where `config` says.
    """
    quant, kv, rows = config.quant.format, config.kv.format, cache_rows(capacity)
    items = plan(shape, quant, kv, capacity=rows, element=element).items
    chains = [d for d in config.draft.parts() if isinstance(d, MtpDraft)]
    chained = cache_rows(capacity + max(d.tokens for d in chains)) if chains else 0
    held = [kv if d.kv == "same" else d.kv for d in chains] or [kv]
    widest = max(held, key=lambda kv: bytes_per_token(kv, shape.kv_heads, shape.d_head))
    items += mtp_items(shape, quant, widest, chained, element)
    items += (Item("draft head", head_bytes(config, shape, element)),)
    device = device or config.device.resolve()
    chunk = min(config.prefill.tokens(device), capacity)
    cuda, taps = device.type == "cuda", 0.0
    if draft is not None:
        items += (Item("DFlash2 draft", draft_bytes(draft, quant, cuda)),)
        taps = 2.0 * min(chunk, draft.window) * len(draft.taps) * draft.d_model
    if cuda:
        many = Many(config.prefill.activations, config.prefill.scratch_mib << 20)
        items += (aside(shape, kv, rows, draft),)
        items += (operators_workspace(shape, quant, capacity, chunk, many, taps),)
    else:
        items += (workspace(shape, quant, capacity, chunk),)
    known = known or {}
    return Plan(tuple(replace(item, held=known.get(item.name, item.held)) for item in items))


def head_bytes(config: Run, shape: ModelConfig, element: float) -> float:
    """At most what a head slice adds: its rows, control tokens aside."""
    heads = (getattr(part, "head", None) for part in config.draft.parts())
    rows = sum(min(head.ids, shape.vocab) for head in heads if head and head.kind != "full")
    size = 2.0 if shape.tie_embeddings else element
    return matrix_bytes("draft head", (1, rows, shape.d_model), config.quant.format, size)


def aside(shape: ModelConfig, kv: str, rows: int, draft: dflash2_net.Config | None) -> Item:
    """Copies of a state on the device, in which snapshots wait; a capture makes one for a while,
    with a few rows of the caches.
    """
    items = {item.name: item.held for item in plan(shape, kv=kv, capacity=WRITTEN).items}
    held = sum(items[name] for name in COPIED) + 8.0 * rows  # the text
    return Item("copies of the state", AHEAD * (held + (ring_bytes(draft) if draft else 0.0)))


def ring_bytes(c: dflash2_net.Config) -> float:
    return 2.0 * 2 * c.layers * c.kv_heads * dflash2.ring_rows(c, c.window) * c.d_head


@functools.cache
def draft_bytes(c: dflash2_net.Config, quant: str, fused: bool = False) -> float:
    """Weights, rotary tables and ring of a draft, whatever `quant` leaves alone in bfloat16.

    `fused`: run through operators, with a copy of every layer's keys' and values' rows.
    """
    made = skeleton(lambda generator: dflash2_net.init(c, generator, torch.bfloat16))
    held = ring_bytes(c)
    if fused and c.d_model % GROUP == 0:
        stacked = 1, c.layers * 2 * c.kv_heads * c.d_head, c.d_model
        held += matrix_bytes("draft keys and values", stacked, quant)
    for name, tensor in tensors(made).items():
        if name.endswith(".weight"):
            held += matrix_bytes(f"draft {name}", (1, *tensor.shape), quant)
        else:
            held += tensor.nbytes
    return held


def check(
    config: Run,
    shape: ModelConfig,
    capacity: int,
    draft: dflash2_net.Config | None,
    element: float,
    known: Mapping[str, float] | None = None,
) -> Plan:
    """The budget, or ValueError with its table and the largest capacity that would fit."""
    device = config.device.resolve()
    free = free_bytes(device, config.device.memory_gib)
    return require(
        lambda tokens: budget(config, shape, tokens, draft, element, known),
        min(capacity, shape.max_positions),
        shape.max_positions,
        free - GRAPHS if device.type == "cuda" else free,
        f"quant={config.quant.format} and kv={config.kv.format}",
        str(device),
    )


def free_bytes(device: torch.device, memory_gib: float | None = None) -> float:
    """Bytes that a process may still take on `device`; at most `memory_gib` where that is given."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + unused
    else:
        free = _available()
    return min(free, memory_gib * 2**30) if memory_gib else free


def _available() -> float:
    """Memory of the machine that is not in use, where Linux says so; else all of it."""
    if MEMINFO.is_file():
        for line in MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    if not hasattr(os, "sysconf"):
        return float("inf")
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
