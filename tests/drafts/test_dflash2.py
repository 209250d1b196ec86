"""The block draft against plain statements of it: context, window, convolution, mask, selector."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from kernels.sample import gumbel
from tests.decode.small import DRAFT, IDS, model, random_draft
from tests.model.small import copy, random_tokens
from tr.checkpoint.load import skeleton
from tr.drafts import dflash2
from tr.drafts import dflash2_net as net
from tr.drafts.base import Feed
from tr.drafts.dflash2 import Dflash2, ring_rows
from tr.drafts.head import whole
from tr.model.sampling import Sampling, sampling
from tr.tree import replace_tensors, tensors

BLOCK, WINDOW, ROWS = DRAFT.block, DRAFT.window, 8
RING = ring_rows(DRAFT, WINDOW)
WIDTH = len(DRAFT.taps) * DRAFT.d_model
RELEASE = {  # the released draft of the 27B model
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "is_causal": False,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "vocab_size": 248320,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_target_layers": 64,
    "max_position_embeddings": 262144,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def make(config: net.Config = DRAFT, window: int = WINDOW) -> Dflash2:
    """In float32, so that roundings decide nothing."""
    target = model(dtype=torch.float32).params
    head = whole(target.head, IDS)
    return Dflash2(random_draft(config, torch.float32), target, BLOCK - 1, head, window)


def residuals(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def prime(draft: Dflash2, taps: torch.Tensor, cuts: list[int] = []) -> dflash2.State:  # noqa: B006
    state, pos = draft.init_state(1024), 0
    for part in taps.tensor_split(cuts):
        state = draft.prime(state, torch.zeros(len(part)), part, part, pos)
        pos += len(part)
    return state


def feed(pos: int, count: int, taps: torch.Tensor, anchor: int = 7) -> Feed:
    """The start of a step: taps [pos, WIDTH] are all the text's; the last `count` are still new."""
    rows = torch.full((ROWS, WIDTH), 50.0)  # what rejected rows left behind
    rows[:count] = taps[pos - count : pos]
    history = random_tokens(pos + 1)
    history[pos] = anchor
    return Feed(
        anchor=torch.tensor(anchor),
        pos=torch.tensor(pos),
        count=torch.tensor(count),
        hidden=rows[:, :1],
        taps=rows,
        history=history,
    )


@pytest.fixture
def hidden(monkeypatch) -> list[torch.Tensor]:
    """The block's final hidden rows of each proposal from here on."""
    seen, walk = [], dflash2.walk

    def spy(params, rows, *rest):
        seen.append(rows)
        return walk(params, rows, *rest)

    monkeypatch.setattr(dflash2, "walk", spy)
    return seen


def plainly(draft: Dflash2, taps: torch.Tensor, anchor: int) -> torch.Tensor:
    """Hidden rows 1 .. block - 1 with keys of every position of the text, masked row by row."""
    pos = len(taps)
    past = net.context(draft.params, taps[None], torch.arange(pos)[None])
    seen = torch.zeros(BLOCK, pos, dtype=torch.bool)
    for i in range(BLOCK):
        for j in range(pos):
            seen[i, j] = pos + i - j < draft.window
    ids = [anchor] + [DRAFT.mask_token] * (BLOCK - 1)
    x = draft.target.embed[ids][None]
    return net.block(draft.params, past, x, pos + torch.arange(BLOCK)[None], seen[None])[0, 1:]


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("pos", [9, WINDOW, WINDOW + 5, RING, RING + 1, 3 * RING + 17])
def test_the_ring_equals_a_full_cache(hidden, pos, count):
    draft, taps = make(), residuals(pos)
    state = prime(draft, taps[: pos - count])
    drafts, _ = draft.propose(state, feed(pos, count, taps), sampling())
    exact = plainly(draft, taps, 7)
    torch.testing.assert_close(hidden[0], exact, rtol=1e-4, atol=1e-4)
    assert drafts.shape == (7,) and int(drafts.max()) < IDS


def test_many_steps_round_the_ring(hidden):
    """Step after step with all counts, rejected rows written in between."""
    draft, taps = make(), residuals(4 * RING)
    pos = 10
    state = prime(draft, taps[: pos - 1])
    count = 1
    for i in range(40):
        _, state = draft.propose(state, feed(pos, count, taps), sampling())
        torch.testing.assert_close(
            hidden[-1], plainly(draft, taps[:pos], 7), rtol=1e-4, atol=1e-4, msg=str(i)
        )
        count = 1 + i * 5 % 8
        pos += count


