"""Compiles what reads and writes coded caches for cards that are not here; prints JSON.

The splits and stages are those of a card with as little shared memory.
"""

import json

import torch

import kernels.attention_decode.triton as attention
import kernels.gpu
from kernels.define import VARIANTS
from tests.kernels.compiled import build, record, resources
from tests.kernels.compiled_cases import arguments
from tests.kernels.cross import disassemble, main_loop

CASES = (
    (86, "attention_decode", torch.int8),
    (86, "attention_decode", torch.uint8),
    (86, "qk_rope_store", torch.int8),
    (86, "qk_rope_store", torch.uint8),
    (120, "attention_decode", torch.uint8),
)


def main() -> None:
    for capability, operator, cache in CASES:
        attention.H200 = (82, 101376, divmod(capability, 10))
        made = arguments(operator, 1, cache=cache)
        ((fn, named, options),) = record(VARIANTS[operator]["triton"], *made)
        kernel = build(fn, named, options, capability)
        line = {"capability": capability, "cache": f"{cache}", "kernel": fn.__name__}
        if operator == "attention_decode":
            loop = main_loop(disassemble(kernel.asm["cubin"])[0]).total()
            codes = 2 * named["BLOCK"] * named["D"]  # keys and values of a round
            each = loop * 32 * options["num_warps"] / codes
            line["instructions_per_code"] = round(each, 2)
        print(json.dumps(line | resources(kernel)))


if __name__ == "__main__":
    kernels.gpu.INTERPRETED = True  # `check` accepts what is not on a GPU
    main()
