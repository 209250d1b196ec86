"""Keys and values as integer codes, with an fp32 scale for each token and head (kernels/codes.py).

Codes of 8 bits, or of 4 and then of rotated rows: so are the queries that `store` gives.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int8, Int64, UInt8
from torch import Tensor

from kernels.codes import decode, encode
from kernels.registry import Ops
from tr.nn.rope import Rope
from tr.tree import tree


@tree
class Coded:
    k: Int8[Tensor, "kv_heads capacity d_head"] | UInt8[Tensor, "kv_heads capacity half"]
    v: Int8[Tensor, "kv_heads capacity d_head"] | UInt8[Tensor, "kv_heads capacity half"]
    k_scale: Float32[Tensor, "kv_heads capacity"]
    v_scale: Float32[Tensor, "kv_heads capacity"]

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.k, self.v, self.k_scale, self.v_scale

    def store(
        self,
        qkv: Float[Tensor, "rows width"],
        q_norm: Float[Tensor, " d_head"],
        k_norm: Float[Tensor, " d_head"],
        rope: Rope,
        pos: Int64[Tensor, ""],
        eps: float,
        ops: Ops,
    ) -> tuple[Tensor, Tensor]:
        k, v, *scales = self.stored
        return ops.qk_rope_store(qkv, q_norm, k_norm, rope.cos, rope.sin, pos, k, v, eps, *scales)

    def attend(self, q: Tensor, gate: Tensor, pos: Tensor, ops: Ops) -> Tensor:
        return ops.attention_decode(q, gate, self.k, self.v, pos, self.k_scale, self.v_scale)

    def extend(self, k: Tensor, v: Tensor, pos: int) -> None:
        place = slice(pos, pos + len(k))
        for x, codes, scale in ((k, self.k, self.k_scale), (v, self.v, self.v_scale)):
            codes[:, place], scale[:, place] = encode(x.transpose(0, 1), codes.dtype)

    def read(self, upto: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        k, v, k_scale, v_scale = self.rows(0, upto)
        return decode(k, k_scale).to(dtype), decode(v, v_scale).to(dtype)

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return tuple(x[:, start:stop] for x in self.stored)

    def put(self, start: int, rows: tuple[Tensor, ...]) -> None:
        for held, x in zip(self.stored, rows, strict=True):
            held[:, start : start + x.shape[1]] = x


@dataclass(frozen=True)
class Format:
    """`dtype` of the stored codes: int8, or uint8 with two of 4 bits in each."""

    dtype: torch.dtype

    @property
    def per_byte(self) -> int:
        return 2 if self.dtype == torch.uint8 else 1

    def make(self, kv_heads: int, capacity: int, d_head: int, like: Tensor) -> Coded:
        if self.per_byte == 2 and (d_head < 16 or d_head & (d_head - 1)):
            raise ValueError(
                "kv=int4 needs heads whose width is a power of two from 16 on, got"
                f" {d_head}; use kv=int8"
            )
        shape = (kv_heads, capacity, d_head // self.per_byte)
        k, v = (like.new_zeros(shape, dtype=self.dtype) for _ in range(2))
        scales = (like.new_zeros(shape[:2], dtype=torch.float32) for _ in range(2))
        return Coded(k=k, v=v, k_scale=next(scales), v_scale=next(scales))

    def rounded(self, x: Tensor) -> Tensor:
        return decode(*encode(x, self.dtype)).to(x.dtype)

    def bytes_per_token(self, kv_heads: int, d_head: int) -> int:
        return 2 * kv_heads * (d_head // self.per_byte + 4)
