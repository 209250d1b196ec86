"""What the run of a config holds, what else would fit, and how fast its steps can be at best."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.define import Target
from tr.assemble import Outline, element_bytes, widens
from tr.budget import GRAPHS, budget, free_bytes
from tr.config import Kv
from tr.doctor.finding import OK, WARN, Finding, refused
from tr.doctor.machine import Machine
from tr.model.config import FULL
from tr.nn.formats.kv.cache import FORMATS, bytes_per_token
from tr.operators import operators
from tr.roofline import Plan, largest, matrix_bytes, plan, require, size

THOUSAND = 1000
SHOWN = 6  # items of a plan, the largest


def check(machine: Machine) -> Iterator[Finding]:
    config, coming = machine.config, machine.outline
    shape, quant = coming.shape, coming.config.quant.format
    capacity = min(config.kv.capacity_tokens, shape.max_positions)
    try:
        device = machine.device
        free = free_bytes(device, config.device.memory_gib)
        where = str(device)
    except ValueError as error:  # another machine's card
        if config.device.memory_gib is None:
            raise
        device, free = torch.device("cuda"), config.device.memory_gib * 2**30
        where = f"device={config.device.name}"
        told = f"the plan is for device={config.device.name} with nothing else on it"
        yield Finding("device", WARN, refused("", error).found, told)
    free -= GRAPHS if device.type == "cuda" else 0.0
    element = held_element(coming, capacity, device)
    known = coming.known(element)

    def held(tokens: int, kv: str = "") -> Plan:
        chosen = replace(coming.config, kv=Kv(format=kv)) if kv else coming.config
        return budget(chosen, shape, tokens, coming.draft, element, known, device)

    try:
        formats = f"quant={quant} and kv={config.kv.format}"
        whole = require(held, capacity, shape.max_positions, free, formats, where)
        items = sorted((i for i in whole.items if i.held), key=lambda item: -item.held)
        parts = ", ".join(f"{item.name} {size(item.held)}" for item in items[:SHOWN])
        yield Finding(
            "this run",
            OK,
            f"{size(whole.held)} of {size(free)} free, with {capacity:,} tokens of cache; of that"
            f" {parts}",
            figures={"bytes": {item.name: item.held for item in items}},
        )
    except ValueError as error:
        yield refused("this run", error)
    full = shape.layer_types.count(FULL)
    for kv in FORMATS:
        each = THOUSAND * full * bytes_per_token(kv, shape.kv_heads, shape.d_head)
        most = largest(lambda n, kv=kv: held(n, kv), free, shape.max_positions)
        limit = " (the model's limit)" if most == shape.max_positions else ""
        yield Finding(
            f"kv={kv}",
            OK if most else WARN,
            f"{size(each)} per {THOUSAND:,} tokens; {most:,} tokens fit{limit}",
            "" if most else "not even an empty cache fits beside the weights",
            {"bytes_per_token": each / THOUSAND, "largest_context_tokens": most},
        )
    yield from wall(machine, capacity, element)


def wall(machine: Machine, capacity: int, element: float) -> Iterator[Finding]:
    """Raw decoding's speed if nothing but reading took time."""
    coming, kv = machine.outline, machine.config.kv.format
    reads = machine.reads()
    if reads is None:
        yield Finding("wall", WARN, "the read bandwidth is not known", "no speed can be predicted")
        return
    gb_per_s, source = reads
    for context in sorted({0, capacity - 1}):
        moved = step_bytes(coming, kv, context, element)
        rate = gb_per_s * 1e9 / moved
        yield Finding(
            f"wall at {context:,} tokens",
            OK,
            f"{size(moved)} a raw step over {gb_per_s:,.0f} GB/s ({source}): at most"
            f" {rate:,.1f} tokens/s, {1e3 / rate:.3f} ms a step",
            figures={"bytes_per_step": moved, "tokens_per_s": rate, "gb_per_s": gb_per_s},
        )


def held_element(coming: Outline, capacity: int, device: torch.device) -> float:
    """Bytes of an unquantised number as this device holds it."""
    if device.type != "cpu":
        return element_bytes(False)
    ops, _ = operators(coming.config, coming.shape, capacity, Target.of(device))
    return element_bytes(widens(ops, device))


def step_bytes(coming: Outline, kv: str, context: int, element: float) -> float:
    """What a raw step moves, its large matrices as they are held."""
    shape, quant = coming.shape, coming.config.quant.format
    large = {n: matrix_bytes(n, s, quant, element) for n, s in shape.matrices.items()}
    large |= {n: held for n, held in coming.known(element).items() if n in large}
    items = plan(shape, quant, kv, context).items
    return sum(large.get(item.name, item.moved) for item in items)
