"""Imported weights in a run: what is assembled, what it is said to need, what is reported."""

import dataclasses
import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments import published as p
from experiments.import_survey import run
from experiments.published_cases import pack_quantized
from tr.assemble import EMBEDDED, assemble, import_dflash2, read_found, requantises
from tr.checkpoint.load import load_target, open_target
from tr.checkpoint.survey import sizes
from tr.drafts.dflash2 import Dflash2
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.overrides import load
from tr.quant import rtn
from tr.roofline import plan
from tr.tree import tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in Token Rush's int4, whose rounding is ours."""
    path = tmp_path_factory.mktemp("imported") / "model"
    copytree(EMBEDDED, path, ignore=lambda _, names: [n for n in names if n == "draft"])
    stored = load_file(path / "model.safetensors")
    published = p.publish(stored, lambda n: p.tokenrush if p.body(n) else None, {})
    save_file(published.parts, path / "model.safetensors", metadata={"format": "pt"})
    (path / "tokenrush.json").write_text(json.dumps({"format": "int4", "group": 128}))
    return path


@pytest.fixture(scope="module")
def drafted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its draft in W4A16, scales in float16."""
    path = tmp_path_factory.mktemp("drafted") / "model"
    copytree(folder, path)
    stored = load_file(EMBEDDED / "draft" / "model.safetensors")
    quantise = pack_quantized(torch.float16)
    chosen = {n for n in stored if n.startswith("layers.") and ("proj.weight" in n)}
    config = p.ct_config([(["Linear"], p.integers())], [], "pack-quantized")
    published = p.publish(stored, lambda n: quantise if n in chosen else None, config)
    raw = json.loads((EMBEDDED / "draft" / "config.json").read_text())
    p.lay(published, path / "draft", raw)
    return path


def configure(folder: Path, *more: str):
    args = ["run=x", "device=cpu", "draft=raw", "kernel=reference", "weights=checkpoint"]
    return load([*args, f"weights.path={folder}", *more])


def test_an_imported_model_is_the_one_that_its_codes_were_made_from(folder):
    made = assemble(configure(folder), 256)
    ours, _ = rtn.quantise_all(load_target(EMBEDDED).params)
    for a, b in zip(made.model.params.layers, ours.layers, strict=True):
        x, y = tensors(a), tensors(b)
        assert x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
        assert isinstance(a.mlp.down, Int4) and isinstance(b.mlp.down, Int4)
    assert made.mtp is not None and isinstance(made.mtp.fc, Dense)


@pytest.mark.parametrize("more", [(), ("quant=int4_g128",)], ids=["as stored", "int4"])
def test_it_is_said_to_hold_what_it_holds(folder, more):
    config = configure(folder, *more)
    made = assemble(config, 256)
    _, found = read_found(config)
    said = sizes(found, requantises(config), bool(more))

    def held(part: str, matrix: str) -> int:
        nodes = [getattr(getattr(layer, part), matrix, None) for layer in made.model.params.layers]
        return sum(t.nbytes for node in nodes for t in tensors(node).values())

    assert said["delta in_qkvz"].nbytes(2.0) == held("mixer", "in_qkvz")
    assert said["attention qkv"].nbytes(2.0) == held("mixer", "qkv")
    assert said["mlp gate_up"].nbytes(2.0) == held("mlp", "gate_up")
    assert said["MTP head"].nbytes(2.0) == sum(t.nbytes for t in tensors(made.mtp).values())


def test_a_step_moves_what_is_held_whatever_quant_says(folder):
    config = configure(folder)
    made = assemble(config, 256)
    as_said, as_codes = (plan(made.shape, quant).moved for quant in ("bf16", "int4_g128"))
    assert as_codes < made.moved("bf16", 0) < as_said  # the body in codes, the head in bfloat16
    vocab, width = made.shape.vocab, made.shape.d_model
    head = vocab * width * 2 - -(-vocab // 64) * 64 * width * 4.25 / 8
    assert made.moved("bf16", 0) == as_codes + head
    config = configure(folder, "quant=int4_g128")
    assert (
        assemble(config, 256).moved("bf16", 9, 2)
        == plan(made.shape, "int4_g128", "bf16", 9, 2).moved
    )


def test_a_missing_mtp_head_refuses_its_draft_alone(folder, tmp_path):
    path = Path(copytree(folder, tmp_path / "model"))
    stored = load_file(path / "model.safetensors")
    save_file({n: t for n, t in stored.items() if not n.startswith("mtp.")}, path / "x.safetensors")
    (path / "x.safetensors").replace(path / "model.safetensors")
    config = configure(path, "draft=mtp")
    made = assemble(config, 256)
    assert any("draft=mtp is unavailable" in warning for warning in made.warnings)
    with pytest.raises(ValueError, match=r"draft=mtp: .* has no mtp\.\* tensors"):
        made.draft(config)


def test_float16_checkpoints_run_in_bfloat16(folder, tmp_path):
    path = Path(copytree(folder, tmp_path / "model"))
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "dtype": "float16"}))
    assert assemble(configure(path), 256).model.params.norm.dtype == torch.bfloat16
    assert open_target(path).shapes.text.norm.dtype == torch.float16


def test_the_experiment_counts_kinds_and_bytes(folder):
    config = dataclasses.replace(configure(folder), params={})
    outcome = run(config)
    figures = outcome.figures
    stored = sum(t.nbytes for t in load_file(folder / "model.safetensors").values())
    assert (
        figures["stored_bytes"]
        == stored
        == sum(row["stored_bytes"] for row in figures["kinds"].values())
    )
    assert set(figures["kinds"]) == {"exact", "repacked"} and not figures["worst"]
    assert figures["held"]["mlp down"]["as_int4_gb"] > 0

    config = dataclasses.replace(configure(folder, "quant=int4_g128"), params={})
    assert set(run(config).figures["kinds"]) == {"exact", "repacked", "quantised"}
    config = dataclasses.replace(configure(folder), params={"decode": False})
    assert "kinds" not in run(config).figures


def test_a_quantised_draft_is_reported_as_the_target_is(drafted):
    config = configure(drafted, "draft=dflash2")
    made = assemble(config, 256)
    before = made.warnings
    draft = made.draft(config)
    assert isinstance(draft, Dflash2) and isinstance(draft.params.layers[0].mlp.down, Dense)
    (said,) = made.warnings[len(before) :]
    assert said.startswith("draft: ") and "rounded to the model's dtype" in said
    made.draft(config)
    assert len(made.warnings) == len(before) + 1

    config = configure(drafted, "draft=dflash2", "weights.requantise=int4_g128")
    made = assemble(config, 256)
    draft = made.draft(config)
    assert isinstance(draft, Dflash2) and isinstance(draft.params.layers[0].mlp.down, Int4)
    assert "requantised to int4" in made.warnings[-1]
    _, report = import_dflash2(drafted / "draft", made.model.params)
    names = [h.name for h in report]
    assert len(names) == len(set(names)) == 51
    assert {h.kind for h in report if h.format != "plain"} == {"rounded"}

    config = dataclasses.replace(configure(drafted), params={})
    figures = run(config).figures["draft"]
    assert set(figures["kinds"]) == {"exact", "rounded"}
    assert figures["stored_bytes"] == sum(row["stored_bytes"] for row in figures["kinds"].values())
