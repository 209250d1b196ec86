"""The definition, a tile at a time, so that a tile's bytes do not depend on its neighbours."""

from torch import Tensor

from kernels.define import variant
from kernels.kvarn import TILE, first_seen, mean, pack_keys, pack_values, value_bits

MUTATES = ("k_codes", "v_codes", "k_scales", "v_scales", "means")


def fake(
    pos: Tensor,
    rows: int,
    sink: Tensor,
    source: Tensor,
    start: int,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
) -> None:
    return None


@variant("kvarn_pack", "reference", fake, MUTATES)
def kvarn_pack(
    pos: Tensor,
    rows: int,
    sink: Tensor,
    source: Tensor,
    start: int,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
) -> None:
    """sink [2, kv_heads, 128, d]; source [2, kv_heads, n, d], n and start multiples of 128, the
    row of position p at (p - start) % n.

    Overwritten: the tiles' places in codes and scales [kv_heads, tiles, ...], and means
    [2, kv_heads, d], keys' ahead of values'. Tiles past the cache's last one go nowhere.
    """
    for tile in first_seen(int(pos), rows):
        if tile >= k_codes.shape[1]:
            return
        at = (tile * TILE - start) % source.shape[2]
        k, v = source[:, :, at : at + TILE]
        means.copy_(mean(sink))
        k_codes[:, tile], k_scales[:, tile] = pack_keys(k, means[0])
        bits = value_bits(v_codes, v.shape[-1])
        v_codes[:, tile], v_scales[:, tile] = pack_values(v, means[1], bits)
