"""The check of a device against the reference: what it accepts as a tie, and what it finds."""

from functools import partial

import pytest
import torch

from experiments import device_check
from kernels.registry import Ops
from tests.experiments.runs import run
from tr.assemble import EMBEDDED
from tr.checkpoint.load import load_target

SMALL = ("device=cpu", "params.prompts=1", "max_new_tokens=12")


@pytest.fixture
def check(tmp_path):
    return partial(run, tmp_path, "+exp=device_check", *SMALL)


def test_the_tile_operators_decode_what_the_reference_decodes(check):
    code, record = check("kernel=tile")
    assert code == 0 and record["verdict"]["exact"]
    families = record["figures"]["families"]
    assert sum(f["tokens_equal"] for f in families.values()) == record["verdict"]["compared_tokens"]
    assert record["verdict"]["compared_tokens"] >= 24


def test_another_text_is_found(check, monkeypatch):
    """A head that prefers token 7 on one side alone."""
    plain = device_check.assemble

    def changed(config):
        made = plain(config)
        if config.kernel.variant == "reference":
            return made
        sample = made.model.ops.sample

        def other(logits, *rest):
            return torch.full_like(sample(logits, *rest), 7)

        fields = {**made.model.ops.__dict__, "sample": other}
        object.__setattr__(made.model, "ops", Ops(**fields))
        return made

    monkeypatch.setattr(device_check, "assemble", changed)
    code, record = check("kernel=tile")
    first = record["verdict"]["first_divergence"]
    assert code == 1 and first["device"] == 7 and first["position"] == 0
    assert first["logit_gap"] > first["tolerance"] > 0


def test_the_gap_is_the_references_own():
    params = load_target(EMBEDDED, "cpu").params
    best = device_check.preference(params, [100, 101], 5, 6)
    back = device_check.preference(params, [100, 101], 6, 5)
    assert best["logit_gap"] == -back["logit_gap"] != 0
    assert best["tolerance"] == back["tolerance"] > 0
