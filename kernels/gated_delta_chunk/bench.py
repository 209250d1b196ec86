"""One linear-attention layer over chunks of a prompt; gates in the published distribution."""

from typing import Any

import torch

from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"k_heads": c.k_heads, "v_heads": c.v_heads, "d_k": c.d_k, "d_v": c.d_v}
    sizes["width"] = c.conv_width
    return {f"{tokens} tokens": {"tokens": tokens, **sizes} for tokens in (2048, 4096)}


def inputs(
    draw: Draw, rows: int, tokens: int, k_heads: int, v_heads: int, d_k: int, d_v: int, width: int
) -> list[Any]:
    """`tokens` in place of `rows`. A in 0 .. 16, steps dt around 0.01, a state that some text left.

    dt = softplus(dt_bias) where a = 0.
    """
    channels, inner = 2 * k_heads * d_k + v_heads * d_v, v_heads * d_v
    fp32 = torch.float32
    rate = 16 * draw(v_heads, dtype=fp32).sigmoid_()
    dt = (draw(v_heads, dtype=fp32) - 4.6).exp_()
    return [
        draw(tokens, channels + inner),
        draw(tokens, 2 * v_heads),
        draw(channels, width).mul_(width**-0.5),
        rate.log_().to(draw.dtype),
        (dt + (-(-dt).expm1()).log_()).to(draw.dtype),
        1 + 0.1 * draw(d_v),
        0.1 * draw(v_heads, d_k, d_v, dtype=fp32),
        draw(width - 1, channels),
        EPS,
    ]


def nbytes(*arguments: Any) -> int:
    """Projections and weights read, state and tail read and written, the tokens' rows written."""
    qkvz, *once, h, tail, _ = arguments
    out = qkvz.shape[0] * h.shape[0] * h.shape[2] * qkvz.element_size()
    return qkvz.nbytes + sum(t.nbytes for t in once) + 2 * (h.nbytes + tail.nbytes) + out


BENCH = (Bench("gated_delta_chunk", cases, inputs, nbytes),)
