"""One file much larger than its largest tensor is read with one matrix in memory at a time."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.model.small import CONFIG
from tr.checkpoint.inventory import file_shape, slots
from tr.checkpoint.load import Weights, open_target, skeleton
from tr.checkpoint.names import target_table
from tr.checkpoint.survey import stream
from tr.model import text
from tr.model.config import FULL

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MIB = 2**20


def status(field: str) -> int:
    """Bytes of a field of this process's status."""
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith(field))
    return 1024 * int(line.split()[1])


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, int, int]:
    """A sparse file of zeros, down_proj in W4A16; its bytes and those of its largest tensor."""
    shape = {"vocab": 49152, "d_model": 1024, "d_ff": 4096, "layer_types": (FULL,) * 8}
    c = dataclasses.replace(CONFIG, mtp_layers=0, **shape)
    own = skeleton(lambda g: Weights(text=text.init(c, g, torch.bfloat16), mtp=None))
    have, table, parts = slots(own), target_table(c, False), []
    for key, source in table.sources.items():
        for i, short in enumerate(source.names):
            size, name = file_shape(have[key], source, i), table.spell(short)
            if "down_proj" not in short:
                parts.append((name, "BF16", size, 2))
                continue
            module, (n, k) = name.removesuffix(".weight"), size
            parts.append((f"{module}.weight_packed", "I32", (n, k // 8), 4))
            parts.append((f"{module}.weight_scale", "F16", (n, k // 128), 2))
    at, header, largest = 0, {}, 0
    for name, dtype, size, width in parts:
        count = width * torch.Size(size).numel()
        header[name] = {"dtype": dtype, "shape": size, "data_offsets": [at, at + count]}
        at, largest = at + count, max(largest, count)
    raw = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + at)
    weights = {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 128}
    groups = {"group_0": {"targets": ["re:.*down_proj"], "weights": weights}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    config = {**c.to_hf(), "eos_token_id": 0, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, at, largest


@pytest.mark.skipif(not RESET.exists(), reason="only Linux resets a process's peak memory")
def test_a_single_shard_is_streamed(folder):
    path, total, largest = folder
    found = open_target(path)
    report = tuple(stream(open_target(path)))  # what libraries allocate once is allocated
    RESET.write_text("5")  # the peak becomes what is held now
    before = status("VmRSS")
    report = tuple(stream(found))
    grown = status("VmHWM") - before
    assert sum(held.stored_bytes for held in report) == total > 2.5 * largest
    assert grown < largest + 160 * MIB < total