@pytest.mark.parametrize("count", [1, 8])
def test_each_row_has_its_own_window(hidden, count):
    """Row i at position P + i sees keys above P + i - window: the last row 7 fewer than the first.

    One layer and convolutions without a second tap, so that rows meet in the block's keys alone,
    which the context does not change.
    """
    config = dataclasses.replace(DRAFT, layers=1)
    draft = make(config)
    still = {
        name: torch.ones_like(t) if name.endswith("base") else torch.zeros_like(t)
        for name, t in tensors(draft.params).items()
        if "conv" in name
    }
    for name, t in still.items():
        if name.endswith("base"):
            t[:, 1] = 0
    draft = dataclasses.replace(draft, params=replace_tensors(draft.params, still))
    pos = 50
    taps = residuals(pos)

    def rows(taps: torch.Tensor) -> torch.Tensor:
        draft.propose(prime(draft, taps[: pos - count]), feed(pos, count, taps), sampling())
        return hidden[-1]

    before = rows(taps)
    for j in range(pos - WINDOW - 2, pos):
        other = taps.clone()
        other[j] += 3.0
        changed = (rows(other) != before).any(-1)
        expected = torch.tensor([pos + i - j < WINDOW for i in range(1, BLOCK)])
        assert torch.equal(changed, expected), j
    assert pos + 7 - (pos - WINDOW + 7) == WINDOW  # the first key that row 7 does not see


