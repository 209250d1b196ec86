"""Every YAML file composes; every typing error is answered with the nearest valid name."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kernels.registry import Ops
from tr import overrides
from tr.config import Dflash2Draft, Generate, Kernel

EXPERIMENTS = overrides.choices("exp")
CHOICES = [(group, name) for group in overrides.groups() for name in overrides.choices(group)]
EXTRA = {"checkpoint": ["weights.path=there"]}  # choices that are not whole on their own


def composed(*args: str, root: str = "config") -> Any:
    return overrides.load(list(args), root)


def refusal(*args: str, configs: Path = overrides.CONFIGS) -> str:
    with pytest.raises(ValueError) as caught:
        overrides.resolve(list(args), configs=configs)
    return str(caught.value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(name):
    assert composed(f"+exp={name}").run


@pytest.mark.parametrize("group, name", CHOICES, ids=[f"{g}={n}" for g, n in CHOICES])
def test_every_choice_composes_and_is_described(group, name):
    config = composed("run=x", f"{group}={name}", *EXTRA.get(name, []))
    assert overrides.description(overrides.CONFIGS / group / f"{name}.yaml").endswith(".")
    own = getattr(config, group)
    stated = {"model": "name", "prompts": "name", "device": "name", "draft": "strategy"}
    if group in stated:
        assert getattr(own, stated[group]) == name


@pytest.mark.parametrize("name", overrides.choices("model"))
def test_model_specs_follow_the_interval(name):
    spec = composed("run=x", f"model={name}").model.spec()
    assert len(spec.layer_types) == spec.layers
    full = [i for i, kind in enumerate(spec.layer_types) if kind == "full_attention"]
    assert full == list(range(3, spec.layers, 4))


def test_kernel_overrides_name_the_registry_s_operators():
    names = {field.name for field in dataclasses.fields(Kernel)}
    switches = {"variant", "overlap", "fetch_ahead", "separate"}
    assert names == {*switches, *(field.name for field in dataclasses.fields(Ops))}
    chosen = composed("run=x", "kernel.matmul=reference").kernel
    assert chosen.overrides() == {"matmul": "reference"}


def test_command_line_beats_experiment_beats_default():
    assert composed("+exp=train_tiny").draft.strategy == "raw"
    assert composed("+exp=train_tiny", "draft=mtp", "draft.tokens=2").draft.tokens == 2
    assert isinstance(composed("run=x").draft, Dflash2Draft)


def test_generate_has_its_own_root():
    config = composed("prompt=What is 2 + 2? (a, b={c}) 'it''s' ${x}", root="generate")
    assert isinstance(config, Generate)
    assert config.prompt == "What is 2 + 2? (a, b={c}) 'it''s' ${x}"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_text_is_taken_literally(text):
    parsed = OverridesParser.create().parse_override(f"key={overrides.literal(text)}").value()
    if text != "???":  # a missing value, to OmegaConf
        assert OmegaConf.create({"key": parsed}).key == text


def test_paths_may_hold_anything_and_start_at_home():
    path = composed("run=x", "weights=checkpoint", "weights.path=/a b/c=d, {e}").weights.path
    assert path == "/a b/c=d, {e}"
    path = composed("run=x", "weights=checkpoint", "weights.path=~/models").weights.path
    assert path == str(Path.home() / "models")


@pytest.mark.parametrize(
    "args, parts",
    [
        (["+exp=dflash_verify"], ["exp 'dflash_verify'", "did you mean 'dflash2_verify'"]),
        (["run=x", "drft=mtp"], ["key 'drft'", "did you mean 'draft'"]),
        (["run=x", "draft=dflash"], ["draft 'dflash'", "did you mean 'dflash2'"]),
        (
            ["run=x", "draft=off"],
            ["draft 'off'", "valid: auto, chain, dflash2, dflash2_lookup, lookup"],
        ),
        (["run=x", "draft=mtp", "draft.token=3"], ["(MtpDraft) 'token'", "mean 'tokens'"]),
        (["run=x", "draft=raw", "draft.tokens=3"], ["draft (RawDraft) 'tokens'"]),
        (["run=x", "kernel.variant=tyle"], ["'tyle'", "did you mean 'tile'"]),
        (["run=x", "jit=tensorrt"], ["jit=tensorrt is not built yet", "eager, inductor"]),
        (["run=x", "jit.backend=tensorrt"], ["jit.backend=tensorrt is not built yet"]),
        (["run=x", "max_new_tokens=many"], ["max_new_tokens: ", "'many'", "Integer"]),
        (["run=x", "max_new_tokens=0"], ["max_new_tokens must be positive, got 0"]),
        (["run=x", "draft.tokens=16"], ["draft.tokens must lie in 1..15, got 16"]),
        (["run=x", "sampling.top_p=0"], ["sampling.top_p must lie in (0, 1]"]),
        (["run=x", "sampling.presence_penalty=3"], ["presence_penalty must lie in -2..2, got 3"]),
        (["run=x", "sampling.repetition_penalty=0"], ["must lie in (0, 10], got 0"]),
        (["run=x", "sampling.logit_bias={5: 101}"], ["logit_bias[5] must lie in -100..100"]),
        (["run=x", "draft=mtp", "draft.noise=some"], ["unknown draft.noise", "'some'"]),
        (["run=x", "weights=checkpoint"], ["weights.path=FOLDER", "got neither"]),
        (["run=x", "model.heads=5"], ["model.heads = 5 does not fit model.kv_heads = 2"]),
        (["run=x", "prefill.chunk_tokens=100"], ["prefill.chunk_tokens", "multiple of 64", "100"]),
        (["run=x", "prefill.chunk_tokens=65536"], ["up to 32768", "got 65536"]),
        (["run=x", "prefill.scratch_mib=0"], ["prefill.scratch_mib must be positive, got 0"]),
        (["run=x", "prefill=int4"], ["prefill 'int4'", "did you mean 'int8'"]),
        (["run=x", "draft=mtp,raw"], ["several values", "add -m"]),
        (["run=x", "+foo=3"], ["'+foo'", "valid: +exp, +sweep"]),
        (["run=x", "++seed=3"], ["'++seed'"]),
        (["exp=train_tiny"], ["write +exp=train_tiny"]),
        (["+sweep=drafts"], ["add -m"]),
        (["-m", "run=x", "hydra.sweep.dir=x"], ["hydra.sweep.dir", "output=FOLDER"]),
        (["run=x", ""], ["expected key=value, got ''"]),
        (["~draft"], ["expected key=value, got '~draft'"]),
        (["run=x", "--multi"], ["'--multi'", "did you mean '--multirun'"]),
        (["run=x", "draft={tokens: 3}"], ["unknown draft"]),
        (["run=x", "draft.=3"], ["unknown key of draft"]),
        (["run=x", "params=3"], ["params"]),
        (["run=x", "hydra.run.dri=y"], ["hydra.run.dri"]),
        (["seed=3"], ["missing mandatory value: run"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes_on_the_command_line(args, parts):
    message = refusal(*args)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "text, parts",
    [
        ("runn: x", ["configs/exp/bad.yaml", "'runn'", "did you mean 'run'"]),
        ("run: x\ndraft:\n  tokns: 3", ["bad.yaml", "Dflash2Draft", "did you mean 'tokens'"]),
        ("run: x\ndefaults:\n  - override /drft: mtp", ["'drft'", "did you mean 'draft'"]),
        ("run: x\ndefaults:\n  - override /draft: mtpp", ["'mtpp'", "did you mean 'mtp'"]),
        ("run: x\nseed: abc", ["bad.yaml: seed: Value 'abc'"]),
        ("run: x\njit:\n  backend: off", ["YAML reads a bare on, off", "quote it"]),
        ("run: [x", ["bad.yaml"]),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, parts):
    configs = Path(shutil.copytree(overrides.CONFIGS, tmp_path / "configs"))
    (configs / "exp" / "bad.yaml").write_text(f"# @package _global_\n{text}\n")
    message = refusal("+exp=bad", configs=configs)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_each_job_of_a_sweep_is_checked():
    args = ["-m", "run=x", "draft=mtp,lookup", "seed=1,2"]
    assert overrides.resolve(args) == ["-m", "draft=mtp,lookup", "run=x", "seed=1,2"]
    assert "RawDraft" in refusal("-m", "run=x", "draft=mtp,raw", "draft.tokens=3")
    assert "'mtpp'" in refusal("-m", "run=x", "draft=mtp,mtpp")
    assert "must be positive" in refusal("-m", "run=x", "max_new_tokens=1,0")
    assert "as text it is written" in refusal("-m", "run=a=b")


@dataclasses.dataclass
class Options:
    steps: int = 10
    name: str = "x"


def test_params_are_checked_against_an_experiment_s_options():
    config = composed("run=x", "params.steps=20")
    assert config.options(Options) == Options(steps=20)
    with pytest.raises(ValueError, match="'stepz'; did you mean 'steps'"):
        composed("run=x", "params.stepz=20").options(Options)
    with pytest.raises(ValueError, match="params.steps: Value 'many'"):
        composed("run=x", "params.steps=many").options(Options)


def test_prompts_by_family(tmp_path):
    four = composed("+exp=dflash2_verify").prompts.families()
    assert list(four) == ["essay", "code", "math", "copy"]
    assert all(len(prompts) >= 8 for prompts in four.values())
    assert list(composed("+exp=dflash2_verify", "prompts=code").prompts.families()) == ["code"]
    text = tmp_path / "a text"
    text.write_text("Once upon a time")
    file = ("run=x", "prompts=file", f"prompts.path={text}")
    (prompt,) = composed(*file, "prompts.path_kind=chat").prompts.families()["file"]
    assert (prompt.text, prompt.kind) == ("Once upon a time", "chat")
    text.write_text("")
    with pytest.raises(ValueError, match="a text is empty"):
        composed(*file).prompts.families()
    with pytest.raises(ValueError, match="set prompts.path=FILE"):
        composed("run=x", "prompts=file").prompts.families()
    assert "'plane'; did you mean 'plain'" in refusal(*file, "prompts.path_kind=plane")


def test_help_has_a_line_for_each_experiment_and_group():
    lines = overrides.usage("tr.experiment").splitlines()
    first = [line.split()[0] for line in lines if line.split()]
    named = [*EXPERIMENTS, *overrides.choices("sweep"), *overrides.groups()]
    for name in named:
        assert first.count(name) == named.count(name)  # a group may be named like an experiment
    for line in lines:
        if line.split()[:1] and line.split()[0] in EXPERIMENTS:
            assert len(line.split()) > 3
    assert "[dflash2] dflash2_lookup lookup mtp" in "\n".join(lines)
    drafts = overrides.usage("tr.experiment", group="draft").splitlines()
    assert [line.split()[0] for line in drafts] == overrides.choices("draft")
    with pytest.raises(ValueError, match="did you mean 'draft'"):
        overrides.usage("tr.experiment", group="drafts")
