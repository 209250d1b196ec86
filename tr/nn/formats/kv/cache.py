"""What an attention layer caches: keys, normed and rotated by rope, and values, in some format.

A cache is a pytree of zero-filled tensors that is donated: its methods write in place. Rows at and
past the model's position are garbage, but finite.

store   a few rows at pos, pos + 1, ...: norm, rope, rounding, writing; returns queries and gate,
        the queries in the basis that `attend` takes
attend  those queries [rows, heads, d] over rows 0 .. pos + rows - 1, gated -> [rows, heads d]
extend  many rows, k and v [tokens, kv_heads, d] normed and rotated, written at pos ..
read    rows 0 .. upto - 1 as numbers of a dtype, [kv_heads, upto, d] each: what a format means
rows    the stored tensors of a range of positions, views with positions on axis 1 ...
put     ... and back, bit for bit
"""

import torch
from torch import Tensor

from kernels.registry import Ops
from tr.nn.formats.kv.coded import Coded
from tr.nn.formats.kv.coded import Format as CodedFormat
from tr.nn.formats.kv.kvarn import Format as KvarnFormat
from tr.nn.formats.kv.kvarn import Kvarn
from tr.nn.formats.kv.plain import Format as PlainFormat
from tr.nn.formats.kv.plain import Plain

Cache = Plain | Coded | Kvarn
Format = PlainFormat | CodedFormat | KvarnFormat

#: by the names of the config group `kv`
FORMATS: dict[str, Format] = {
    "bf16": PlainFormat(),  # as the model computes
    "fp8": PlainFormat(torch.float8_e4m3fn),
    "int8": CodedFormat(torch.int8),
    "int4": CodedFormat(torch.uint8),
    "kvarn": KvarnFormat(2),
    "kvarn_v4": KvarnFormat(4),
}


def make(name: str, kv_heads: int, capacity: int, d_head: int, like: Tensor) -> Cache:
    """An empty cache of format `name` on the device of `like`, for a model of its dtype."""
    return FORMATS[name].make(kv_heads, capacity, d_head, like)


def extend(cache: Cache, k: Tensor, v: Tensor, pos: int, ops: Ops) -> None:
    """Many rows, k and v [tokens, kv_heads, d] normed and rotated, written at pos ..; in place."""
    if isinstance(cache, Kvarn):
        cache.extend(k, v, pos, ops)
    else:
        cache.extend(k, v, pos)


def rounded(name: str, x: Tensor) -> Tensor:
    """x [..., d], keys or values, as a cache of format `name` would give them back."""
    return FORMATS[name].rounded(x)


def bytes_per_token(name: str, kv_heads: int, d_head: int) -> int:
    """Of one layer's keys and values with all that their format stores beside them."""
    return FORMATS[name].bytes_per_token(kv_heads, d_head)


def bytes_beside(name: str, kv_heads: int, d_head: int) -> int:
    """Of what one layer's cache holds whatever its length."""
    form = FORMATS[name]
    return form.bytes_beside(kv_heads, d_head) if isinstance(form, KvarnFormat) else 0
