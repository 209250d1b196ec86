"""Compiles attention_prefill at the 27B's shapes for cards that are not here; JSON lines.

Run as a program: in a process under Triton's interpreter there is no compiler. Arguments are
compute capabilities.
"""

import json
import re
import sys
from collections import Counter
from unittest.mock import patch

import kernels.attention_prefill.triton as in_triton
import kernels.gpu
from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tests.kernels.compiled import build, record
from tests.kernels.compiled_cases import SHAPE
from tests.kernels.cross import disassemble
from tr.bench import Draw

LONGEST = 1000  # instructions of a loop over blocks; more is the program around it


def loops(code: str) -> list[Counter[str]]:
    """Opcodes of every loop that turns scores into weights between products."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    found = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif opcode := re.match(r"\s*/\*[0-9a-f]+\*/\s*(?:@!?U?P\w+ +)?([A-Z]\w*)", line):
            instructions.append(opcode[1])
            jump = re.search(r"BRA.*\((\.L_\w+)\)", line)
            if jump and jump[1] in labels:
                inside = Counter(instructions[labels[jump[1]] :])
                products = inside["HGMMA"] + inside["HMMA"]
                if inside["MUFU"] and products and inside.total() < LONGEST:
                    found.append(inside)
    return found


def main(capability: int) -> None:
    bench = BENCHES["attention_prefill"]
    sizes = list(bench.cases(SHAPE).values())[-1]
    arguments = bench.inputs(Draw("meta"), 1, **sizes)
    shared = 232448 if capability == 90 else 101376
    for variant in ("gluon", "triton")[capability != 90 :]:
        with patch.object(in_triton, "shared_memory", lambda device: shared):
            ((fn, named, options),) = record(VARIANTS["attention_prefill"][variant], *arguments)
        kernel = build(fn, named, options, capability)
        code, usage = disassemble(kernel.asm["cubin"])
        inside = loops(code)
        report = {
            "capability": capability,
            "variant": variant,
            "loops": len(inside),
            "spills_in_loops": sum(x["LDL"] + x["STL"] for x in inside),
            "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[-1]),
            "shared_bytes": kernel.metadata.shared,
            "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
            "mma": kernel.asm["ptx"].count("mma.sync"),
        }
        print(json.dumps(report))


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    for argument in sys.argv[1:]:
        main(int(argument))
