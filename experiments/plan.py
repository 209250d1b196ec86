"""Bytes by item, the floor of a step, and the largest context, for cards and formats; no GPU.

Held is what a run with the configured draft allocates on a card, a prompt's scratch included; moved
is a raw step's.
"""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from tr.assemble import random_dflash2
from tr.budget import budget
from tr.config import Config, Dflash2Draft, Kv, Quant
from tr.nn.formats.kv.cache import FORMATS
from tr.report.record import Outcome
from tr.roofline import Plan, largest, plan

GIB = 2**30


@dataclass
class Options:
    weights: list[str] = field(default_factory=lambda: ["bf16", "int4_g128"])
    kv: list[str] = field(default_factory=lambda: list(FORMATS))
    contexts: list[int] = field(default_factory=lambda: [0, 8192, 32768, 131072, 200000])
    rows: int = 1
    reserve_gib: float = 1.0  # of a card's memory that the driver and captured graphs take
    cards: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            "h200": {"memory_gib": 139.8, "read_gb_per_s": 4492.0},
            "rtx5090": {"memory_gib": 31.8, "read_gb_per_s": 1701.0},
            "rtx3090": {"memory_gib": 23.7, "read_gb_per_s": 861.0},
        }
    )


def run(config: Config) -> Outcome:
    o, shape = config.options(Options), config.model.spec()
    blocks = [part for part in config.draft.parts() if isinstance(part, Dflash2Draft)]
    net = random_dflash2(blocks[0].random, shape) if blocks else None
    figures: dict[str, Any] = {"bytes_held_gb": {}, "bytes_per_step_gb": {}, "floors": {}}
    for weights, kv in product(o.weights, o.kv):
        chosen = replace(config, quant=Quant(format=weights), kv=Kv(format=kv))

        def held(tokens: int, chosen: Config = chosen) -> Plan:
            return budget(chosen, shape, tokens, net, element=2.0, device=torch.device("cuda"))

        name = f"{weights}, {kv} cache"
        whole = held(shape.max_positions)
        figures["bytes_held_gb"][name] = {i.name: i.held / 1e9 for i in whole.items}
        figures["bytes_held_gb"][name]["total"] = whole.held / 1e9
        step = plan(shape, weights, kv, 0, o.rows)
        figures["bytes_per_step_gb"][name] = {i.name: i.moved / 1e9 for i in step.items if i.moved}
        figures["bytes_per_step_gb"][name]["total"] = step.moved / 1e9
        for card, limits in o.cards.items():
            room = (limits["memory_gib"] - o.reserve_gib) * GIB
            row: dict[str, Any] = {
                "largest_context_tokens": largest(held, room, shape.max_positions)
            }
            for context in o.contexts:
                moved = plan(shape, weights, kv, context, o.rows).moved
                floor = moved / (limits["read_gb_per_s"] * 1e6)
                row[f"floor_at_{context}_ms"] = floor if held(context).held <= room else None
            figures["floors"][f"{card}: {name}"] = row
    return Outcome(figures)
