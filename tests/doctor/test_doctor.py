"""python -m tr.doctor: what it finds of a sound machine, of damaged files, of wrong operators."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.define import VARIANTS, Target
from tr.assemble import EMBEDDED
from tr.config import CHECKS
from tr.decode.stream import Counts
from tr.doctor import __main__ as doctor
from tr.doctor import exactness, machine, operators, versions
from tr.doctor.finding import guarded
from tr.overrides import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command in this process: exit code, standard output, standard error."""

    def call(*args):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(sys, "argv", ["doctor", *args])
        return doctor.main(), *capsys.readouterr()

    return call


@pytest.fixture
def told(command):
    """The same with a JSON report: exit code, and findings by check and item."""

    def call(*args):
        code, out, _ = command("report=json", *args)
        found = json.loads(out)
        assert (code == 0) == (found["state"] != "fail")
        checks = found["checks"].items()
        return code, {name: {f["item"]: f for f in c["findings"]} for name, c in checks}

    return call


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded checkpoint, and the arguments that name it."""
    path = tmp_path / "copy"
    shutil.copytree(EMBEDDED, path)
    return path, ("weights=checkpoint", f"weights.path={path}")


def test_a_sound_machine_and_the_embedded_model(told):
    others = [name for name in CHECKS if name != "operators"]
    code, found = told("device=cpu", "port=0", f"checks=[{','.join(others)}]")
    assert code == 0 and list(found) == others
    assert found["versions"]["torch"]["found"].startswith(torch.__version__)
    assert "none missing" in found["checkpoint"]["tensors"]["found"]
    assert "model=tiny" in found["checkpoint"]["shape"]["found"]
    assert found["checkpoint"]["MTP head"]["state"] == "ok"
    assert set(found["exactness"]) == {"dflash2, greedy", "dflash2, temperature 0.8"}
    for finding in found["exactness"].values():
        assert finding["found"].startswith("48 tokens as raw")
        assert finding["figures"]["tokens_per_step"] > 1


def test_every_operator_is_tried_and_a_repository_looked_for_in_the_cache_alone(tmp_path):
    """In a process of its own, without Triton's interpreter and any hub's settings."""
    own = ("HF_", "TR_", "TRITON_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    args = ["weights=checkpoint", "weights.repo=some/model", "device=cpu"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tr.doctor",
            "report=json",
            *args,
            "checks=[checkpoint,disk,operators]",
        ],
        env={**clean, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and done.stderr == "", (done.stdout, done.stderr)
    checks = json.loads(done.stdout)["checks"]
    (finding,) = checks["checkpoint"]["findings"]
    assert "some/model is not in the cache" in finding["found"]
    assert "hf download some/model" in finding["todo"]
    assert [f["item"] for f in checks["disk"]["findings"]] == ["outputs", "hub cache"]
    found = {f["item"]: f for f in checks["operators"]["findings"]}
    assert set(found) == set(VARIANTS)
    for name, finding in found.items():
        assert finding["state"] == "ok", finding
        assert set(finding["figures"]) == set(VARIANTS[name]) & {"tile"}
        for variant in finding["figures"].values():
            assert variant["cases"] > 0 and 0 <= variant["budget_share"] <= 1


def test_the_plan_is_the_budget_s_and_the_wall_the_roofline_s(told, monkeypatch):
    """Of a card that is not here, the 27B on an H200: 13.95 GB a step, 4492 GB/s."""
    args = ("device=h200", "model=qwen3_8_27b", "weights=random", "quant=int4_g128", "kv=fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, found = told(*args, "kv.capacity_tokens=131072", "checks=[device,memory,checkpoint]")
    assert code == 1 and found["device"]["device"]["state"] == "fail"
    assert "needs a CUDA card" in found["device"]["device"]["found"]
    assert found["device"]["device"]["todo"] == "use device=cpu"
    memory = found["memory"]
    assert memory["device"]["state"] == "warn"
    wall = memory["wall at 0 tokens"]["figures"]
    assert wall["bytes_per_step"] == pytest.approx(13.95e9, rel=1e-3)
    assert wall["tokens_per_s"] == pytest.approx(4492e9 / wall["bytes_per_step"])
    assert memory["kv=fp8"]["figures"]["bytes_per_token"] == 16 * 2 * 4 * 256
    assert memory["kv=fp8"]["figures"]["largest_context_tokens"] == 262144
    code, found = told(*args[1:], "device=rtx3090", "kv.capacity_tokens=262144", "checks=[memory]")
    assert code == 1 and "is the most that fits" in found["memory"]["this run"]["todo"]
    most = found["memory"]["kv=fp8"]["figures"]["largest_context_tokens"]
    assert f"kv.capacity_tokens={most} " in found["memory"]["this run"]["todo"]


def test_a_folder_that_is_not_there_hides_no_other_check(told, tmp_path):
    path = tmp_path / "none"
    args = ("weights=checkpoint", f"weights.path={path}", "port=0")
    code, found = told(*args, "checks=[memory,checkpoint,disk,port]")
    assert code == 1
    for check in ("memory", "checkpoint"):
        finding = found[check][check]
        assert finding["state"] == "fail" and finding["todo"] == "check weights.path"
        assert str(path) in finding["found"]
    assert found["disk"]["outputs"]["state"] == "ok" == found["port"]["server"]["state"]


def test_damaged_files_are_named_with_the_remedy(told, folder):
    path, args = folder
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100_000])
    code, found = told(*args, "checks=[memory,checkpoint]")
    finding = found["checkpoint"]["checkpoint"]
    assert code == 1 and finding["state"] == "fail" and finding["todo"] == "download it again"
    assert f"{weights} is truncated or damaged" in finding["found"]
    weights.write_bytes(whole)
    config = json.loads((path / "config.json").read_text())
    config["hidden_size"] = 512
    (path / "config.json").write_text(json.dumps(config))
    _, found = told(*args, "checks=[checkpoint]")
    finding = found["checkpoint"]["checkpoint"]
    assert finding["state"] == "fail"
    assert finding["todo"] == "use the config.json that belongs to these weights"
    assert "expected shape [640, 512], found [640, 384]" in finding["found"]
    (path / "config.json").write_text("{")
    _, found = told(*args, "checks=[checkpoint]")
    assert "is not valid JSON" in found["checkpoint"]["checkpoint"]["found"]


def test_what_a_checkpoint_lacks_is_what_a_draft_cannot_do(told, folder):
    path, args = folder
    shutil.rmtree(path / "draft")
    (path / "tokenizer.json").unlink()
    code, found = told(*args, "draft=mtp", "checks=[checkpoint]")
    found = found["checkpoint"]
    assert code == 1 and found["tokenizer"]["state"] == "fail"
    assert found["MTP head"]["state"] == "ok" and found["block draft"]["state"] == "warn"
    _, found = told(*args, "checks=[checkpoint]")
    found = found["checkpoint"]["block draft"]
    assert found["state"] == "fail" and "draft=dflash2 and those made of it" in found["todo"]


def test_a_wrong_operator_fails_alone(told, monkeypatch):
    tile = VARIANTS["silu_mul"]["tile"]

    def wrong(*arguments):
        return tile(*arguments) + 0.125

    wrong.support = tile.support
    monkeypatch.setitem(VARIANTS["silu_mul"], "tile", wrong)
    some = {name: operators.BENCHES[name] for name in ("rms_norm", "silu_mul", "matmul")}
    monkeypatch.setattr(operators, "BENCHES", some)

    def broken(*arguments):
        raise RuntimeError("no room on the card\nmore of it")

    broken.support = VARIANTS["matmul"]["tile"].support
    monkeypatch.setitem(VARIANTS["matmul"], "broken", broken)
    code, found = told("device=cpu", "checks=[operators]")
    states = {name: f["state"] for name, f in found["operators"].items()}
    assert code == 1 and states == {"matmul": "fail", "rms_norm": "ok", "silu_mul": "fail"}
    finding = found["operators"]["silu_mul"]
    assert "tile, d_ff: result 0 is off by" in finding["found"]
    assert finding["figures"]["tile"]["budget_share"] > 1
    assert "kernel.silu_mul=reference" in finding["todo"]
    finding = found["operators"]["matmul"]
    assert "broken, lm_head: RuntimeError: no room on the card\n" in finding["found"]
    assert finding["figures"]["tile"]["cases"] > finding["figures"]["broken"]["cases"] == 0


def test_texts_that_differ_fail_where_they_differ():
    raw, own = Counts(tokens=[5, 6, 7, 8]), Counts(tokens=[5, 6, 9, 8])
    finding = exactness.compared("x", raw, own)
    assert finding.state == "fail" and finding.found.startswith("token 2 of 4 ")
    short = exactness.compared("x", raw, Counts(tokens=[5, 6, 7]))
    assert short.state == "fail" and short.found.startswith("token 3 of 4 ")
    own = Counts(tokens=[5, 6, 7, 8], kept=[3], accepted=[2], proposed=[2])
    assert exactness.compared("x", raw, own).state == "ok"


def test_a_fault_is_found_and_hides_nothing(told, monkeypatch):
    def broken(own):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(machine, "disk", broken)
    code, found = told("port=0", "checks=[disk,port]")
    assert code == 1 and found["port"]["server"]["state"] == "ok"
    assert found["disk"]["disk"]["found"].startswith("RuntimeError: out of luck (test_doctor.py:")
    assert list(guarded("x", lambda: iter(())))[:1] == []


ABOUT = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "multiprocessors": 132,
    "driver": "580.1",
    "power_limit_w": "500.00",
    "clock_sm_mhz": "1980",
    "clock_sm_max_mhz": "1980",
    "clock_memory_mhz": "3201",
}


@pytest.fixture
def card(monkeypatch):
    """Findings of a card that is not here, with 100 GB of it free: what it is said to be."""

    def find(about=ABOUT, capability=(9, 0), measured=3000.0):
        target = SimpleNamespace(of=lambda device: Target("cuda", capability))
        properties = SimpleNamespace(total_memory=150e9)
        monkeypatch.setattr(machine, "Target", target)
        monkeypatch.setattr(machine, "free_bytes", lambda device: 100e9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        own = machine.Machine(load(["port=0"], "doctor"))
        own.__dict__ |= {"device": torch.device("cuda"), "about": about, "measured": measured}
        return own, {finding.item: finding for finding in machine.check(own)}

    return find


def test_a_card_is_held_against_its_config(card):
    own, found = card()
    assert own.known.name == "h200" and found["card"].state == "ok"
    assert found["driver"].state == "warn" and "measured at 700 W" in found["driver"].todo
    slow = found["read bandwidth"]
    assert slow.state == "warn" and "3,000 GB/s measured, 4,492 known" in slow.found
    assert own.reads() == (4492.0, "device=h200")
    own, found = card({**ABOUT, "power_limit_w": "[N/A]"}, measured=4500.0)
    assert found["driver"].state == "ok" == found["read bandwidth"].state
    assert own.reads() == (4500.0, "measured")


def test_a_card_that_nobody_measured(card):
    about = {k: v for k, v in ABOUT.items() if "clock" not in k and k not in ("driver", "power")}
    own, found = card({**about, "name": "NVIDIA T4", "capability": "7.5"}, (7, 5))
    assert own.known is None and own.reads() == (3000.0, "measured")
    assert found["float8"].state == found["driver"].state == found["fast operators"].state == "warn"
    own, found = card(about, measured=None)
    assert found["read bandwidth"].state == "warn" and own.reads() == (4492.0, "device=h200")


def test_a_port_that_is_taken(told):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, found = told("checks=[port]", f"port={taken.getsockname()[1]}")
    assert code == 1 and "choose another port" in found["port"]["port"]["todo"]


def test_packages_that_are_old_or_missing(monkeypatch):
    own = versions.installed
    has = {"torch": "2.1.0", "rich": None, "gguf": None}
    monkeypatch.setattr(versions, "installed", lambda name: has.get(name, own(name)))
    found = {finding.item: finding for finding in versions.check()}
    assert found["torch"].state == "fail" and found["torch"].found == "2.1.0, >=2.11 is needed"
    assert found["rich"].found == "not installed" and "pip install" in found["rich"].todo
    assert found["gguf"].state == "warn" and "GGUF" in found["gguf"].todo
    met = len(versions.requirements()[0]) - 2
    assert found["requirements"].found.startswith(f"{met} of {met + 2} packages")


def test_the_hard_requirements_are_asked_first(command, monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: None if "hydra" in name else "9")
    code, out, err = command()
    assert (code, out) == (
        1,
        "",
    ) and err == "fail: not installed: hydra-core>=1.3.2; run pip install -e .\n"


def test_the_table_names_states_and_counts(command):
    code, out, err = command("port=0", "checks=[port,checkpoint]", "model=smoke")
    assert code == 0 and err == ""
    for word in ("check", "state", "MTP head", "warn", "0 fail", "has another shape"):
        assert word in out


@pytest.mark.parametrize(
    "args, message",
    [
        (["checks=[memry]"], "unknown checks 'memry'; did you mean 'memory'?"),
        (["report=xml"], "unknown report 'xml'"),
        (["weights=checkpoint"], "weights=checkpoint takes one of weights.path=FOLDER"),
        (["device=h20"], "did you mean 'h200'?"),
    ],
)
def test_a_caller_s_mistake_is_one_line(command, args, message):
    code, out, err = command(*args)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1
