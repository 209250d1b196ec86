"""Random small models with every draft: states and edges that the embedded model reaches late."""

import dataclasses
import functools

import torch

from kernels.registry import select
from tests.model.small import CONFIG, perturb, random_mtp, random_params
from tr.decode.step import Model
from tr.drafts import dflash2_net
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import whole
from tr.drafts.mtp import Mtp

IDS = 90  # real tokens; 6 more rows are padding
DRAFT = dflash2_net.Config(
    d_model=128,
    d_ff=96,
    layers=2,
    heads=4,
    kv_heads=2,
    d_head=32,
    vocab=96,
    block=8,
    mask_token=89,
    taps=(0, 2),
    window=24,
    conv_width=2,
    conv_group=16,
    selector_rank=8,
    selector_top=6,
    eps=1e-6,
    rope_theta=1e4,
    max_positions=1024,
)


def random_draft(
    config: dflash2_net.Config = DRAFT, dtype: torch.dtype = torch.bfloat16
) -> dflash2_net.Params:
    """Random weights, the convolutions' second taps and dynamic parts included."""
    g = torch.Generator().manual_seed(2)
    return perturb(dflash2_net.init(config, g, dtype), g)


@functools.cache
def model(
    variant: str = "tile", positions: int = 1024, dtype: torch.dtype = torch.bfloat16
) -> Model:
    config = dataclasses.replace(CONFIG, max_positions=positions)
    return Model.build(random_params(dtype, config), select(variant), IDS)


def mtp_draft(m: Model, tokens: int = 7) -> Draft:
    head = whole(m.params.head, IDS)
    return Mtp(random_mtp(m.params.norm.dtype), m.params, m.ops, tokens, head)


def dflash2_draft(m: Model, config: dflash2_net.Config = DRAFT, tokens: int = 7) -> Draft:
    head, params = whole(m.params.head, IDS), random_draft(config, m.params.norm.dtype)
    return Dflash2(params, m.params, tokens, head, config.window)
