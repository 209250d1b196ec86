"""Compiles the int4 kernels for cards that are not here and prints what came out, as JSON.

Run as a program: in a process under Triton's interpreter there is no compiler. Arguments are
compute capabilities; 90 gets every fused form at the 27B's shapes, the others two of them. The
argument `gluon` stands for the Gluon kernels at 16 rows.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton

import kernels.gpu
from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tests.kernels.compiled import build, early, record
from tests.kernels.compiled_cases import SHAPE
from tr.bench import Draw

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
FORMS = ("int4_matmul", "int4_matmul_beside", "int4_add_norm", "int4_gate_up")


def disassemble(cubin: bytes) -> tuple[str, str]:
    """The machine code and the resource usage of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        commands = ["nvdisasm", "-c"], ["cuobjdump", "-res-usage"]
        code, usage = (
            subprocess.run([TOOLS / c[0], *c[1:], file.name], capture_output=True, text=True)
            for c in commands
        )
    return code.stdout, usage.stdout + usage.stderr


def main_loop(code: str, pick: Callable[..., range] = max) -> Counter[str]:
    """Opcodes of the longest innermost loop that holds matrix instructions, once round.

    Waits in other partitions look like longer ones: of a Gluon kernel `pick` the shortest.

    What a branch ahead skips is left out: the store of a block's sums, once in many rounds.
    """
    labels: dict[str, int] = {}
    ahead: list[tuple[int, str]] = []
    instructions: list[str] = []
    loops: list[range] = []
    for line in code.splitlines():
        if found := re.match(r"\s*(\.L_\w+):", line):
            labels[found[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s*(?:@!?U?P\w+ +)?([A-Z][\w.]*)", line):
            instructions.append(found[1].split(".")[0])
            jump = re.search(r"BRA.*\((\.L_\w+)\)", line)
            if jump and jump[1] in labels:
                loops.append(range(labels[jump[1]], len(instructions)))
            elif jump:
                ahead.append((len(instructions), jump[1]))
    matrix = [x for x in loops if {"HMMA", "HGMMA"} & set(instructions[x.start : x.stop])]
    inner = [x for x in matrix if not any(x != y and y[0] in x and y[-1] in x for y in matrix)]
    picked = pick(inner, key=len)
    skipped = {
        i
        for start, label in ahead
        if start in picked and labels[label] in picked
        for i in range(start, labels[label])
    }
    return Counter(instructions[i] for i in picked if i not in skipped)


def reductions(ttgir: str) -> dict[int, list[str]]:
    """By columns, 8 or 16: the rest of the shape and the layout of what is summed over rows."""
    found: dict[int, set[str]] = {8: set(), 16: set()}
    for columns, rest in re.findall(r"\}\) : \(tensor<(8|16)x([^>]*)>\) ->", ttgir):
        found[int(columns)].add(rest)
    return {columns: sorted(rest) for columns, rest in found.items()}


def report(capability: int, name: str, fn: Any, named: dict, options: dict) -> dict[str, Any]:
    kernel = build(fn, named, options, capability)
    code, usage = disassemble(kernel.asm["cubin"])
    loop = main_loop(code)
    weights = named["ROW_TILES"] * 64 * 128 / (options["num_warps"] * 32)
    return {
        "capability": capability,
        "name": name,
        "row_tiles": named["ROW_TILES"],
        "warps": options["num_warps"],
        "stages": named["STAGES"],
        "wgmma": "wgmma.mma_async" in kernel.asm["ptx"],
        "mma": "mma.sync" in kernel.asm["ptx"],
        "early": early(kernel.asm["ptx"]),
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "registers": int(re.findall(r"REG:(\d+)", usage)[-1]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[-1]),
        "shared_bytes": kernel.metadata.shared,
        "reductions": reductions(kernel.asm["ttgir"]),
        "async_copies": loop["LDGSTS"],
        "instructions_per_weight": round(loop.total() / weights, 2),
        "loop": dict(loop.most_common(8)),
    }


GLUON = {  # ring, stripes
    "int4_matmul": "attention qkv",
    "int4_gate_up": "mlp gate_up",
}


def gluon_report(operator: str, case: str) -> dict[str, Any]:
    """The Gluon kernel that 16 rows launch; its loop is a consumer's."""
    bench = BENCHES[operator]
    arguments = bench.inputs(Draw("meta"), 16, **bench.cases(SHAPE)[case])
    ((fn, named, options),) = record(VARIANTS[operator]["gluon"], *arguments)
    kernel = build(fn, named, options, 90)
    loop = main_loop(disassemble(kernel.asm["cubin"])[0], min)
    return {
        "kernel": fn.fn.__name__,
        "early": early(kernel.asm["ptx"]),
        "shared_bytes": kernel.metadata.shared,
        "loop": loop,
    }


def main(capabilities: list[int]) -> list[dict[str, Any]]:
    reports = []
    for operator in FORMS:
        bench = BENCHES[operator]
        for case, sizes in bench.cases(SHAPE).items():
            if operator == "int4_matmul" and case not in ("attention qkv", "lm_head"):
                continue  # the others are fused, or a draft's
            arguments = bench.inputs(Draw("meta"), 1, **sizes)
            ((fn, named, options),) = record(VARIANTS[operator]["triton"], *arguments)
            for capability in capabilities:
                if capability == 90 or operator in ("int4_add_norm", "int4_gate_up"):
                    reports.append(report(capability, f"{operator} {case}", fn, named, options))
    return reports


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    if sys.argv[1:] == ["gluon"]:
        print(json.dumps([gluon_report(*x) for x in GLUON.items()]))
    else:
        print(json.dumps(main([int(argument) for argument in sys.argv[1:]])))
