"""Compile what a launch would launch, for a GPU that need not be there; run as a program.

Launches run on meta tensors with `kernel[grid](...)` recorded instead of executed; each recorded
kernel is compiled for the capability given (90) and its resources are printed as JSON, one line
each, and a last line: what each kernel is compiled for at different row counts.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

import kernels.gpu
from kernels.define import VARIANTS
from kernels.int4_matmul.plan import Plan
from kernels.registry import FAST
from tests.kernels.compiled_cases import BY_ROWS, CASES, arguments, takes

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
AHEAD = Plan(1, 1).ahead
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def record(launch: Callable[..., Any], *arguments: Any) -> list[tuple[JITFunction, dict, dict]]:
    """(kernel, arguments by name, options) of every launch in `launch(*arguments)`."""
    calls = []

    def getitem(fn: JITFunction, grid: Any) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            named = dict(zip(fn.arg_names, args, strict=False))
            named |= {k: v for k, v in kwargs.items() if k in fn.arg_names}
            calls.append((fn, named, {k: v for k, v in kwargs.items() if k not in fn.arg_names}))

        return call

    with patch.object(JITFunction, "__getitem__", getitem):
        launch(*arguments)
    return calls


def specialised(fn: JITFunction, named: dict[str, Any]) -> tuple[dict, dict, dict]:
    """Signature, constants and attributes of a launch, as Triton would specialise them."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(fn.params):
        value = named[parameter.name]
        specialise = not parameter.do_not_specialize
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and specialise):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            if not parameter.do_not_specialize_on_alignment:
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, TensorDescriptor):
            element = TYPES[value.base.dtype].removeprefix("*")
            signature[parameter.name] = (
                f"tensordesc<{element}{list(value.block_shape)},{value.layout!r}>"
            )
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and specialise:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def build(fn: JITFunction, named: dict[str, Any], options: dict[str, Any], capability: int) -> Any:
    """As on a card of that capability, which overlaps launches from 9.0 on."""
    if "PDL" in named:
        overlap = capability >= 90
        named = named | {"PDL": overlap}
        options = options | {"launch_pdl": overlap}
        if "AHEAD" in named:
            named["AHEAD"] = AHEAD if overlap else 0
            if capability != 90:  # as plan.py has it for little shared memory
                named["STAGES"] = Plan.stages
    kind = GluonASTSource if fn.is_gluon() else ASTSource
    source = kind(fn, *specialised(fn, named))
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def early(ptx: str) -> int:
    """Accesses to global memory ahead of the wait for the kernel before; -1 without a wait."""
    head, wait, _ = ptx.partition("griddepcontrol.wait")
    access = r"\b(?:ld|st|atom|red)\.[\w.]*global|\bcp\.async\.c[ag]\."
    return len(re.findall(access, head)) if wait else -1


def busiest(ptx: str) -> dict[str, int]:
    """Fused multiply-adds, barriers and shuffles of the block that has most of the first."""
    blocks = re.split(r"^\$L__BB\w+:", ptx, flags=re.M)
    block = max(blocks, key=lambda text: text.count("fma.rn.f32"))
    words = {"fma": r"\bfma\.rn\.f32", "barriers": r"\bbar", "shuffles": r"\bshfl"}
    return {name: len(re.findall(word, block)) for name, word in words.items()}


def resources(compiled: Any) -> dict[str, Any]:
    """Registers, bytes of stack (spills), bytes of shared memory, and instructions that matter."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text))
    ptx = compiled.asm["ptx"]
    return {
        "registers": int(usage["REG"]),
        "spilled": int(usage["STACK"]) + int(usage["LOCAL"]),
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "barriers": len(re.findall(r"\bbar\.sync|\bbarrier\.", ptx)),
        "contractible": len(re.findall(r"\b(?:mul|add|sub)\.f32", ptx)),
        "early": early(ptx),
        "busiest": busiest(ptx),
        "wgmma": len(re.findall(r"\bwgmma\.mma_async", ptx)),
        "mma": len(re.findall(r"\bmma\.sync", ptx)),
    }


def keys() -> dict[str, list[str]]:
    """For each kernel whose rows must agree, the distinct compilations of 1, 8 and 16 rows."""
    found: dict[str, set[str]] = {}
    for operator, variant in product(BY_ROWS, FAST):
        for rows in (1, 8, 16):
            made = arguments(operator, rows)
            calls = record(VARIANTS[operator][variant], *made) if takes(operator, variant) else []
            for fn, named, options in calls:
                key = f"{specialised(fn, named)} {options}"
                found.setdefault(f"{operator} {fn.__name__}", set()).add(key)
    return {name: sorted(key) for name, key in found.items()}


def main(capability: int) -> None:
    for (operator, name, made), variant in product(CASES, FAST):
        calls = record(VARIANTS[operator][variant], *made) if takes(operator, variant) else []
        for fn, named, options in calls:
            figures = resources(build(fn, named, options, capability))
            case = f"{operator} {variant} {name}"
            print(json.dumps({"case": case, "kernel": fn.__name__, **figures}))
    print(json.dumps({"keys": keys()}))


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    main(int(sys.argv[1]))
