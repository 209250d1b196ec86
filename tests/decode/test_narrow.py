"""A narrow cache changes what the model reads, never what speculation may do to the text."""

import functools

import pytest
import torch

from tr.assemble import Assembly, assemble
from tr.config import Run
from tr.decode.generate import generate
from tr.decode.step import Model, init_state, prefill
from tr.drafts.base import Draft
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn import attention
from tr.nn.formats.kv.cache import rounded
from tr.overrides import load
from tr.tree import unchecked

HEADS = ("draft.random.heads=2", "draft.random.kv_heads=1", "draft.random.d_head=64")
PROMPT = torch.randint(0, 640, (530,), generator=torch.Generator().manual_seed(7)).tolist()
TOKENS, CAPACITY = 33, 1024
SETTINGS = {"greedy": {}, "sampled": {"temperature": 0.7, "seed": 3}}
CASES = [
    ("fp8", "bf16", "tile"),
    ("fp8", "int4_g128", "tile"),
    ("fp8", "bf16", "reference"),
    ("int8", "bf16", "tile"),
    ("int4", "bf16", "reference"),
]


def settings(kv: str, quant: str, variant: str, draft: str = "dflash2") -> Run:
    own = HEADS if draft == "dflash2" else ()
    fixed = ("run=x", "device=cpu", "model=smoke", "weights=random", *own)
    return load([*fixed, f"quant={quant}", f"kernel={variant}", f"kv={kv}", f"draft={draft}"])


@functools.cache
def made(kv: str, quant: str, variant: str) -> Assembly:
    return assemble(settings(kv, quant, variant))


@functools.cache
def raw(kv: str, quant: str, variant: str, setting: str) -> list[int]:
    heat = sampling(**SETTINGS[setting])
    model = made(kv, quant, variant).model
    return generate(model, Raw(), PROMPT, heat, TOKENS, capacity=CAPACITY).tokens


def strategy(name: str, kv: str, quant: str, variant: str, setting: str) -> Draft:
    if name in ("oracle", "perfect"):
        truth = torch.tensor(PROMPT + raw(kv, quant, variant, setting))
        return Oracle(truth, 7, 1.0 if name == "perfect" else 0.7, seed=5)
    return made(kv, quant, variant).draft(settings(kv, quant, variant, draft=name))


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


RUNS = [
    (*case, name, setting)
    for case in CASES
    for name in ("mtp", "dflash2", "oracle", "perfect")
    for setting in SETTINGS
    if case[0] == "fp8" or (setting == "sampled" and name != "oracle")
]


@pytest.mark.parametrize("kv, quant, variant, name, setting", RUNS)
def test_speculative_equals_raw(kv, quant, variant, name, setting):
    model = made(kv, quant, variant).model
    draft = strategy(name, kv, quant, variant, setting)
    heat = sampling(**SETTINGS[setting])
    counts = generate(model, draft, PROMPT, heat, TOKENS, capacity=CAPACITY)
    assert counts.tokens == raw(kv, quant, variant, setting)
    if name == "perfect":
        assert counts.accepted == [7] * 4


def caches(model: Model, parts: list[int]) -> list[attention.State]:
    """Attention caches after the prompt in chunks of `parts` tokens."""
    with torch.inference_mode():
        state = init_state(model, Raw(), CAPACITY)
        for chunk in torch.tensor(PROMPT).split(parts):
            state = prefill(model, Raw(), state, chunk, sampling())
    return [s for s in state.target.layers if isinstance(s, attention.State)]


@pytest.mark.parametrize("kv", ["fp8", "int8", "int4"])
def test_a_prompt_s_keys_and_values_are_those_of_the_wide_cache_rounded(kv):
    """The one attention layer stands behind layers without a cache: its inputs are the same."""
    (narrow,) = caches(made(kv, "bf16", "tile").model, [530])
    (wide,) = caches(made("bf16", "bf16", "tile").model, [530])
    exact = wide.read(530, torch.bfloat16)
    for a, b in zip(narrow.read(530, torch.bfloat16), exact, strict=True):
        assert b.float().std() > 0 and torch.equal(a, rounded(kv, b))


@pytest.mark.parametrize("kv", ["fp8", "int8", "int4"])
def test_chunks_of_a_prompt_store_what_one_call_stores(kv):
    """Later chunks read rounded keys, so a single call must read its own rounded as well."""
    model = made(kv, "bf16", "tile").model
    (whole,), (parts,) = caches(model, [530]), caches(model, [128, 256, 146])
    for a, b in zip(whole.rows(0, 530), parts.rows(0, 530), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_the_chain_s_cache_is_float8_too():
    draft = strategy("mtp", "fp8", "bf16", "tile", "greedy")
    assert draft.init_state(100).cache.k.dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("kv, own", [("int8", "same"), ("int4", "same"), ("int4", "bf16")])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_embedded_model_too(kv, own, setting):
    """Drafts of a trained model are accepted and rejected; the head's cache may differ."""
    prompt = PROMPT[:90]
    raw, texts = sampling(**SETTINGS[setting]), []
    for draft in ("mtp", "dflash2")[: 2 if own == "same" else 1]:
        extra = [f"draft.kv={own}"] if draft == "mtp" else []
        config = load(["run=x", "device=cpu", f"kv={kv}", f"draft={draft}", *extra])
        model = embedded(kv).model
        counts = generate(model, embedded(kv).draft(config), prompt, raw, 24, capacity=512)
        texts.append(counts.tokens)
        assert 0 < sum(counts.accepted) < sum(counts.proposed)
    texts.append(generate(model, Raw(), prompt, raw, 24, capacity=512).tokens)
    assert all(t == texts[-1] for t in texts)


@functools.cache
def embedded(kv: str) -> Assembly:
    return assemble(load(["run=x", "device=cpu", f"kv={kv}", "draft=dflash2"]))
