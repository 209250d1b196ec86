"""KVarN: tiles of 128 tokens in few bits, the first one and the newest in fp16 (kernels/kvarn.py).

Nothing counts tiles: a position says what is packed, what is seen, and where rows are. The ring
forgets rows that a later step overwrites, so what returns a conversation to an earlier position
holds it: `rows(p, p)`, cloned when the conversation stands at p.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float16, Float32, Int16, Int64
from torch import Tensor

from kernels.attention_prefill import BEFORE, BEHIND
from kernels.hadamard import rotated, unrotated
from kernels.kvarn import (
    LAG,
    RING,
    TILE,
    edge,
    held,
    keys,
    scale_rows,
    tile_bytes,
    values,
)
from kernels.registry import Ops
from tr.nn.rope import Rope
from tr.tree import tree

SPAN = 64  # packed tiles that a prompt's chunk has as numbers at a time


@tree
class Kvarn:
    sink: Float16[Tensor, "2 kv_heads 128 d_head"]  # keys, values
    ring: Float16[Tensor, "2 kv_heads 256 d_head"]
    k_codes: Int16[Tensor, "kv_heads tiles 128 words"]
    v_codes: Int16[Tensor, "kv_heads tiles lines 64"]
    k_scales: Float16[Tensor, "kv_heads tiles k_numbers"]
    v_scales: Float16[Tensor, "kv_heads tiles v_numbers"]
    means: Float32[Tensor, "2 kv_heads d_head"]

    @property
    def packed(self) -> tuple[Tensor, ...]:
        return self.k_codes, self.v_codes, self.k_scales, self.v_scales

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
        """A tile is packed ahead of the first row that sees it so, and out of rows that stay."""
        ops.kvarn_pack(pos, len(qkv), self.sink, self.ring, 0, *self.packed, self.means)
        return ops.kvarn_store(
            qkv, q_norm, k_norm, rope.cos, rope.sin, pos, self.sink, self.ring, eps
        )

    def attend(self, q: Tensor, gate: Tensor, pos: Tensor, ops: Ops) -> Tensor:
        return ops.kvarn_attention(q, gate, self.sink, self.ring, *self.packed, self.means, pos)

    def prefill(
        self,
        q: Float[Tensor, "tokens heads d_head"],
        gate: Float[Tensor, "tokens heads d_head"],
        k: Float[Tensor, "tokens kv_heads d_head"],
        v: Float[Tensor, "tokens kv_heads d_head"],
        pos: int,
        ops: Ops,
    ) -> Float[Tensor, "tokens inner"]:
        """Tokens at pos, pos + 1, ..., normed and rotated by rope: stored, and what they attend to.

        Each sees what a step would show it, so packed tiles of its own chunk too.
        """
        start, recent = self.extend(k, v, pos, ops)
        query = held(rotated(q))
        sums = torch.empty_like(q, dtype=torch.float32)
        mass = sums.new_empty(*q.shape[:2], 2)

        def take(kv: Tensor, at: int, side: int) -> None:
            k, v = kv
            first, last = side == BEHIND, False
            ops.attention_prefill(
                query, query, k, v, pos, at, sums, mass, first, last, side, TILE, LAG
            )

        behind = recent if edge(pos) else torch.cat([self.sink, recent], 2)
        take(behind, start if edge(pos) else 0, BEHIND)
        for first in range(0, edge(pos + len(q) - 1), SPAN):
            last = min(first + SPAN, edge(pos + len(q) - 1))
            take(self._numbers(first, last), first * TILE, BEFORE)
        y = unrotated(sums / mass[..., 1:]).to(gate.dtype)
        return y.flatten(1) * gate.flatten(1).sigmoid()

    def extend(
        self,
        k: Float[Tensor, "tokens kv_heads d_head"],
        v: Float[Tensor, "tokens kv_heads d_head"],
        pos: int,
        ops: Ops,
    ) -> tuple[int, Tensor]:
        """Store many rows; gives those that the chunk sees exactly, the sink's aside, and the
        position of the first, the start of a tile: [2, kv_heads, whole tiles, d].
        """
        x = held(rotated(torch.stack([k, v]).transpose(1, 2)))
        end = pos + len(k)
        if pos < TILE:
            self.sink[:, :, pos : min(end, TILE)] = x[:, :, : TILE - pos]
        start = max(edge(pos - 1), 1) * TILE
        recent = x.new_zeros(*x.shape[:2], max(0, -(-end // TILE) * TILE - start), x.shape[3])
        if end <= TILE:
            return start, recent
        own = max(pos, TILE)  # the first row here that is not the sink's
        earlier = torch.arange(start, own, device=x.device)
        recent[:, :, : own - start] = self.ring[:, :, earlier % RING]
        recent[:, :, own - start : end - start] = x[:, :, own - pos :]
        at = torch.tensor(pos, device=x.device)
        ops.kvarn_pack(at, len(k), self.sink, recent, start, *self.packed, self.means)
        own = max(own, (-(-end // TILE) - 2) * TILE)
        index = torch.arange(own, end, device=x.device)
        self.ring.index_copy_(2, index % RING, x[:, :, own - pos :])
        return start, recent

    def _numbers(self, first: int, last: int) -> Tensor:
        """Tiles first .. last - 1, of tile 0 the sink: fp16 [2, kv_heads, 128 tiles, d]."""
        k_codes, v_codes, k_scales, v_scales = (x[:, first:last] for x in self.packed)
        k = keys(k_codes, k_scales, self.means[0][:, None])
        v = values(v_codes, v_scales, self.means[1][:, None])
        out = held(torch.stack([k, v]))
        if first == 0:
            out[:, :, 0] = self.sink
        return out.flatten(2, 3)

    def read(self, upto: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """As the row at `upto` sees them."""
        first = max(edge(upto), 1)
        index = torch.arange(first * TILE, max(upto, first * TILE), device=self.ring.device)
        x = torch.cat([self._numbers(0, first), self.ring[:, :, index % RING]], 2)
        k, v = unrotated(x[:, :, :upto]).to(dtype)
        return k, v

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Whole tiles, and all of `sink` and `ring`: for a conversation that stands at `stop`."""
        tiles = slice(start // TILE, -(-stop // TILE))
        return *(x[:, tiles] for x in self.packed), self.sink, self.ring, self.means

    def put(self, start: int, rows: tuple[Tensor, ...]) -> None:
        first = start // TILE
        for held_here, x in zip(self.packed, rows[:4], strict=True):
            held_here[:, first : first + x.shape[1]] = x
        for held_here, x in zip((self.sink, self.ring, self.means), rows[4:], strict=True):
            held_here.copy_(x)


@dataclass(frozen=True)
class Format:
    value_bits: int = 2

    def make(self, kv_heads: int, capacity: int, d_head: int, like: Tensor) -> Kvarn:
        if capacity % TILE or d_head & (d_head - 1) or d_head < 8:
            raise ValueError(
                f"kv=kvarn needs whole tiles of {TILE} tokens and heads whose width is a power of"
                f" two from 8 on, got {capacity} and {d_head}; use kv=int8"
            )
        tiles, lines = capacity // TILE, d_head * self.value_bits // 8
        k_numbers, v_numbers = scale_rows(d_head)

        def zeros(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
            return like.new_zeros(shape, dtype=dtype)

        return Kvarn(
            sink=zeros(2, kv_heads, TILE, d_head),
            ring=zeros(2, kv_heads, RING, d_head),
            k_codes=zeros(kv_heads, tiles, TILE, d_head // 4, dtype=torch.int16),
            v_codes=zeros(kv_heads, tiles, lines, TILE // 2, dtype=torch.int16),
            k_scales=zeros(kv_heads, tiles, k_numbers),
            v_scales=zeros(kv_heads, tiles, v_numbers),
            means=zeros(2, kv_heads, d_head, dtype=torch.float32),
        )

    def rounded(self, x: Tensor) -> Tensor:
        raise ValueError(
            "kv=kvarn: what a row sees of another depends on both; a batch of texts needs kv=bf16"
        )

    def bytes_per_token(self, kv_heads: int, d_head: int) -> int:
        return kv_heads * tile_bytes(d_head, self.value_bits) // TILE

    def bytes_beside(self, kv_heads: int, d_head: int) -> int:
        """What a cache holds whatever its length: exact rows, means."""
        return kv_heads * d_head * 2 * (2 * (TILE + RING) + 4)
