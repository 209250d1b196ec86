"""Arguments of the 27B's shapes on the meta device, for compiling without a GPU."""

from typing import Any

import torch
from torch import Tensor

from kernels import registry  # noqa: F401  (registers every variant)

BF16, FP32, U8 = torch.bfloat16, torch.float32, torch.uint8


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def delta(rows: int) -> list[Any]:
    v_heads, k_heads, d = 48, 16, 128
    channels = (2 * k_heads + v_heads) * d
    return [
        meta(rows, channels + v_heads * d),
        meta(rows, 2 * v_heads),
        meta(channels, 4),
        meta(v_heads),
        meta(v_heads),
        meta(d),
        meta(v_heads, d, d, dtype=FP32),
        meta(3, channels),
        meta(16, channels),
        meta(16, k_heads, d, dtype=FP32),
        meta(16, v_heads, d, dtype=FP32),
        meta(16, v_heads, dtype=FP32),
        meta(dtype=torch.int64),
        1e-6,
    ]


def attention(rows: int, cache: torch.dtype = BF16) -> list[Any]:
    heads, kv_heads, d = 24, 4, 256
    caches = [meta(kv_heads, 262144, d, dtype=cache) for _ in range(2)]
    return [meta(rows, heads, d), meta(rows, heads * d), *caches, meta(dtype=torch.int64)]


CASES = [("gated_delta_step", "", delta(8))]
CASES += [
    ("attention_decode", f"{rows} rows {cache}", attention(rows, cache))
    for cache in (BF16, torch.float8_e4m3fn)
    for rows in (1, 16)
]


def rope(rows: int, cache: torch.dtype = BF16) -> list[Any]:
    heads, kv_heads, d, half = 24, 4, 256, 32
    caches = [meta(kv_heads, 262144, d, dtype=cache) for _ in range(2)]
    tables = [meta(262144, half) for _ in range(2)]
    qkv = meta(rows, (2 * heads + 2 * kv_heads) * d)
    return [qkv, meta(d), meta(d), *tables, meta(dtype=torch.int64), *caches, 1e-6]


def sample(rows: int) -> list[Any]:
    scalars = [meta(dtype=dtype) for dtype in (torch.int64, FP32, torch.int64, FP32, FP32)]
    return [meta(rows, 248320), *scalars, meta(2, dtype=torch.int64), 248077]


CASES += [
    ("rms_norm", "", [meta(8, 5120), meta(5120), 1e-6]),
    ("rms_norm_plain", "", [meta(8 * 32, 128), meta(128), 1e-6]),
    ("add_rms_norm", "", [meta(8, 5120), meta(8, 5120), meta(5120), 1e-6]),
    ("add_rms_norm", "parts", [meta(8, 5120), meta(6, 8, 5120, dtype=FP32), meta(5120), 1e-6]),
    ("silu_mul", "", [meta(8, 2 * 17408)]),
    ("qk_rope_store", "bf16", rope(8)),
    ("qk_rope_store", "float8", rope(8, torch.float8_e4m3fn)),
    ("sample", "", sample(8)),
]

BY_ROWS = {
    "gated_delta_step": delta,
    "attention_decode": attention,
    "qk_rope_store": rope,
    "sample": sample,
    "add_rms_norm": lambda rows: [meta(rows, 5120), meta(rows, 5120), meta(5120), 1e-6],
    "silu_mul": lambda rows: [meta(rows, 2 * 17408)],
}
