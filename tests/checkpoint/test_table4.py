"""Table weights in files: the same bits and the same text as before; malformed ones by name."""

import functools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.small import same
from tr.assemble import EMBEDDED, assemble
from tr.checkpoint.load import load_target
from tr.decode.generate import generate
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn.formats.int4 import Int4, int4
from tr.nn.formats.table4 import Table4
from tr.overrides import load
from tr.quant import rtn
from tr.quant.folder import save_target
from tr.roofline import plan
from tr.tree import unchecked

FIXED = ("run=x", "device=cpu", "threads=1", "kv.capacity_tokens=512", "draft=dflash2")
DOWN = "model.layers.0.mlp.down_proj.weight"


@functools.cache
def made():
    """The embedded model in codes by its weights alone."""
    return assemble(load([*FIXED, "quant=table4"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "table4"
    texts = ("tokenizer.json", "tokenizer_config.json")
    extra = {name: (EMBEDDED / name).read_text() for name in texts}
    own = made()
    head = own.mtp
    save_target(path, own.shape, own.model.params, head, own.eos, {"method": "rtn"}, extra)
    shutil.copytree(EMBEDDED / "draft", path / "draft")
    return path


def test_loads_as_it_was_saved(folder):
    stored = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert stored["quant_method"] == "table4" and stored["recipe"] == {"method": "rtn"}
    assert stored["group_size"] == 32 and len(stored["levels"]) == 16
    assert not (folder / "tokenrush.json").exists()
    loaded, own = load_target(folder), made()
    assert isinstance(loaded.params.head, Table4) and loaded.warnings == ()
    coded = [held for held in loaded.report if held.format == "table4"]
    assert coded and all(held.kind == "exact" for held in coded)
    for a, b in zip(loaded.params.layers, own.model.params.layers, strict=True):
        assert same(a.mlp, b.mlp) and isinstance(a.mlp.down, Table4)
    assert same(loaded.params.head, own.model.params.head)
    assert loaded.mtp is not None and own.mtp is not None and same(loaded.mtp.fc, own.mtp.fc)


def test_tables_beside_int4_codes_load_as_they_were_saved(tmp_path):
    own = made()
    first, *rest = own.model.params.layers
    down = int4(first.mlp.down.splits, own.shape.d_ff, torch.Generator().manual_seed(0))
    mixed = replace(first, mlp=replace(first.mlp, down=down))
    params = replace(own.model.params, layers=(mixed, *rest))
    save_target(tmp_path / "mixed", own.shape, params, None, own.eos, {"method": "rtn"}, {})
    loaded = load_target(tmp_path / "mixed")
    assert loaded.warnings == ()
    mlp = loaded.params.layers[0].mlp
    assert isinstance(mlp.down, Int4) and isinstance(mlp.gate_up, Table4)
    assert same(mlp, mixed.mlp) and same(loaded.params.head, own.model.params.head)


def test_a_step_moves_the_bytes_that_are_held(folder):
    """Those of the plan, but for rows that fill up tiles."""
    config = load([*FIXED, "weights=checkpoint", f"weights.path={folder}"])
    again = assemble(config)
    assert again.ops.table4_matmul is made().ops.table4_matmul
    assert again.moved("bf16", 100) == made().moved("bf16", 100)
    items = {item.name: item for item in plan(again.shape, "table4").items}
    downs = [layer.mlp.down for layer in again.model.params.layers]
    assert items["mlp down"].held == sum(d.nbytes for d in downs if isinstance(d, Table4))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "drawn"])
def test_decodes_as_before_saving_and_speculation_changes_nothing(folder, settings):
    config = load([*FIXED, "weights=checkpoint", f"weights.path={folder}"])
    before, after = made(), assemble(config)
    prompt = after.tokenizer.encode("def area(width, height):\n    return")
    with unchecked():
        heat = sampling(**settings)
        raw, again, drafted = (
            generate(x.model, draft, prompt, heat, 25, capacity=512).tokens
            for x, draft in ((before, Raw()), (after, Raw()), (after, after.draft(config)))
        )
    assert raw == again == drafted and len(set(raw)) > 5


def test_asked_for_as_int4(folder):
    loaded = load_target(folder, requantise=rtn.arrive)
    down = loaded.params.layers[0].mlp.down
    assert isinstance(down, Int4)
    own = made().model.params.layers[0].mlp.down.weight(torch.float32)  # type: ignore[union-attr]
    error = (down.weight(torch.float32) - own).norm() / own.norm()
    assert 0.01 < error < 0.15
    assert any("requantised to int4" in said for said in loaded.warnings)


def _drop(parts):
    del parts[f"{DOWN}.groups"]


def _wide(parts):
    parts[f"{DOWN}.exponent"] = parts[f"{DOWN}.exponent"].to(torch.int16)


def _short(parts):
    parts[f"{DOWN}.codes"] = parts[f"{DOWN}.codes"][:, 64:].contiguous()


def _beyond(parts):
    parts[f"{DOWN}.exponent"] = parts[f"{DOWN}.exponent"].clone().fill_(127)


@pytest.mark.parametrize(
    "change, complaint",
    [
        (_drop, f"{DOWN}.groups .* is missing"),
        (_wide, f"{DOWN}.exponent: expected I8, found I16"),
        (_short, f"{DOWN}.codes: expected shape"),
        (_beyond, f"{DOWN}.exponent holds powers of two beyond -100 .. 100"),
    ],
)
def test_malformed_files_are_refused_by_name(folder, tmp_path, change, complaint):
    path = _copied(folder, tmp_path)
    parts = load_file(path / "model.safetensors")
    change(parts)
    save_file(parts, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=complaint):
        load_target(path)


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda q: q["levels"].reverse(), "quantization_config.levels of table4 is .127, "),
        (lambda q: q.update(group_size=16), "quantization_config.group_size of table4 is 16"),
        (lambda q: q.update(quant_method="gptq"), "weight.codes: this is table4's, not gptq's"),
        (lambda q: q.pop("modules"), "quantization of table4 is malformed"),
    ],
)
def test_other_tables_are_refused(folder, tmp_path, change, complaint):
    path = _copied(folder, tmp_path)
    config = json.loads((path / "config.json").read_text())
    change(config["quantization_config"])
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=complaint):
        load_target(path)


def _copied(folder, tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(folder / name, tmp_path / name)
    return tmp_path
