"""Whether a run fits the memory that its device has free: asked before anything is loaded."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from tr.checkpoint.load import skeleton
from tr.config import MtpDraft, Run
from tr.drafts import dflash2, dflash2_net
from tr.model.config import ModelConfig
from tr.model.text import cache_rows
from tr.nn.formats.kv.cache import bytes_per_token
from tr.roofline import Item, Plan, matrix_bytes, mtp_items, plan, require, workspace
from tr.tree import tensors

GRAPHS = 2.0**29  # compiled code and captured graphs of a few row counts, on CUDA
MEMINFO = Path("/proc/meminfo")


def budget(
    config: Run,
    shape: ModelConfig,
    capacity: int,
    draft: float,
    element: float,
    known: Mapping[str, float] | None = None,
) -> Plan:
    """What a run of `config` holds with caches for `capacity` tokens, buffers included.

    `draft`: bytes of a block draft. `element`: of an unquantised matrix's weight as it is held.
    `known`: bytes of items that are not what `config` alone would make them.
    """
    quant, kv, rows = config.quant.format, config.kv.format, cache_rows(capacity)
    items = plan(shape, quant, kv, capacity=rows, element=element).items
    chains = [d for d in config.draft.parts() if isinstance(d, MtpDraft)]
    chained = cache_rows(capacity + max(d.tokens for d in chains)) if chains else 0
    held = [kv if d.kv == "same" else d.kv for d in chains] or [kv]
    widest = max(held, key=lambda kv: bytes_per_token(kv, shape.kv_heads, shape.d_head))
    items += mtp_items(shape, quant, widest, chained, element)
    items += (Item("draft head", head_bytes(config, shape, element)),)
    device = config.device.resolve()
    chunk = min(config.prefill.tokens(device), capacity)
    scratch = config.prefill.scratch_mib << 20 if device.type == "cuda" else None
    items += Item("DFlash2 draft", draft), workspace(shape, quant, capacity, chunk, scratch)
    known = known or {}
    return Plan(tuple(replace(item, held=known.get(item.name, item.held)) for item in items))


def head_bytes(config: Run, shape: ModelConfig, element: float) -> float:
    """At most what a head slice adds: its rows, control tokens aside."""
    heads = (getattr(part, "head", None) for part in config.draft.parts())
    rows = sum(min(head.ids, shape.vocab) for head in heads if head and head.kind != "full")
    size = 2.0 if shape.tie_embeddings else element
    return matrix_bytes("draft head", (1, rows, shape.d_model), config.quant.format, size)


def draft_bytes(c: dflash2_net.Config, quant: str) -> float:
    """Weights, rotary tables and ring of a draft, whatever `quant` leaves alone in bfloat16."""
    made = skeleton(lambda generator: dflash2_net.init(c, generator, torch.bfloat16))
    held = 2.0 * 2 * c.layers * c.kv_heads * dflash2.ring_rows(c, c.window) * c.d_head
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
    device, drafting = config.device.resolve(), 0.0
    if draft is not None:
        drafting = draft_bytes(draft, config.quant.format)
    free = free_bytes(device, config.device.memory_gib)
    return require(
        lambda tokens: budget(config, shape, tokens, drafting, element, known),
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
