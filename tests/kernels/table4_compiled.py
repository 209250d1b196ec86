"""Compiles the table matmul for cards that are not here and prints what came out, as JSON.

Run as a program, with compute capabilities, for the reasons given in cross.py; 90 gets both cases.
"""

import json
import re
import sys
from typing import Any

import kernels.gpu
from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tests.kernels.compiled import build, early, record
from tests.kernels.compiled_cases import SHAPE
from tests.kernels.cross import disassemble, main_loop
from tr.bench import Draw

CASES = ("mlp gate_up", "mlp down")


def report(case: str, capability: int) -> dict[str, Any]:
    bench = BENCHES["table4_matmul"]
    arguments = bench.inputs(Draw("meta"), 1, **bench.cases(SHAPE)[case])
    ((fn, named, options),) = record(VARIANTS["table4_matmul"]["triton"], *arguments)
    kernel = build(fn, named, options, capability)
    code, usage = disassemble(kernel.asm["cubin"])
    loop = main_loop(code)
    weights = named["ROW_TILES"] * 64 * 128 / (options["num_warps"] * 32)
    return {
        "capability": capability,
        "row_tiles": named["ROW_TILES"],
        "warps": options["num_warps"],
        "matrix": max(loop["HGMMA"], loop["HMMA"]),
        "early": early(kernel.asm["ptx"]),
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "registers": int(re.findall(r"REG:(\d+)", usage)[-1]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[-1]),
        "shared_bytes": kernel.metadata.shared,
        "async_copies": loop["LDGSTS"],
        "moved": loop["STS"],  # operands that would go by way of shared memory
        "waits": loop["WARPGROUP"],
        "instructions_per_weight": round(loop.total() / weights, 2),
    }


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    print(
        json.dumps([report(c, n) for n in map(int, sys.argv[1:]) for c in CASES[: 1 + (n == 90)]])
    )
