"""Keys and values as numbers: in the model's own dtype, or float8 e4m3 at scale 1."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.qk_rope_store import as_cached
from kernels.registry import Ops
from tr.nn.rope import Rope
from tr.tree import tree


@tree
class Plain:
    k: Float[Tensor, "kv_heads capacity d_head"]
    v: Float[Tensor, "kv_heads capacity d_head"]

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
        # no scales, said outright: a compiler looks an operator's written arguments up by place
        caches = self.k, self.v
        return ops.qk_rope_store(
            qkv, q_norm, k_norm, rope.cos, rope.sin, pos, *caches, eps, None, None
        )

    def attend(self, q: Tensor, gate: Tensor, pos: Tensor, ops: Ops) -> Tensor:
        return ops.attention_decode(q, gate, self.k, self.v, pos)

    def extend(self, k: Tensor, v: Tensor, pos: int) -> None:
        for cache, x in ((self.k, k), (self.v, v)):
            cache[:, pos : pos + len(x)] = as_cached(x.transpose(0, 1), cache.dtype)

    def read(self, upto: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.k[:, :upto].to(dtype), self.v[:, :upto].to(dtype)

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return self.k[:, start:stop], self.v[:, start:stop]

    def put(self, start: int, rows: tuple[Tensor, ...]) -> None:
        for cache, x in zip((self.k, self.v), rows, strict=True):
            cache[:, start : start + x.shape[1]] = x


@dataclass(frozen=True)
class Format:
    """`dtype` None: the model's own, of 16 bits where bytes are counted."""

    dtype: torch.dtype | None = None

    def make(self, kv_heads: int, capacity: int, d_head: int, like: Tensor) -> Plain:
        shape, dtype = (kv_heads, capacity, d_head), self.dtype or like.dtype
        return Plain(k=like.new_zeros(shape, dtype=dtype), v=like.new_zeros(shape, dtype=dtype))

    def rounded(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else as_cached(x, self.dtype).to(x.dtype)

    def bytes_per_token(self, kv_heads: int, d_head: int) -> int:
        return 2 * kv_heads * d_head * (self.dtype or torch.bfloat16).itemsize