def test_a_smaller_window_is_obeyed(hidden):
    draft, taps = make(window=6), residuals(40)
    draft.propose(prime(draft, taps[:39]), feed(40, 1, taps), sampling())
    torch.testing.assert_close(hidden[0], plainly(draft, taps, 7), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cuts", [[1], [64, 128], [5, 6, 100], [RING, RING + 1]], ids=str)
def test_priming_in_chunks_equals_priming_at_once(cuts):
    draft, taps = make(), residuals(3 * RING + 9)
    whole, parts = prime(draft, taps), prime(draft, taps, cuts)
    for name, t in tensors(parts).items():
        torch.testing.assert_close(t, tensors(whole)[name], rtol=1e-5, atol=1e-5, msg=name)
        assert (t != 0).any(-1).all()


def test_positions_past_the_draft_s_table_are_left_out():
    draft = make(dataclasses.replace(DRAFT, max_positions=40))
    taps = residuals(60)
    state = prime(draft, taps[:30])
    before = copy(state)
    state = draft.prime(state, torch.zeros(30), taps[30:], taps[30:], 30)
    want = prime(draft, taps[:40])
    for name, t in tensors(state).items():
        torch.testing.assert_close(t, tensors(want)[name], rtol=1e-5, atol=1e-5)
    after = draft.prime(copy(state), torch.zeros(5), taps[:5], taps[:5], 60)
    assert all(torch.equal(t, tensors(state)[name]) for name, t in tensors(after).items())
    assert not torch.equal(state.ring[0].k, before.ring[0].k)
    assert draft.reach == 40 - BLOCK + 1


def block_inputs(blocks: int, seed: int = 3):
    """Embeddings, positions and context masks of whole blocks, over a context of 12 keys."""
    g = torch.Generator().manual_seed(seed)
    rows = blocks * BLOCK
    x = torch.randn(1, rows, DRAFT.d_model, generator=g)
    positions = 20 + torch.arange(rows)[None]
    seen = torch.rand(1, rows, 12, generator=g) < 0.7
    return x, positions, seen


def test_blocks_in_one_call_do_not_meet():
    params = random_draft(dtype=torch.float32)
    past = net.context(params, residuals(12)[None], torch.arange(12)[None])
    x, positions, seen = block_inputs(3)
    whole = net.block(params, past, x, positions, seen)
    for i in range(3):
        part = slice(i * BLOCK, (i + 1) * BLOCK)
        alone = net.block(params, past, x[:, part], positions[:, part], seen[:, part])
        torch.testing.assert_close(whole[:, part], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [0, 1])
def test_convolution_formula(side):
    """out[i] = sum_j (base[j] + dynamic[i, j]) z[i - j]; the row before a block is zero."""
    c = dataclasses.replace(DRAFT, d_model=32)
    g = torch.Generator().manual_seed(0)
    conv = random_draft(c, torch.float32).layers[0].attention_conv
    z = torch.randn(1, 2 * BLOCK, 32, generator=g)
    dynamic = torch.randn(1, 2 * BLOCK, 2 * 2 * 2, generator=g)  # side, tap, group
    out = net._conv(conv, c, side, dynamic, z)
    for row in range(2 * BLOCK):
        for channel in range(32):
            value = 0.0
            for tap in range(2):
                if row % BLOCK >= tap:
                    at = side * 4 + tap * 2 + channel // c.conv_group
                    gain = conv.base[side, tap, channel] + dynamic[0, row, at]
                    value += float(gain * z[0, row - tap, channel])
            assert abs(value - float(out[0, row, channel])) < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_a_block_see_it_whole_unless_causal(causal):
    params = random_draft(dataclasses.replace(DRAFT, causal=causal), torch.float32)
    past = net.context(params, residuals(12)[None], torch.arange(12)[None])
    x, positions, seen = block_inputs(1)
    before = net.block(params, past, x, positions, seen)
    x[0, 5] += 1.0
    changed = (net.block(params, past, x, positions, seen) != before).any(-1)[0]
    assert changed.tolist() == [not causal] * 5 + [True] * 3


def test_the_release_s_config_and_size():
    config = net.Config.from_hf(RELEASE)
    assert config.taps == (5, 19, 33, 47, 61) and config.mask_token == 248070
    assert (config.window, config.block, config.causal) == (2048, 8, False)
    assert (config.heads * config.d_head, config.rope_theta) == (4096, 1e7)
    assert (config.input_scale, config.output_multiplier, config.softcap) == (1.0, 1.0, None)
    written = config.to_hf(64)
    assert {key: written[key] for key in RELEASE} == RELEASE
    assert net.Config.from_hf(written) == config
    params = skeleton(lambda g: net.init(config, g, torch.bfloat16))
    sizes = [math.prod(t.shape) for k, t in tensors(params).items() if "rope" not in k]
    assert sum(sizes) == 1_924_404_480
    per_layer = (k for k in tensors(params) if k.startswith("layers[0]"))
    assert sum(math.prod(tensors(params)[k].shape) for k in per_layer) == 332_974_336
    assert ring_rows(config, config.window) == 4096


def test_config_fields_that_other_drafts_set():
    own = {
        **RELEASE["dflash_config"],
        "input_embedding_scale": 26**-0.5,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 20.0,
    }
    config = net.Config.from_hf({**RELEASE, "dflash_config": own})
    assert (config.input_scale, config.output_multiplier, config.softcap) == (26**-0.5, 0.5, 20.0)
    assert net.Config.from_hf(config.to_hf(64)) == config
    unset = {k: v for k, v in RELEASE.items() if k not in ("is_causal", "use_sliding_window")}
    assert net.Config.from_hf(unset).causal  # sliding layers, where nothing says otherwise
    full = net.Config.from_hf({**unset, "sliding_window": None})
    assert not full.causal and full.window == 262144
    for missing in ("dflash_config", "head_dim"):
        with pytest.raises(ValueError, match=f"{missing} is missing"):
            net.Config.from_hf({k: v for k, v in RELEASE.items() if k != missing})
    del own["block_size"]
    with pytest.raises(ValueError, match="block_size is missing"):
        net.Config.from_hf({**RELEASE, "block_size": 8, "dflash_config": own})


def test_scale_multiplier_and_softcap_act():
    scaled = dataclasses.replace(DRAFT, input_scale=0.25)
    params, other = (random_draft(c, torch.float32) for c in (DRAFT, scaled))
    past = net.context(params, residuals(12)[None], torch.arange(12)[None])
    x, positions, seen = block_inputs(1)
    want = net.block(params, past, 0.25 * x, positions, seen)
    assert torch.equal(net.block(other, past, x, positions, seen), want)
    head, rows = model(dtype=torch.float32).params.head, torch.randn(3, DRAFT.d_model)
    capped = dataclasses.replace(DRAFT, output_multiplier=0.5, softcap=2.0)
    got = net.logits(random_draft(capped, torch.float32), head, rows, IDS)
    want = 2.0 * torch.tanh(0.5 * F.linear(rows, head.weight) / 2.0)
    torch.testing.assert_close(got[:, :IDS], want[:, :IDS])
    assert (got[:, IDS:] == -torch.inf).all()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "seed": 2**33 + 1}], ids=str)
