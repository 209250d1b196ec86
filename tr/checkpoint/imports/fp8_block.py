"""FP8 by blocks, as the publisher and DeepSeek write it: weight float8, weight_scale_inv by blocks.

Despite its name the scale multiplies: weight = q * scale_inv in fp32, rounded to the model's dtype.
Scales are fp32 or bf16, or powers of two (ue8m0): float8_e8m0, or their exponents + 127 as bytes.
"""

from collections.abc import Mapping

from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.float_quantized import spread
from tr.checkpoint.imports.stored import Format, Opened, Stored, first, wrong

SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight" in parts and "weight_scale_inv" in parts


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    rows, columns = stored.declared.block or (128, 128)
    grid = (-(-n // rows), -(-k // columns))
    complaint = first(
        wrong(stored, "weight", stored.shape, ("F8_E4M3",)),
        wrong(stored, "weight_scale_inv", grid, SCALES),
    )
    hint = f"; config.json declares weight_block_size [{rows}, {columns}]"
    return complaint + hint if complaint and "expected shape" in complaint else complaint


def _open(stored: Stored) -> Opened:
    block = stored.declared.block or (128, 128)
    scale = stored.numbers("weight_scale_inv")
    is_exponent = stored.entry("weight_scale_inv").dtype == "U8"
    scale = (scale.float() - 127).exp2() if is_exponent else scale.float()

    def weight(start: int, stop: int) -> Tensor:
        q = stored.read("weight", start, stop).float()
        return (q * spread(scale, block, start, stop, q.shape[1])).to(stored.dtype)

    return Opened(weight)


FORMAT = Format("fp8 blocks", ("weight", "weight_scale_inv"), _takes, _complaint, _open)
