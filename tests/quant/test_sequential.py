"""A whole small model: layer by layer, resumed, saved and loaded, tuned by its own laws."""

import dataclasses

import pytest
import torch

from tests.model.small import CONFIG, random_mtp, random_params
from tr.checkpoint.load import load_target
from tr.nn.formats import int4
from tr.nn.formats.int4 import Int4
from tr.quant import folder, hessian, sequential
from tr.quant.numbers import bits_per_weight, numbers
from tr.quant.recipe import Recipe, convert
from tr.quant.shelf import Files
from tr.quant.tune import Settings, Student, divergence, logits, tune
from tr.tree import tensors

SHAPE = dataclasses.replace(
    CONFIG, d_ff=128, d_v=64, k_heads=2, v_heads=2, vocab=128, tie_embeddings=True, eps=1e-5
)
SHAPE = dataclasses.replace(SHAPE, layer_types=SHAPE.layer_types[2:])  # one layer of each kind


def model():
    return random_params(torch.bfloat16, SHAPE), random_mtp(torch.bfloat16, SHAPE)


def ids(count: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 128, (count, 64), generator=torch.Generator().manual_seed(seed))


def plan(recipe: Recipe, **changes) -> sequential.Plan:
    return sequential.Plan(
        lambda dense, seen: convert(dense, seen, recipe),
        recipe.calibrated,
        recipe.asymmetric,
        batch=4,
        **changes,
    )


def quantised(recipe: Recipe, shelf=None, **changes):
    params, head = model()
    steps = sequential.sequential(params, head, ids(), plan(recipe, **changes), shelf)
    return sequential.assembled(params, head, dict(steps))


def loss(params, whole, tokens) -> float:
    with torch.no_grad():
        a, b = (logits(numbers(p, torch.float32), tokens) for p in (params, whole))
        return divergence(a, b).item()


def test_parts_and_what_stays():
    params, head = quantised(Recipe("gptaq"))
    assert isinstance(params.lm_head, Int4) and head is not None and isinstance(head.fc, Int4)
    coded = [t for t in (params, head) for _ in hessian.matrices(t)]
    assert not coded  # every matrix that may become codes did
    assert torch.equal(params.embed, model()[0].embed)
    assert bits_per_weight((params, head)) == 4.25


def test_policies():
    params, head = quantised(Recipe("rtn"), with_head=False, with_mtp=False)
    assert params.lm_head is None and head is not None
    assert list(hessian.matrices(head)) and not hessian.matrices(params.layers)


def test_calibration_sees_the_quantised_prefix():
    """The second layer's moments are of inputs that the first one's codes made."""
    params, _ = model()
    seen = []

    def watch(dense, moments):
        seen.append(moments)
        return convert(dense, moments, Recipe("gptq"))

    chosen = dataclasses.replace(plan(Recipe("gptq"), with_mtp=False), convert=watch)
    done = dict(sequential.sequential(params, None, ids(), chosen))
    first = numbers(done["layers[0]"], torch.float32)
    x = params.embed.float()[ids()]
    rope = numbers(params.rope, torch.float32)
    x = sequential.layer.sequence(first, sequential.layer.init_past(first, 12), x, rope)[0]
    y = sequential.rms_norm(x, params.layers[1].input_norm.float(), params.eps).flatten(0, 1)
    second = seen[len(hessian.matrices(params.layers[0]))]
    torch.testing.assert_close(second.h, y.t() @ y, rtol=1e-4, atol=1e-3)
    assert second.tokens == 12 * 64 and second.cross is None


def test_stepwise_sees_the_part_s_own_codes():
    """The output matrix of the first mixer is quantised on what its quantised input one gives."""
    params, _ = model()
    seen = []

    def watch(dense, moments):
        seen.append((dense.weight.shape, moments))
        return convert(dense, moments, Recipe("gptq"))

    chosen = dataclasses.replace(plan(Recipe("gptq"), stepwise=True), convert=watch)
    done = dict(sequential.sequential(params, None, ids(), chosen))
    first = numbers(params.layers[0], torch.float32)
    shapes = [tuple(m.weight.shape) for m in hessian.matrices(first).values()]
    assert [tuple(shape) for shape, _ in seen[: len(shapes)]] == shapes
    own = numbers(done["layers[0]"], torch.float32)
    mixed = dataclasses.replace(first, mixer=dataclasses.replace(first.mixer, qkv=own.mixer.qkv))
    rope, x = numbers(params.rope, torch.float32), params.embed.float()[ids()]

    def forward(p):
        past = sequential.layer.init_past(p, 12)
        return sequential.layer.sequence(p, past, x, rope)

    inputs, _ = hessian.capture(mixed, forward)
    y = inputs["mixer.out"]
    torch.testing.assert_close(seen[1][1].h, y.t() @ y, rtol=1e-4, atol=1e-3)


