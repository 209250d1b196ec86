"""Against transformers: bit-identical in bfloat16, within 1e-3 in float32."""

from typing import NamedTuple

import pytest
import torch
from transformers import Qwen3_5ForCausalLM

from kernels.registry import select
from tests.model import oracle
from tr.checkpoint.load import Target, load_target
from tr.checkpoint.save import save_target
from tr.model import mtp, text
from tr.nn.rope import Rope
from tr.tree import tensors

pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
PROMPT, DECODED = 150, 32
EIGHT = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
SECOND = {
    **EIGHT,
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"] * 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
    "tie_word_embeddings": True,
}


class Run(NamedTuple):
    """What transformers says: prompt, its logits, then one token and its logits per step."""

    model: Qwen3_5ForCausalLM
    prompt: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor  # after the final norm
    steps: list[tuple[torch.Tensor, torch.Tensor]]


def record(model: Qwen3_5ForCausalLM) -> Run:
    g = torch.Generator().manual_seed(2)
    prompt = torch.randint(0, model.config.vocab_size, (PROMPT,), generator=g)
    steps = []
    with torch.inference_mode():
        out = model(prompt[None], use_cache=True, output_hidden_states=True)
        first, hidden = out.logits[0], out.hidden_states[-1][0]
        token = first[-1].argmax()
        for _ in range(DECODED):
            out = model(token[None, None], past_key_values=out.past_key_values, use_cache=True)
            steps.append((token, out.logits[0, 0]))
            token = out.logits[0, 0].argmax()
    return Run(model, prompt, first, hidden, steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def run(folder):
    model = oracle.random_model(torch.bfloat16, **EIGHT)
    return record(oracle.save(model, folder / "text"))


def replay(target: Target, run: Run) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """This project's logits for the same tokens: the prompt at once, then row by row."""
    ops = select("reference")
    params = target.params
    with torch.inference_mode():
        state = text.init_state(params, 256, 16)
        hidden, _, state = text.prefill(params, state, run.prompt, ops)
        logits = params.head.sequence(hidden[None])[0]
        decoded = []
        for token, _ in run.steps:
            rows, state = text.step(params, state, token[None], ops)
            state = text.commit(state, torch.tensor(1))
            decoded.append(rows.logits[0])
    return logits, decoded


def assert_identical(target: Target, run: Run) -> None:
    logits, decoded = replay(target, run)
    assert logits.dtype == torch.bfloat16 and torch.equal(logits, run.logits)
    for i, (ours, (_, theirs)) in enumerate(zip(decoded, run.steps, strict=True)):
        assert torch.equal(ours, theirs), f"decoded token {i}"


def test_the_oracle_is_a_model_worth_matching(run):
    """Chosen tokens vary and nothing saturates: a wrong gain or order would show."""
    assert len({int(token) for token, _ in run.steps}) > DECODED // 2
    assert 0.3 < run.logits.float().std() < 10


def test_bfloat16_is_bit_identical(run, folder):
    assert_identical(load_target(folder / "text"), run)


def test_the_release_layout_gives_the_same_bits(run, folder):
    oracle.release_layout(folder / "text", folder / "release", torch.bfloat16)
    target = load_target(folder / "release")
    assert target.mtp is not None and target.skipped == ("model.visual.pos_embed.weight",)
    assert_identical(target, run)
    theirs = Qwen3_5ForCausalLM.from_pretrained(folder / "release", dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        assert torch.equal(theirs(run.prompt[None]).logits[0], run.logits)


def test_transformers_reads_what_we_save(run, folder):
    target = load_target(folder / "text")
    save_target(folder / "ours", target.config, target.params, None, target.eos, 10**6)
    theirs = Qwen3_5ForCausalLM.from_pretrained(folder / "ours", dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        assert torch.equal(theirs(run.prompt[None]).logits[0], run.logits)


@pytest.mark.parametrize("shape", [EIGHT, SECOND], ids=["eight", "second"])
def test_float32_is_close(shape, tmp_path):
    run = record(oracle.save(oracle.random_model(torch.float32, seed=3, **shape), tmp_path / "m"))
    logits, decoded = replay(load_target(tmp_path / "m"), run)
    assert logits.dtype == torch.float32
    assert (logits - run.logits).abs().max() < 1e-3
    for ours, (_, theirs) in zip(decoded, run.steps, strict=True):
        assert (ours - theirs).abs().max() < 1e-3
        assert ours.argmax() == theirs.argmax()


def test_taps_are_the_residuals_after_their_layers(run, folder):
    params = load_target(folder / "text").params
    with torch.inference_mode():
        theirs = run.model(run.prompt[None], output_hidden_states=True).hidden_states
        _, taps, _ = text.sequence(params, text.init_past(params, 1), run.prompt[None], (1, 3, 6))
    assert torch.equal(taps, torch.cat([theirs[i + 1] for i in (1, 3, 6)], -1))


def test_the_mtp_head_in_float32_is_bit_identical(tmp_path):
    modeling = pytest.importorskip("transformers.modeling_layers")
    caches = pytest.importorskip("transformers.cache_utils")
    if not hasattr(modeling, "MtpModel") or not hasattr(caches, "MtpCache"):
        pytest.skip("this transformers has no multi-token-prediction model")
    oracle.save(oracle.random_model(torch.float32, seed=4, **EIGHT), tmp_path / "text")
    weights = oracle.release_layout(tmp_path / "text", tmp_path / "release", torch.float32)
    model = Qwen3_5ForCausalLM.from_pretrained(tmp_path / "release", dtype=torch.float32).eval()
    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types = ["full_attention"]
    theirs = modeling.MtpModel.from_pretrained(model).eval()
    run = record(model)
    target = load_target(tmp_path / "release")
    params, head = target.params, target.mtp
    assert head is not None
    assert len(tensors(head)) == len(weights) - 3  # q, k and v are one, gate and up are
    tokens, hidden = run.prompt[1:], run.hidden[:-1]
    with torch.inference_mode():
        position = torch.arange(1, PROMPT)[None]
        cache = caches.MtpCache(config=model.config.get_mtp_config())
        want = theirs.forward_layer(0, hidden[None], position, cache, input_ids=tokens[None])
        want = want[0] if isinstance(want, tuple) else want
        # the published head puts pair t at position t + 1
        later = Rope(cos=params.rope.cos[1:], sin=params.rope.sin[1:])
        past = mtp.layer.init_past(head.layer, 1)
        own, _ = mtp.sequence(head, past, params.embed, tokens[None], hidden[None], later)
        logits = params.head.sequence(own)
        assert want.shape in (own.shape, logits.shape)
        assert torch.equal(own if want.shape == own.shape else logits, want)
        # our cache rows count from 0; rotations are relative, so only rounding differs
        ours, _ = mtp.sequence(head, past, params.embed, tokens[None], hidden[None], params.rope)
    assert (ours - own).abs().max() < 1e-4
