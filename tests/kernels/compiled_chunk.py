"""Compile the many-token mixer for the capabilities given and print each kernel's resources.

Run as a program, outside the interpreter. One line of JSON a kernel: for the first capability all
of them, for the others those that multiply.
"""

import json
import re
import sys

import torch

import kernels.gpu
from kernels.define import Target
from kernels.gated_delta_chunk.triton_launch import Plan, launch
from tests.kernels.compiled import build, record, resources
from tests.kernels.compiled_cases import arguments

PRODUCTS = ("_systems", "_pass")


def main(capabilities: list[int]) -> None:
    made = arguments("gated_delta_chunk", 1)
    for capability in capabilities:
        plan = Plan.of(Target("cuda", divmod(capability, 10)), torch.bfloat16)
        for fn, named, options in record(launch, *made, plan):
            if capability != capabilities[0] and fn.__name__ not in PRODUCTS:
                continue
            kernel = build(fn, named, options, capability)
            figures = {
                "capability": capability,
                "kernel": fn.__name__,
                "from_registers": len(
                    re.findall(r"wgmma\.mma_async[^{]*\{[^}]*\}, *\{", kernel.asm["ptx"])
                ),
                **resources(kernel),
            }
            print(json.dumps(figures))


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    main([int(argument) for argument in sys.argv[1:]])
