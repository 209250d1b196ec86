"""The device: what it is, what its driver says, how fast it reads; disk space and the port."""

import os
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from yaml import safe_load

from experiments.ceilings import CUDA_BYTES, read_gb_per_s
from kernels.define import FLOAT8, Target
from kernels.matmul.tile import resident_dtype
from kernels.registry import choose
from tr.assemble import Outline, outline
from tr.budget import free_bytes
from tr.config import CheckpointWeights, Device, Doctor
from tr.doctor.finding import FAIL, OK, WARN, Finding
from tr.overrides import CONFIGS, choices
from tr.report.machine import GIB, command, describe
from tr.roofline import plan, size

SLOW = 0.85  # of a card's known read bandwidth: less is worth a word
T = TypeVar("T")
ROOM = 2.0**30  # bytes on the disk for records and compiled kernels


def choice(group: str, name: str, schema: type[T]) -> T:
    """A choice of a group as its own file has it."""
    values = safe_load((CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8"))
    return schema(**{key: value for key, value in values.items() if key != "defaults"})


class Machine:
    """What several checks ask of a config and the machine it names; each is found out once."""

    def __init__(self, config: Doctor) -> None:
        self.config = config

    @cached_property
    def device(self) -> torch.device:
        """Raises ValueError where this machine lacks it."""
        return self.config.device.resolve()

    @cached_property
    def about(self) -> dict[str, Any]:
        return describe(self.device, None)

    @cached_property
    def known(self) -> Device | None:
        """The config of the device: the one that was named, or that of the card by its name."""
        own = self.config.device
        if own.read_gb_per_s or own.nominal_gb_per_s:
            return own
        if self.device.type == "cuda":
            for name in choices("device"):
                found = choice("device", name, Device)
                if found.card and found.card in self.about["name"]:
                    return found
        return None

    @cached_property
    def measured(self) -> float | None:
        """GB/s; None where the card has no room for the measurement."""
        if self.device.type == "cuda" and free_bytes(self.device) < 2 * CUDA_BYTES:
            return None
        return read_gb_per_s(self.device)

    @cached_property
    def outline(self) -> Outline:
        return outline(self.config)

    def reads(self) -> tuple[float, str] | None:
        """GB/s that a step can be held against, and where they are from."""
        try:
            known, measured = self.known, self.measured
        except ValueError:  # no such device here: what its config says
            known, measured = self.config.device, None
        ceiling = (known.read_gb_per_s if known else None) or 0.0
        if known and max(ceiling, measured or 0.0) == ceiling > 0:
            return ceiling, f"device={known.name}"
        if measured:
            return measured, "measured"
        nominal = known.nominal_gb_per_s if known else None
        return (nominal, "nominal") if nominal else None


def check(machine: Machine) -> Iterator[Finding]:
    lone = command("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not torch.cuda.is_available() and lone:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"
        yield Finding(
            "driver",
            WARN,
            f"nvidia-smi sees {lone.splitlines()[0]}; torch {torch.__version__}, built for {built},"
            " sees no card",
            "install a CUDA build of torch that this driver can run: everything runs on the CPU",
        )
    device, about = machine.device, machine.about
    if device.type == "cuda":
        yield from card(machine)
    else:
        native = resident_dtype(torch.bfloat16) == torch.bfloat16
        held = "bf16 products are native" if native else "bf16 matrices are held as fp32"
        yield Finding(
            "cpu",
            OK,
            f"{about['name']}, {about['cores']} cores, {about['threads']} threads,"
            f" {about['capability']}; {held}; {size(free_bytes(device))} free",
            "" if torch.cuda.is_available() else "no card: operators run their CPU variants",
            {"free_gb": free_bytes(device) / 1e9, **about},
        )
    known, measured = machine.known, machine.measured
    if measured is None:
        room = size(free_bytes(device))
        yield Finding(
            "read bandwidth", WARN, f"not measured: {room} free", "end what holds the card"
        )
        return
    figures, said = {"measured_gb_per_s": measured}, f"{measured:,.0f} GB/s measured"
    state, todo = OK, ""
    if known and (ceiling := known.read_gb_per_s or known.nominal_gb_per_s):
        figures["known_gb_per_s"] = ceiling
        said += f", {ceiling:,.0f} known of device={known.name}"
        if measured < SLOW * ceiling:
            state = WARN
            todo = "steps are slower in proportion; look for another process, heat, a power limit"
    elif device.type == "cuda":
        todo = "configs/device has no ceiling of this card: the measured one stands in"
    yield Finding("read bandwidth", state, said, todo, figures)


def card(machine: Machine) -> Iterator[Finding]:
    about, device = machine.about, machine.device
    target = Target.of(device)
    total = torch.cuda.get_device_properties(device).total_memory
    free = free_bytes(device)
    picked = choose(device=target)
    plain = [name for name, variant in picked.items() if variant in ("tile", "reference")]
    yield Finding(
        "card",
        OK if free > total / 2 else WARN,
        f"{about['name']}, compute capability {about['capability']},"
        f" {about['multiprocessors']} multiprocessors; {free / GIB:.1f} of {total / GIB:.1f} GiB"
        " free",
        "" if free > total / 2 else "end what holds the card",
        {"free_gb": free / 1e9, "total_gb": total / 1e9},
    )
    if target.capability < FLOAT8:
        least = ".".join(map(str, FLOAT8))
        told = f"kv=fp8 and prefill=fp8 need compute capability {least}; use int8"
        yield Finding("float8", WARN, f"compute capability {about['capability']}", told)
    count = f"{len(picked) - len(plain)} of {len(picked)} have a variant written for this card"
    told = f"in plain torch: {', '.join(plain)}" if plain else ""
    yield Finding("fast operators", OK if len(plain) * 2 < len(picked) else WARN, count, told)
    if "driver" not in about:
        told = "no power limit and clocks in records; install it with the driver"
        yield Finding("driver", WARN, "nvidia-smi does not answer", told)
        return
    limit, known = about["power_limit_w"], machine.known
    low = known and known.power_w and limit.replace(".", "", 1).isdigit()
    low = bool(low and float(limit) < 0.98 * known.power_w)  # type: ignore[union-attr,operator]
    yield Finding(
        "driver",
        WARN if low else OK,
        f"{about['driver']}; power limit {limit} W; clocks {about['clock_sm_mhz']} MHz of"
        f" {about['clock_sm_max_mhz']}, memory {about['clock_memory_mhz']} MHz",
        f"device={known.name} was measured at {known.power_w:g} W" if low and known else "",
    )


def disk(machine: Machine) -> Iterator[Finding]:
    """Where records go, and where a hub repository's files are."""
    wanted = {"outputs": (Path.cwd(), ROOM)}
    source = machine.config.weights
    if isinstance(source, CheckpointWeights) and source.repo:
        from huggingface_hub.constants import HF_HUB_CACHE

        whole = plan(machine.config.model.spec()).held  # in bf16, of the model that is named
        wanted["hub cache"] = Path(HF_HUB_CACHE), whole
    for item, (place, room) in wanted.items():
        there = next(p for p in (place, *place.parents) if p.exists())
        free, state, told = shutil.disk_usage(there).free, OK, ""
        if free < room:
            state, told = WARN, f"up to {size(room)} are needed: make room"
        if not os.access(there, os.W_OK):
            state, told = FAIL, "cannot be written to: choose another folder"
        yield Finding(item, state, f"{size(free)} free at {place}", told, {"free_gb": free / 1e9})


def port(machine: Machine) -> Iterator[Finding]:
    """Whether a server could take its address."""
    from tr.serve.__main__ import bound

    config = machine.config
    taken = bound(config.host, config.port)
    found = taken.getsockname()[1]
    taken.close()
    yield Finding("server", OK, f"{config.host} port {found} is free")