def test_the_walk_by_its_formula(settings):
    """d_k = argmax over b of U_k(b) + sum_r A[d_(k-1)]_r h_r B[b]_r, plus T times the noise."""
    s: Sampling = sampling(**settings)
    params = random_draft(dtype=torch.float32)
    books = {
        name: 2 * torch.randn(t.shape)
        for name, t in tensors(params).items()
        if name in ("selector.predecessor", "selector.successor")
    }
    params = replace_tensors(params, books)
    pos, anchor = 31, 5
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        hidden = torch.randn(7, DRAFT.d_model, generator=g)
        logits = torch.randn(7, 96, generator=g)
        scores, best = logits.topk(DRAFT.selector_top, -1)
        path = dflash2.walk(
            params, hidden, torch.tensor(anchor), torch.tensor(pos), best, scores, s
        )
        a, b = params.selector.predecessor.double(), params.selector.successor.double()
        ahead = hidden.double() @ tensors(params)["selector.projection.weight"].double().T
        before, plain = anchor, True
        for k in range(7):
            values = {}
            for token in best[k].tolist():
                pair = float((a[before] * ahead[k] * b[token]).sum())
                noise = 0.0
                if settings:
                    drawn = gumbel(s.seed, torch.tensor(pos + 1 + k), torch.tensor(token))
                    noise = float(s.temperature) * float(drawn)
                values[token] = float(logits[k, token]) + pair + noise
            before = max(values, key=values.__getitem__)
            plain &= before == int(logits[k].argmax())
            assert int(path[k]) == before, (seed, k)
        assert not plain  # the selector decides something


def test_training_s_pair_scores_are_the_walk_s():
    params = random_draft(dtype=torch.float32)
    hidden, logits = torch.randn(7, DRAFT.d_model), torch.randn(7, 96)
    scores, best = logits.topk(4, -1)
    at = torch.tensor(0)
    path = dflash2.walk(params, hidden, torch.tensor(5), at, best, scores, sampling())
    before = torch.cat([torch.tensor([5]), path[:-1]])
    pairs = net.pair_scores(params, hidden, before, best, scores)
    assert torch.equal(best.gather(1, pairs.argmax(-1, keepdim=True))[:, 0], path)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_padding_rows_are_never_drafted(heat):
    draft = make()
    weight = tensors(draft.head)["matrix.weight"].clone()
    weight[IDS:] = 100 * torch.randn(6, DRAFT.d_model)  # would win almost always
    head = replace_tensors(draft.head, {"matrix.weight": weight})
    draft = dataclasses.replace(draft, head=head)
    for seed in range(10):
        taps = residuals(20, seed)
        drafts, _ = draft.propose(
            prime(draft, taps[:19]), feed(20, 1, taps), sampling(heat, seed=seed)
        )
        assert int(drafts.max()) < IDS


@pytest.mark.parametrize(
    "tokens, window, complaint",
    [
        (8, WINDOW, "holds 1 .. 7 drafts, got 8"),
        (0, WINDOW, "holds 1 .. 7 drafts, got 0"),
        (7, WINDOW + 1, f"expected 1 .. {WINDOW}, got {WINDOW + 1}"),
        (7, 0, "got 0"),
    ],
)
def test_settings_that_are_refused(tokens, window, complaint):
    target = model(dtype=torch.float32).params
    with pytest.raises(ValueError, match=complaint):
        Dflash2(random_draft(), target, tokens, whole(target.head, IDS), window)


def test_fewer_drafts_are_the_first_of_the_block():
    draft, taps = make(), residuals(30)
    few = dataclasses.replace(draft, tokens=3)
    a, _ = draft.propose(prime(draft, taps[:29]), feed(30, 1, taps), sampling())
    b, _ = few.propose(prime(few, taps[:29]), feed(30, 1, taps), sampling())
    assert few.rows == 4 and torch.equal(a[:3], b)