def test_the_same_to_the_bit_again():
    a, b = quantised(Recipe("gptaq")), quantised(Recipe("gptaq"))
    for name, tensor in tensors(a).items():
        assert torch.equal(tensor, tensors(b)[name]), name


class Killed(Exception):
    pass


class Dying(Files):
    def put(self, name, part):
        if name == "lm_head":
            raise Killed
        super().put(name, part)


def test_an_interrupted_run_goes_on(tmp_path):
    whole = quantised(Recipe("gptaq"))
    note = {"method": "gptaq", "sha256": "x"}
    with pytest.raises(Killed):
        quantised(Recipe("gptaq"), Dying(tmp_path / "parts", note))
    (tmp_path / "parts" / ".layers[1].safetensors.77").write_bytes(b"half")  # killed while writing
    shelf = Files(tmp_path / "parts", note)
    again = quantised(Recipe("gptaq"), shelf)
    assert shelf.reused == ["layers[0]", "layers[1]"]
    for name, tensor in tensors(whole).items():
        assert torch.equal(tensor, tensors(again)[name]), name
    third = Files(tmp_path / "parts", note)
    quantised(Recipe("gptaq"), third)
    assert third.reused == ["layers[0]", "layers[1]", "lm_head", "mtp"]
    with pytest.raises(ValueError, match="holds parts of a run with another model, text or recipe"):
        Files(tmp_path / "parts", {**note, "method": "gptq"})


@pytest.mark.parametrize("head", [True, False])
def test_the_folder_loads_as_it_was(tmp_path, head):
    params, mtp = quantised(Recipe("mse"), with_head=head)
    folder.save_target(
        tmp_path / "made", SHAPE, params, mtp, (3,), {"method": "mse"}, {"a.txt": "b"}
    )
    loaded = load_target(tmp_path / "made")
    assert loaded.config.tie_embeddings is not head and loaded.eos == (3,)
    for want, got in ((params, loaded.params), (mtp, loaded.mtp)):
        have = tensors(got)
        assert list(have) == list(tensors(want))
        for name, tensor in tensors(want).items():
            assert torch.equal(tensor, have[name]), name
    assert not loaded.warnings and (tmp_path / "made" / "a.txt").read_text() == "b"


def test_tuning_brings_the_laws_nearer():
    whole, _ = model()
    start, _ = quantised(Recipe("gptaq"), with_mtp=False)
    losses = []
    settings = Settings(steps=30, batch=4, grid_rate=0.003, other_rate=0.001)
    done = tune(whole, start, ids(), settings, lambda step, x: losses.append(x))
    assert len(losses) == 30 and loss(done, whole, ids()) < 0.8 * loss(start, whole, ids())
    assert torch.equal(done.embed, start.embed)
    assert bits_per_weight(done) == bits_per_weight(start)
    before, after = (int4.unpack(p.layers[0].mlp.gate_up)[0] for p in (start, done))
    assert torch.equal(before, after)
    again = tune(whole, start, ids(), settings)
    for name, tensor in tensors(done).items():
        assert torch.equal(tensor, tensors(again)[name]), name


def test_what_is_tuned_is_what_is_stored():
    """The forward that learns reads the very numbers that `finish` stores."""
    start, _ = quantised(Recipe("gptaq"), with_mtp=False)
    student = Student(start)
    for matrix in student.matrices.values():
        with torch.no_grad():
            matrix.factor += 0.01 * torch.randn_like(matrix.factor)
            matrix.shift += 0.1 * torch.randn_like(matrix.shift)
    ours, theirs = student.view(), numbers(student.finish(), torch.float32)
    assert list(tensors(ours)) == list(tensors(theirs))
    for name, tensor in tensors(theirs).items():
        assert torch.equal(tensors(ours)[name], tensor), name
