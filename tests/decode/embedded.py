"""The embedded model, its drafts by name, and eight texts that raw decoding wrote."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from yaml import safe_load

from experiments.measure import encode
from kernels.registry import select
from tests.decode.scripted import Scripted, by_position
from tr.assemble import EMBEDDED, load_dflash2, resident
from tr.checkpoint.load import load_target
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import Prompt
from tr.decode.generate import generate
from tr.decode.step import Model
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import whole
from tr.drafts.lookup import Lookup
from tr.drafts.mtp import Mtp
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model import mtp, text
from tr.model.sampling import Sampling, sampling
from tr.tree import unchecked

PROMPTS = Path(__file__).parents[2] / "configs" / "prompts"
TOKENS = 201  # the prefill's one and 200 that steps make
REFERENCE_TOKENS = 65
CAPACITY = 1024
DRAFTS = ("mtp", "dflash2", "lookup", "oracle", "scripted")
SETTINGS = {
    "greedy": {},
    "0.5": {"temperature": 0.5, "seed": 1},
    "0.8, cut": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "seed": 2**40 + 3},
    "1.2": {"temperature": 1.2, "seed": 2},
}


@dataclass(frozen=True)
class Case:
    """A prompt of a family and how its answer is drawn; its `copy` prompts pass 512 tokens."""

    family: str
    index: int
    setting: str

    def __str__(self) -> str:
        return f"{self.family} {self.index}, {self.setting}"

    @property
    def sampling(self) -> Sampling:
        return sampling(**SETTINGS[self.setting])

    @property
    def prompt(self) -> list[int]:
        listed = safe_load((PROMPTS / f"{self.family}.yaml").read_text(encoding="utf-8"))
        return encode(tokenizer(), Prompt(**listed["prompts"][self.index]))


CASES = [
    Case("essay", 0, "greedy"),
    Case("essay", 1, "0.5"),
    Case("code", 0, "0.8, cut"),
    Case("code", 1, "1.2"),
    Case("math", 0, "0.5"),
    Case("math", 1, "0.8, cut"),
    Case("copy", 0, "1.2"),
    Case("copy", 1, "greedy"),
]


@functools.cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


class Weights(NamedTuple):
    target: text.Params
    mtp: mtp.Params | None


@functools.cache
def weights(variant: str) -> Weights:
    loaded = load_target(EMBEDDED)
    keep = variant == "reference"
    return Weights(*(w if keep else resident(w) for w in (loaded.params, loaded.mtp)))


@functools.cache
def model(variant: str = "tile") -> Model:
    return Model.build(weights(variant).target, select(variant), tokenizer().count)


def raw(case: Case, variant: str = "tile") -> list[int]:
    """The answer by raw decoding, which no end token stops; REFERENCE_TOKENS by the reference."""
    return _raw(case, variant)


@functools.cache
def _raw(case: Case, variant: str) -> list[int]:
    tokens = REFERENCE_TOKENS if variant == "reference" else TOKENS
    with unchecked():
        counts = generate(
            model(variant), Raw(), case.prompt, case.sampling, tokens, capacity=CAPACITY
        )
    assert len(counts.tokens) == tokens
    return counts.tokens


def draft(name: str, case: Case, variant: str = "tile") -> Draft:
    """A strategy by name; oracle and scripted know the case's text."""
    held, ops = weights(variant), select(variant)
    head = whole(held.target.head, tokenizer().count)
    if name == "raw":
        return Raw()
    if name == "mtp":
        assert held.mtp is not None
        return Mtp(held.mtp, held.target, ops, 3, head)
    if name == "dflash2":
        params = load_dflash2(EMBEDDED / "draft", held.target)
        return Dflash2(params, held.target, 7, head, params.config.window)
    if name == "lookup":
        return Lookup(7, 2, 4)
    truth = torch.tensor(case.prompt + raw(case, variant))
    if name == "oracle":
        return Oracle(truth, 7, 0.8, seed=5)
    if name == "perfect":
        return Oracle(truth, 7, 1.0)
    assert name == "scripted"
    return Scripted(truth, by_position(0))
