"""A float8 cache changes what the model reads, never what speculation may do to the text."""

import functools

import pytest
import torch

from kernels.qk_rope_store import as_cached
from tr.assemble import Assembly, assemble
from tr.config import Run
from tr.decode.generate import generate
from tr.decode.step import Model, init_state, prefill
from tr.drafts.base import Draft
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn import attention
from tr.overrides import load
from tr.tree import unchecked

FLOAT8 = torch.float8_e4m3fn
HEADS = ("draft.random.heads=2", "draft.random.kv_heads=1", "draft.random.d_head=64")
PROMPT = torch.randint(0, 640, (530,), generator=torch.Generator().manual_seed(7)).tolist()
TOKENS, CAPACITY = 33, 1024
SETTINGS = {"greedy": {}, "sampled": {"temperature": 0.7, "seed": 3}}
CASES = [("bf16", "tile"), ("int4_g128", "tile"), ("bf16", "reference")]


def settings(quant: str, variant: str, kv: str = "fp8", draft: str = "dflash2") -> Run:
    own = HEADS if draft == "dflash2" else ()
    fixed = ("run=x", "device=cpu", "model=smoke", "weights=random", *own)
    return load([*fixed, f"quant={quant}", f"kernel={variant}", f"kv={kv}", f"draft={draft}"])


@functools.cache
def made(quant: str, variant: str, kv: str = "fp8") -> Assembly:
    return assemble(settings(quant, variant, kv))


@functools.cache
def raw(quant: str, variant: str, setting: str) -> list[int]:
    heat = sampling(**SETTINGS[setting])
    model = made(quant, variant).model
    return generate(model, Raw(), PROMPT, heat, TOKENS, capacity=CAPACITY).tokens


def strategy(name: str, quant: str, variant: str, setting: str) -> Draft:
    if name in ("oracle", "perfect"):
        truth = torch.tensor(PROMPT + raw(quant, variant, setting))
        return Oracle(truth, 7, 1.0 if name == "perfect" else 0.7, seed=5)
    return made(quant, variant).draft(settings(quant, variant, draft=name))


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["mtp", "dflash2", "oracle", "perfect"])
@pytest.mark.parametrize("quant, variant", CASES)
def test_speculative_equals_raw(quant, variant, name, setting):
    model = made(quant, variant).model
    draft = strategy(name, quant, variant, setting)
    heat = sampling(**SETTINGS[setting])
    counts = generate(model, draft, PROMPT, heat, TOKENS, capacity=CAPACITY)
    assert counts.tokens == raw(quant, variant, setting)
    if name == "perfect":
        assert counts.accepted == [7] * 4


def caches(model: Model, parts: list[int]) -> list[attention.State]:
    """Attention caches after the prompt in chunks of `parts` tokens."""
    with torch.inference_mode():
        state = init_state(model, Raw(), CAPACITY)
        for chunk in torch.tensor(PROMPT).split(parts):
            state = prefill(model, Raw(), state, chunk, sampling())
    return [s for s in state.target.layers if isinstance(s, attention.State)]


def test_a_prompt_s_keys_and_values_are_those_of_the_wide_cache_rounded():
    """The one attention layer stands behind layers without a cache: its inputs are the same."""
    (narrow,) = caches(made("bf16", "tile").model, [530])
    (wide,) = caches(made("bf16", "tile", "bf16").model, [530])
    for a, b in ((narrow.k, wide.k), (narrow.v, wide.v)):
        assert a.dtype == FLOAT8 and b.dtype == torch.bfloat16 and b[:, :530].float().std() > 0
        assert torch.equal(a.view(torch.uint8), as_cached(b, FLOAT8).view(torch.uint8))


def test_chunks_of_a_prompt_store_what_one_call_stores():
    """Later chunks read rounded keys, so a single call must read its own rounded as well."""
    model = made("bf16", "tile").model
    (whole,), (parts,) = caches(model, [530]), caches(model, [128, 256, 146])
    for a, b in ((whole.k, parts.k), (whole.v, parts.v)):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_the_chain_s_cache_is_float8_too():
    draft = strategy("mtp", "bf16", "tile", "greedy")
    assert draft.init_state(100).cache.k.dtype == FLOAT8
