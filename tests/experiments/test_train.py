"""Both training experiments at a smoke size, by the command: repeatable, resumable, and of use."""

import json
import lzma
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments import packing
from experiments.probes import heldout_texts
from kernels.registry import select
from tr import experiment
from tr.assemble import EMBEDDED, load_dflash2
from tr.checkpoint.load import load_target
from tr.decode.generate import generate
from tr.decode.step import Model
from tr.drafts import head as heads
from tr.drafts.dflash2 import Dflash2
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.report import record
from tr.tree import tensors, unchecked

SHARES = {"prose": 0.5, "code": 0.2, "math": 0.2, "copy": 0.1}
MIXTURE = tuple(f"params.mixture.{kind}={SHARES.get(kind, 0)}" for kind in packing.MIXTURE)
TINY = (
    "+exp=train_tiny", "model=smoke", "device=cpu", "threads=1", *MIXTURE,
    "params.tokens=20000", "params.processes=1", "params.short_tokens=32", "params.short_batch=8",
    "params.short_steps=30", "params.long_tokens=64", "params.long_batch=4", "params.long_steps=12",
    "params.warmup=3", "params.probes=1",
)  # fmt: skip
DRAFT = (
    "+exp=train_draft", "device=cpu", "threads=1", *MIXTURE, "params.stream_tokens=20000",
    "params.processes=1", "params.prompt_tokens=32", "params.response_tokens=24",
    "params.rounds=2", "params.round_sequences=16", "params.steps=40", "params.batch=4",
    "params.anchors=8", "params.warmup=4", "params.d_ff=128", "params.taps=[0, 2]",
    "params.layers=2", "params.window=16",
    "params.kv_heads=1", "params.mtp_batch=4", "params.selector_rank=8", "params.selector_top=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A few documents of each kind in both splits."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl.xz"
    with lzma.open(path, "wt", preset=0) as out:
        for kind, split, count in (
            ("prose", "train", 12), ("code", "train", 6), ("chinese", "train", 1),
            ("prose", "heldout", 2), ("code", "heldout", 2),
        ):  # fmt: skip
            texts = heldout_texts(kind)
            texts = texts[:count] if split == "train" else texts[-count:]
            for text in texts:
                line = {"source": "x", "kind": kind, "split": split, "text": text[:3000]}
                out.write(json.dumps(line) + "\n")
    return path


@pytest.fixture(scope="module")
def command(corpus, tmp_path_factory):
    """Run a training experiment: the record and the folder."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("runs")

        def call(name: str, *args: str) -> tuple[dict, Path]:
            folder = root / name
            own = (f"params.corpus={corpus}", f"params.tokenizer={EMBEDDED}", f"output={folder}")
            patch.setattr(sys, "argv", ["experiment", *args, *own])
            torch.use_deterministic_algorithms(True)
            assert experiment.main() == 0
            return record.load(folder / "record.json"), folder

        yield call


@pytest.fixture(scope="module")
def whole(command):
    return command("whole", *TINY)


@pytest.fixture(scope="module")
def drafted(command, whole):
    return command("drafted", *DRAFT, f"params.target={whole[1] / 'target'}")


def weights(folder: Path) -> dict[str, Tensor]:
    return tensors(load_target(folder / "target").params)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_target_learns(whole):
    made, folder = whole
    figures = made["figures"]
    assert figures["steps"] == figures["steps_planned"] == 42
    assert figures["tokens_seen"] == 30 * 8 * 32 + 12 * 4 * 64
    losses = list(figures["losses_nats"].values())
    assert losses[0] == pytest.approx(torch.tensor(640.0).log().item(), abs=0.6)
    assert losses[-1] < losses[0] - 1.0
    assert set(figures["held_out_bits_per_byte"]) == {"prose", "code"}
    assert 1 < figures["held_out_bits_per_byte"]["prose"] < 12
    assert set(figures["probe_rates"]) == {"needle", "copy"}
    assert made["verdict"] is None and not (folder / "state.pt").exists()
    assert made["config"]["params"]["short_steps"] == 30


def test_a_resumed_run_equals_an_uninterrupted_one(command, whole):
    """Stopped twice, in each phase, by a clock that is always late: bit for bit the same."""
    step, folder, runs = 0, None, 0
    while step < 42:
        resume = [f"params.resume={folder}"] if folder else []
        made, folder = command(f"part {runs}", *TINY, "params.stop_after_s=0", *resume)
        assert made["figures"]["steps"] > step
        step, runs = made["figures"]["steps"], runs + 1
        assert (folder / "state.pt").exists() == (step < 42)
    assert runs >= 3
    a, b = weights(whole[1]), weights(folder)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    want = whole[0]["figures"]
    assert made["figures"]["tokens_seen"] == want["tokens_seen"]
    assert made["figures"]["held_out_bits_per_byte"] == want["held_out_bits_per_byte"]
    shared = made["figures"]["losses_nats"].keys() & want["losses_nats"].keys()
    assert len(shared) >= 3
    assert all(made["figures"]["losses_nats"][i] == want["losses_nats"][i] for i in shared)


def test_a_run_may_start_from_a_checkpoint(command, whole):
    made, _ = command("further", *TINY, f"params.start={whole[1]}", "params.stop_after_s=0")
    first = next(iter(made["figures"]["losses_nats"].values()))
    assert first < next(iter(whole[0]["figures"]["losses_nats"].values())) - 1.0


def test_the_drafts_learn(drafted):
    made, _ = drafted
    figures = made["figures"]
    assert figures["steps"] == 40 and figures["regenerated_tokens"] == 32 * 24
    losses = list(figures["losses_nats"].values())
    assert losses[-1] < 0.9 * losses[0]
    assert len(figures["overlap_by_row"]) == 7
    assert all(0 < share <= 1 for share in figures["overlap_by_row"])


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_the_result_loads_and_decodes_exactly(whole, drafted, heat):
    loaded = load_target(drafted[1] / "target")
    params = weights(whole[1])
    assert all(torch.equal(t, params[name]) for name, t in tensors(loaded.params).items())
    assert loaded.mtp is not None and loaded.eos == (514, 512)
    model = Model.build(loaded.params, select(), 545)
    net = load_dflash2(drafted[1] / "target" / "draft", loaded.params)
    s, prompt = sampling(heat, seed=1), list(range(300, 340))
    head = heads.whole(loaded.params.head, 545)
    with unchecked():
        raw = generate(model, Raw(), prompt, s, 64, (), 256).tokens
        for draft in (
            Dflash2(net, loaded.params, 7, head, net.config.window),
            Mtp(loaded.mtp, loaded.params, model.ops, 3, head),
        ):
            assert generate(model, draft, prompt, s, 64, (), 256).tokens == raw
