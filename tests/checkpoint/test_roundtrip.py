import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.small import random_target, same
from tr.checkpoint import files, shards
from tr.checkpoint.load import load_target
from tr.checkpoint.save import save_target
from tr.tree import tensors


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_saved_model_loads_to_the_same_bits(tied, dtype, tmp_path):
    target = random_target(tied, dtype)
    save_target(tmp_path / "m", target.config, target.params, target.mtp, target.eos)
    loaded = load_target(tmp_path / "m")
    assert loaded.config == target.config and loaded.eos == target.eos
    assert same(loaded.params, target.params) and same(loaded.mtp, target.mtp)
    assert loaded.skipped == () and loaded.warnings == ()
    assert (loaded.params.lm_head is None) == tied


def test_shards_hold_every_tensor_once_and_load_the_same(target, folder, tmp_path):
    path = tmp_path / "sharded"
    limit = 60_000
    save_target(path, target.config, target.params, target.mtp, target.eos, max_shard_bytes=limit)
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) > 3
    assert len({p.stat().st_mode for p in path.iterdir()}) == 1  # readable like the rest
    weight_map = json.loads((path / files.INDEX).read_text())["weight_map"]
    held = {shard.name: load_file(shard) for shard in shards}
    assert {n: f for f, parts in held.items() for n in parts} == weight_map
    assert sum(map(len, held.values())) == len(load_file(folder / files.SINGLE))
    assert all(sum(t.nbytes for t in p.values()) <= limit for p in held.values() if len(p) > 1)
    assert same(load_target(path).params, target.params)


def test_each_file_tensor_is_read_once_and_each_matrix_allocated_once(folder, monkeypatch):
    reads: Counter[str] = Counter()
    read = files.Folder.read

    def counted(self, name, start=0, stop=None):
        rows = read(self, name, start, stop)
        reads[name] += rows.nbytes
        return rows

    monkeypatch.setattr(files.Folder, "read", counted)
    loaded = load_target(folder)
    assert reads == {n: t.nbytes for n, t in load_file(folder / files.SINGLE).items()}
    for tree in (loaded.params, loaded.mtp):
        for name, t in tensors(tree).items():
            assert t.untyped_storage().nbytes() == t.nbytes, name
            assert t.is_contiguous() and not t.is_meta, name


def test_nothing_is_left_when_saving_fails(target, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(shards, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_target(tmp_path / "m", target.config, target.params, target.mtp, target.eos)
    assert list(tmp_path.iterdir()) == []


def test_overwriting_replaces_a_checkpoint_as_a_whole_and_nothing_else(target, tmp_path):
    path = tmp_path / "m"

    def write(**options):
        save_target(path, target.config, target.params, target.mtp, target.eos, **options)

    write(extra={"README.md": "old", "note.txt": "x"})
    with pytest.raises(FileExistsError, match="exists"):
        write()
    write(overwrite=True, extra={"README.md": "new"})
    assert (path / "README.md").read_text() == "new" and not (path / "note.txt").exists()
    assert same(load_target(path).params, target.params)
    (path / "config.json").unlink()
    with pytest.raises(FileExistsError, match="refusing"):
        write(overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_extra_files_stay_inside_the_folder(target, tmp_path):
    for name in ("../x", "a/b", "model.safetensors"):
        with pytest.raises(ValueError, match="plain name"):
            save_target(
                tmp_path / "m",
                target.config,
                target.params,
                target.mtp,
                target.eos,
                extra={name: ""},
            )
    assert list(tmp_path.iterdir()) == []


def test_a_config_and_an_mtp_head_must_agree(target, tmp_path):
    with pytest.raises(ValueError, match="1 MTP layers, but an MTP head was not given"):
        save_target(tmp_path / "m", target.config, target.params, None, target.eos)


def test_dtype_and_device_are_as_asked(folder, target):
    loaded = load_target(Path(folder), device="cpu", dtype=torch.float32)
    for name, t in tensors(loaded.params).items():
        assert t.dtype == torch.float32, name
    x = loaded.params.layers[0].mlp.down.weight
    assert torch.equal(x, target.params.layers[0].mlp.down.weight.float())
