"""Compiles kernels for cards that are not here and prints what came out, as JSON.

Run as a program: in a process under Triton's interpreter there is no compiler. Arguments such as
90:4: a compute capability and the row tiles of a program.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.int4_matmul import triton as int4

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SIGNATURE = {
    "x_ptr": "*bf16",
    "tiles_ptr": "*i16",
    "parameters_ptr": "*bf16",
    "y_ptr": "*fp32",
    "rows": "i32",
    "n": "i32",
    "groups": "i32",
}


def compiled(capability: int, plan: int4.Plan) -> Any:
    constants = {
        "ROW_TILES": plan.row_tiles,
        "SPLITS": plan.splits,
        "STAGES": plan.stages,
        "PACKED": True,
    }
    aligned = [0, 1, 2, 3, 5]  # the pointers and n
    source = ASTSource(
        int4._int4_matmul_kernel,
        {**SIGNATURE, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": plan.warps})


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


def main_loop(code: str) -> Counter[str]:
    """Opcodes of the longest loop that holds matrix instructions."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    loops: list[list[str]] = []
    for line in code.splitlines():
        if found := re.match(r"\s*(\.L_\w+):", line):
            labels[found[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s*(?:@!?U?P\w+ +)?([A-Z][\w.]*)", line):
            instructions.append(found[1].split(".")[0])
            jump = re.search(r"BRA.*\((\.L_\w+)\)", line)
            if jump and jump[1] in labels:
                loops.append(instructions[labels[jump[1]] :])
    matrix = [loop for loop in loops if {"HMMA", "HGMMA"} & set(loop)]
    return Counter(max(matrix, key=len))


def report(capability: int, plan: int4.Plan) -> dict[str, Any]:
    kernel = compiled(capability, plan)
    code, usage = disassemble(kernel.asm["cubin"])
    loop = main_loop(code)
    weights = plan.row_tiles * 64 * 128 / (plan.warps * 32)
    return {
        "capability": capability,
        "row_tiles": plan.row_tiles,
        "warps": plan.warps,
        "stages": plan.stages,
        "wgmma": "wgmma.mma_async" in kernel.asm["ptx"],
        "mma": "mma.sync" in kernel.asm["ptx"],
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "registers": int(re.findall(r"REG:(\d+)", usage)[-1]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[-1]),
        "shared_bytes": kernel.metadata.shared,
        "async_copies": loop["LDGSTS"],
        "instructions_per_weight": round(loop.total() / weights, 2),
        "loop": dict(loop.most_common(8)),
    }


if __name__ == "__main__":
    asked = [map(int, argument.split(":")) for argument in sys.argv[1:]]
    print(json.dumps([report(capability, int4.Plan(tall, 4)) for capability, tall in asked]))
