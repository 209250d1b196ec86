"""Every format that matrices are read from; a new one is a file beside this and a line here."""

from collections.abc import Mapping

from tr.checkpoint.files import Entry
from tr.checkpoint.imports import (
    awq,
    float_quantized,
    fp8_block,
    gptq,
    nvfp4,
    pack_quantized,
    plain,
    table4,
    tokenrush,
)
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.stored import Format

FORMATS = (
    plain.FORMAT,
    pack_quantized.FORMAT,
    nvfp4.PACKED,
    nvfp4.MODELOPT,
    fp8_block.FORMAT,
    float_quantized.FORMAT,
    gptq.FORMAT,
    awq.FORMAT,
    tokenrush.FORMAT,
    table4.FORMAT,
)
#: for activations and caches; weights alone are imported
UNUSED = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "activation_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
)


def recognise(parts: Mapping[str, Entry], declared: Declared) -> Format | None:
    """The format of these file tensors, by what follows the matrix's name; None: no known one."""
    return next((f for f in FORMATS if f.takes(parts, declared)), None)
