"""Compiles attention_decode's Gluon kernel at the 27B's shapes for Hopper; JSON lines.

Run as a program: in a process under Triton's interpreter there is no compiler.
"""

import json
import re

import torch

import kernels.gpu
from kernels.define import VARIANTS
from tests.kernels.compiled import build, early, record
from tests.kernels.compiled_cases import arguments
from tests.kernels.cross import disassemble, main_loop

FORMATS = {"float8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8}


def main() -> None:
    for form, rows in (("float8", 8), ("int8", 16), ("int4", 8)):
        cache = FORMATS[form]
        made = arguments("attention_decode", rows, cache=cache)
        ((fn, named, options),) = record(VARIANTS["attention_decode"]["gluon"], *made)
        kernel = build(fn, named, options, 90)
        code, usage = disassemble(kernel.asm["cubin"])
        inside = main_loop(code, min)
        report = {
            "form": form,
            "rows": rows,
            "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[-1]),
            "spills_in_loop": inside["LDL"] + inside["STL"],
            "shared_bytes": kernel.metadata.shared,
            "early": early(kernel.asm["ptx"]),
            "wgmma": inside["HGMMA"],
            "instructions": inside.total(),
        }
        print(json.dumps(report))


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    main()
