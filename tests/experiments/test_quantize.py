"""Checkpoints made by the experiment, and candidates on the yardstick, on the embedded model."""

import json

import pytest

from experiments import calibration, quality
from tests.experiments.runs import record_of
from tr.assemble import EMBEDDED, assemble
from tr.checkpoint.tokenizer import load_tokenizer
from tr.nn.formats.int4 import Int4
from tr.overrides import load
from tr.quant.recipe import METHODS
from tr.quant.sequential import Stream

SMALL = ("device=cpu", "params.written=2", "params.library=1", "params.tokens=64", "threads=1")
MADE = ("+exp=quantize", "quant.method=gptaq", "quant.search=none", "quant.draft=rtn", *SMALL)


def test_a_killed_run_goes_on_and_its_folder_decodes(tmp_path, monkeypatch):
    done = Stream.quantise

    def killed(self, name, *rest, **named):
        if name == "layers[3]":
            raise KeyboardInterrupt
        return done(self, name, *rest, **named)

    args = (*MADE, f"params.output={tmp_path / 'made'}")
    monkeypatch.setattr(Stream, "quantise", killed)
    with pytest.raises(KeyboardInterrupt):
        record_of(tmp_path, *args)
    assert not (tmp_path / "made").exists()
    monkeypatch.undo()
    figures = record_of(tmp_path / "again", *args)["figures"]
    assert figures["reused_parts"] == 3 and len(figures["part_s"]) == 10
    assert figures["bits_per_weight"] == 4.25
    assert not (tmp_path / ".made.parts").exists()
    note = json.loads((tmp_path / "made" / "tokenrush.json").read_text())
    assert note["method"] == "gptaq" and note["calibration"]["tokens"] == 192
    assert note["calibration"]["sha256"] == figures["calibration"]["sha256"]
    where = f"weights.path={tmp_path / 'made'}"
    config = load(["run=x", "device=cpu", "draft=dflash2", "weights=checkpoint", where])
    assembled = assemble(config)
    assert isinstance(assembled.model.params.head, Int4)
    assert isinstance(assembled.draft(config).params.fc, Int4)  # type: ignore[attr-defined]


def test_refused(tmp_path):
    output = f"params.output={tmp_path / 'made'}"
    with pytest.raises(ValueError, match="give params.output=FOLDER"):
        record_of(tmp_path, *MADE)
    with pytest.raises(ValueError, match="quant=bf16 has no codes"):
        record_of(tmp_path, "+exp=quantize", "quant=bf16", output)
    (tmp_path / "made").mkdir()
    with pytest.raises(FileExistsError, match="choose another params.output"):
        record_of(tmp_path, *MADE, output)
    with pytest.raises(ValueError, match="gptq makes a checkpoint: run \\+exp=quantize"):
        assemble(load(["run=x", "device=cpu", "quant=int4_g128", "quant.method=gptq"]))
    with pytest.raises(ValueError, match="unknown quant.method 'gpqt'; did you mean 'gptq'"):
        load(["run=x", "quant=int4_g128", "quant.method=gpqt"])
    with pytest.raises(ValueError, match="'gptqq' is none of rtn"):
        record_of(tmp_path, "+exp=quality", "params.candidates=[gptqq]", *SMALL)


def test_one_layer_of_a_large_shape(tmp_path):
    args = ("+exp=quantize", "model=smoke", "weights=random", "quant.method=gptq")
    figures = record_of(tmp_path, *args, "params.probe_layer=true", *SMALL)["figures"]
    assert set(figures["kinds"]) == {"linear_attention", "full_attention"}
    estimate = figures["estimate"]
    assert estimate["extrapolated"] and estimate["passes_per_layer"] == 2
    assert estimate["whole_s"] == estimate["layers_s"] + estimate["head_s"] > 0


def test_the_yardstick(tmp_path):
    args = ("params.candidates=[rtn,mse]", "params.judged_tokens=120", "params.window=128")
    figures = record_of(tmp_path, "+exp=quality", *args, *SMALL)["figures"]
    same, chunks = figures["noise"]["same"], figures["noise"]["chunks"]
    assert same["kl_mean"] == 0 and same["top1"] == 1
    assert same["perplexity"] == pytest.approx(figures["bf16"]["perplexity"])
    assert 0 <= chunks["kl_mean"] < 1e-6 < figures["noise"]["bf16_activations"]["kl_mean"]
    rtn, mse = figures["candidates"].values()
    assert mse["kl_mean"] < rtn["kl_mean"] < 0.2 and mse["kl_of_rtn"] < 1
    assert rtn["bits_per_weight"] == mse["bits_per_weight"] == 4.25
    assert rtn["kl_of_rtn"] == 1 and 0.5 < rtn["top1"] < 1
    hashes = [ids["sha256"] for ids in figures["ids"].values()]
    assert len(set(hashes)) == 4 and all(ids["tokens"] > 110 for ids in figures["ids"].values())


def test_calibration_and_evaluation_share_nothing():
    tokenizer = load_tokenizer(EMBEDDED)
    judged = calibration.evaluation(tokenizer, 600, 200, 0)
    listed = [ids for kind in judged.values() for ids in kind]
    mine = calibration.library(tokenizer, 3, 100, 0)
    assert calibration.apart(mine, listed) == mine
    copied = [*mine[0][:40], *listed[0][20 : 20 + calibration.OVERLAP], *mine[0][:12]]
    short = [*mine[0][:41], *listed[0][20 : 19 + calibration.OVERLAP], *mine[0][:12]]
    assert calibration.apart([copied, short], listed) == [short]
    assert all(sum(map(len, ids)) <= 600 + len(ids) for ids in judged.values())
    assert max(map(len, listed)) <= 201
    assert calibration.digest(mine) == calibration.digest(mine) != calibration.digest(listed)
    assert calibration.digest([[1, 2], [3]]) != calibration.digest([[1], [2, 3]])
    assert calibration.library(tokenizer, 2, 100, 1) != mine[:2]


def test_every_candidate_is_a_method_or_the_table():
    methods = {c.recipe.method for c in quality.CANDIDATES.values()}
    assert methods == set(METHODS)
