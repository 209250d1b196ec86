"""Drawing: the noise's law and independence, what each cut leaves, the law of what is drawn."""

import itertools
import math

import pytest
import torch

from kernels.accept import accepted
from kernels.define import VARIANTS
from kernels.sample import argmax_lowest, gumbel, mix, survivors
from tr.tree import unchecked

RARE = 1e-4  # a p-value below it is taken for a fault; the draws are the same in every run
EULER = 0.5772156649015329
HERE = sorted(set(VARIANTS["sample"]) - {"triton"})  # that one: tests/kernels/test_triton.py
VARIANT = pytest.mark.parametrize("variant", HERE)
SEED = torch.tensor([0xDEADBEEF, 0x12345678])


def call(variant, logits, position=0, heat=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=SEED, ids=None):
    scalars = (torch.tensor(v) for v in (position, heat, top_k, top_p, min_p))
    return VARIANTS["sample"][variant](logits, *scalars, seed, ids or logits.shape[1])


def chi_square_p(counts: torch.Tensor, law: torch.Tensor) -> float:
    """Upper tail of Pearson's statistic; cells of `law` without mass must have no counts."""
    assert counts[law == 0].sum() == 0
    counts, law = counts[law > 0].double(), law[law > 0].double()
    expected = law / law.sum() * counts.sum()
    assert expected.min() > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(law) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def unxorshift(x: int, shift: int) -> int:
    out = x
    for _ in range(32 // shift + 1):
        out = x ^ (out >> shift)
    return out


def test_mix_by_integers():
    """The same words as plain Python, and back through the inverse: a bijection of 32 bits."""
    words = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 123456789]
    words += torch.randint(0, 2**32, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    mixed = mix(torch.tensor(words)).tolist()
    for word, got in zip(words, mixed, strict=True):
        x = word ^ (word >> 16)
        x = x * 0x21F0AAAD % 2**32
        x ^= x >> 15
        x = x * 0x735A2D97 % 2**32
        assert got == x ^ (x >> 15) < 2**32
        back = unxorshift(got, 15) * pow(0x735A2D97, -1, 2**32) % 2**32
        back = unxorshift(back, 15) * pow(0x21F0AAAD, -1, 2**32) % 2**32
        assert unxorshift(back, 16) == word
    assert mix(torch.tensor([0, 1, 2**32 - 1])).tolist() == [0, 0x86D2FA73, 0x99B5E683]
    assert len(set(mix(torch.arange(100_000)).tolist())) == 100_000


def test_mix_spreads_every_bit():
    x = torch.arange(20_000)
    for bit in range(32):
        flips = mix(x) ^ mix(x ^ (1 << bit))
        share = torch.stack([(flips >> b & 1).float().mean() for b in range(32)])
        assert (share - 0.5).abs().max() < 0.05, bit


def ks_distance(values: torch.Tensor) -> float:
    """The largest gap between the empirical law and exp(-exp(-x))."""
    law = torch.exp(-torch.exp(-values.double().sort().values))
    step = torch.arange(len(law) + 1).double() / len(law)
    return float(torch.maximum((law - step[:-1]).abs(), (law - step[1:]).abs()).max())


def test_noise_has_the_gumbel_law_along_tokens_and_along_positions():
    n = 200_000
    samples = {
        "tokens": gumbel(SEED, torch.tensor(17), torch.arange(n)),
        "positions": gumbel(SEED, torch.arange(n), torch.tensor(5)),
        "seeds": gumbel(torch.stack([torch.arange(n), torch.zeros(n).long()]), SEED[0], SEED[1]),
        "high seeds": gumbel(
            torch.stack([torch.zeros(n).long(), torch.arange(n)]), SEED[0], SEED[1]
        ),
    }
    for name, noise in samples.items():
        assert noise.dtype == torch.float32 and noise.isfinite().all(), name
        assert ks_distance(noise) < 1.95 / n**0.5, name  # one in a thousand; the seed is fixed
        assert abs(noise.mean() - EULER) < 4 * math.pi / math.sqrt(6 * n), name
        assert abs(noise.var() - math.pi**2 / 6) < 0.04, name


def test_noise_is_finite_at_the_ends_of_the_word():
    """v = min((bits + 0.5) / 2^32, 1 - 2^-24): neither 0 nor 1, where the noise is infinite."""
    bits = torch.tensor([0, 1, 2**32 - 1, 2**32 - 100])
    v = ((bits.float() + 0.5) / 2**32).clamp(max=1 - 2**-24)
    assert v.min() > 0 and v.max() < 1
    assert (-torch.log(-torch.log1p(-v))).isfinite().all()
    noise = gumbel(SEED, torch.arange(1000)[:, None], torch.arange(1000))
    assert noise.isfinite().all() and noise.max() < 17.5 and noise.min() > -3.5


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def test_positions_and_seeds_do_not_share_noise():
    """Neither token by token nor as another order of the same numbers."""
    n = 50_000
    tokens = torch.arange(n)
    base = gumbel(SEED, torch.tensor(100), tokens)
    others = {f"position {p}": gumbel(SEED, torch.tensor(p), tokens) for p in (99, 101, 102, 612)}
    for i, seed in enumerate(([SEED[0] ^ 1, SEED[1]], [SEED[0], SEED[1] ^ 1], [SEED[1], SEED[0]])):
        others[f"seed {i}"] = gumbel(torch.stack(seed), torch.tensor(100), tokens)
    for name, noise in others.items():
        assert abs(correlation(base, noise)) < 4.5 / n**0.5, name
        assert abs(correlation(base[1:], noise[:-1])) < 4.5 / n**0.5, name
        shared = len(set(base.tolist()) & set(noise.tolist())) / len(set(base.tolist()))
        assert shared < 0.05, name  # fp32 noise has few values in its tails
    pairs = gumbel(SEED, torch.arange(n), torch.tensor(0))
    assert abs(correlation(pairs, gumbel(SEED, torch.arange(n), torch.tensor(1)))) < 4.5 / n**0.5


def test_no_two_positions_have_the_same_noise_in_another_order():
    """With one key a row, keys that differ in low bits only would permute the noise of 8 tokens."""
    n = 200_000
    noise = gumbel(SEED, torch.arange(n)[:, None], torch.arange(8)).sort(-1).values
    assert len(noise.unique(dim=0)) == n


@VARIANT
def test_the_lowest_id_wins_a_tie(variant):
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, 1.0, 0.0, 1.0]])
    for dtype in (torch.float32, torch.bfloat16):
        got = call(variant, logits.to(dtype), heat=0.0)
        assert got.dtype == torch.int64 and got.tolist() == [1, 0, 1]
    wide = torch.zeros(1, 200_000)
    wide[0, [70_001, 123_456]] = 1.0
    assert call(variant, wide, heat=0.0).tolist() == [70_001]
    assert int(argmax_lowest(torch.tensor([0.0, 2.0, 2.0]))) == 1


@VARIANT
def test_a_cut_keeps_the_lowest_ids_among_equals(variant):
    logits = torch.zeros(400, 6)
    assert set(call(variant, logits, top_k=2).tolist()) == {0, 1}
    assert set(call(variant, logits, top_p=0.5).tolist()) == {0, 1, 2}
    assert set(call(variant, logits, min_p=1.0).tolist()) == {0, 1, 2, 3, 4, 5}


def test_min_p_is_cut_before_top_p():
    """The mass that top-p shares out is what min-p left: 0.5, 0.3 and 0.2 of the whole law."""
    scores = torch.tensor([0.4, 0.24, 0.16, 0.1, 0.1]).log()
    assert survivors(scores, 0, 0.75, 0.0).tolist() == [0, 1, 2]
    assert survivors(scores, 0, 0.75, 0.3).tolist() == [0, 1]
    assert survivors(scores, 2, 0.6, 0.3).tolist() == [0]


@VARIANT
def test_cuts_at_their_ends(variant):
    """A tiny top-p or a min-p of 1 keep the best; a wide top-k keeps all; heat may be extreme."""
    logits = torch.randn(50, 30)
    best = logits.argmax(1)
    for cut in ({"top_p": 1e-30}, {"top_k": 1}, {"min_p": 1.0}, {"heat": 1e-5, "top_p": 0.9}):
        assert torch.equal(call(variant, logits, **cut), best), cut
    free = call(variant, logits)
    for cut in ({"top_k": 31}, {"top_k": 2**31}, {"top_p": 1.0}, {"min_p": 1e-30}):
        assert torch.equal(call(variant, logits, **cut), free), cut
    assert len(set(call(variant, logits[:1].expand(50, -1), heat=100.0).tolist())) > 15
    nothing = torch.full((2, 9), -torch.inf)
    for cut in ({}, {"heat": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert call(variant, nothing, **cut).tolist() == [0, 0], cut


@VARIANT
@pytest.mark.parametrize("heat", [0.0, 0.7, 50.0])
def test_padding_ids_are_never_drawn(variant, heat):
    logits = torch.randn(200, 12)
    logits[:, 8:] = 100.0
    logits[::2, 8:] = torch.nan
    for cut in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        got = call(variant, logits, heat=heat, ids=8, **cut)
        alone = call(variant, logits[:, :8].contiguous(), heat=heat, **cut)
        assert int(got.max()) < 8 and torch.equal(got, alone)


def brute_survivors(scores: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Min-p, then top-k, then top-p, each on what the ones before it left."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    top = scores[order[0]]
    weight = {i: math.exp(scores[i] - top) for i in order}
    order = [i for i in order if weight[i] >= min_p][: top_k or len(order)]
    weight = {i: weight[i] for i in order}
    total, mass, kept = sum(weight.values()), 0.0, []
    for i in order:
        if mass < top_p:
            kept.append(i)
        mass += weight[i] / total
    return set(kept)


CUTS = [
    {"top_k": 1}, {"top_k": 5}, {"top_k": 100}, {"top_p": 0.1}, {"top_p": 0.7}, {"top_p": 0.999},
    {"min_p": 0.05}, {"min_p": 0.4}, {"min_p": 1.0}, {"top_k": 6, "top_p": 0.8},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.1}, {"top_p": 0.95, "min_p": 0.02},
]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_survivors_by_brute_force(cut):
    cut = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **cut}
    sizes = set()
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        scores = (seed % 4 + 0.5) * torch.randn(30, generator=g)
        got = survivors(scores, **cut)
        assert set(got.tolist()) == brute_survivors(scores.double().tolist(), **cut), seed
        assert got[0] == scores.argmax()
        assert (scores[got].diff() <= 0).all()  # most likely first
        sizes.add(len(got))
    fixed = cut["top_p"] == 1.0 and cut["min_p"] in (0.0, 1.0)
    assert (len(sizes) == 1) == fixed


def law_of(logits: torch.Tensor, heat: float, cut: dict[str, float]) -> torch.Tensor:
    scores = logits.double() / heat
    kept = brute_survivors(scores.tolist(), **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **cut})
    masked = torch.full_like(scores, -torch.inf)
    for i in kept:
        masked[i] = scores[i]
    return masked.softmax(0)


def drawn(logits: torch.Tensor, law: torch.Tensor, heat: float, draws: int) -> torch.Tensor:
    """What the operator draws at positions 0 .. draws - 1, all at once; `law` says who survives."""
    noisy = logits / heat + gumbel(SEED, torch.arange(draws)[:, None], torch.arange(len(logits)))
    return noisy.masked_fill(law == 0, -torch.inf).argmax(-1)


@VARIANT
@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize("heat", [0.3, 1.0, 1.7])
def test_frequencies_have_the_exact_law(variant, heat, cut):
    """Chi-square over 200,000 draws; the first 1,000 are checked to be the operator's own."""
    logits = torch.tensor([0.0, 1.0, -0.5, 0.6, 0.3, -1.2, 0.9, 0.1])
    law = law_of(logits, heat, cut)
    draws = drawn(logits, law, heat, 200_000)
    with unchecked():
        own = call(variant, logits.expand(1000, -1), heat=heat, **cut)
    assert torch.equal(own, draws[:1000])
    assert chi_square_p(draws.bincount(minlength=8), law) > RARE


def test_chi_square_notices_a_small_bias():
    law = torch.tensor([0.5, 0.3, 0.2])
    biased = torch.tensor([0.495, 0.305, 0.2]) * 200_000
    assert chi_square_p(biased, law) < RARE
    assert chi_square_p(law * 200_000, law) > 0.99


@VARIANT
def test_row_count_and_place_change_nothing(variant):
    """Row i of a call at position p draws what a single row at position p + i draws."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(16, 500, generator=g)
    for dtype in (torch.float32, torch.bfloat16):
        rows = logits.to(dtype)
        for cut in ({}, {"top_k": 30, "top_p": 0.9, "min_p": 0.01}):
            for heat in (0.0, 0.9):
                whole = call(variant, rows, position=40, heat=heat, **cut)
                for start, stop in itertools.combinations((0, 1, 2, 5, 8, 15, 16), 2):
                    part = call(variant, rows[start:stop], position=40 + start, heat=heat, **cut)
                    assert torch.equal(part, whole[start:stop])
    assert len(set(call(variant, rows[:1].expand(16, -1), position=3).tolist())) > 4


# Speculation with a draft that is right by chance: the joint law of three tokens

LAWS = torch.tensor(
    [  # [position, token before, token]
        [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]],
        [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.1, 0.8]],
        [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]],
    ]
)


def cut_law(laws: torch.Tensor, heat: float, top_p: float) -> torch.Tensor:
    cut = {"top_p": top_p}
    rows = [law_of(row, heat, cut) for row in laws.log().flatten(0, 1)]
    return torch.stack(rows).view(laws.shape)


@pytest.mark.parametrize("draft", [0, 1, 2, "stochastic"])
@pytest.mark.parametrize("heat, top_p", [(0.3, 1.0), (0.7, 1.0), (1.0, 0.9), (1.7, 1.0)])
def test_joint_law_of_three_tokens(draft, heat, top_p):
    """Each text is decoded by propose, verify and accept until it has three tokens.

    The target's draw is committed whatever the draft said, so the law is the target's; a second
    draw after a mismatch would bias it. Drafts are point masses, or drawn from (0.1, 0.1, 0.8).
    """
    texts = 100_000
    laws = cut_law(LAWS, heat, top_p)
    scores = LAWS.log() / heat
    positions = 3 * torch.arange(texts)[:, None] + torch.arange(3)  # each text has its own
    noise = gumbel(SEED, positions[:, :, None], torch.arange(3))  # [texts, position, token]
    noisy = scores.masked_fill(laws == 0, -torch.inf) + noise[:, :, None]
    choice = noisy.argmax(-1)  # [texts, position, token before]: the target's draw there
    g = torch.Generator().manual_seed(1)
    if draft == "stochastic":
        chances = torch.tensor([0.1, 0.1, 0.8]).expand(texts, -1)
        drafts = chances.multinomial(2, replacement=True, generator=g)
    else:
        drafts = torch.full((texts, 2), draft)
    every = torch.arange(texts)
    accept_all = torch.vmap(accepted)
    text = torch.full((texts, 3), -1)
    done = torch.zeros(texts, dtype=torch.int64)
    before = torch.zeros(texts, dtype=torch.int64)
    steps = 0
    with unchecked():
        while (done < 3).any():
            steps += 1
            # rows: the anchor and both drafts, at positions done, done + 1, done + 2
            inputs = torch.cat([before[:, None], drafts], 1)
            at = (done[:, None] + torch.arange(3)).clamp(max=2)
            chosen = choice[every[:, None], at, inputs]
            right = accept_all(drafts, chosen)
            for row in range(3):
                use = (row <= right) & (done + row < 3)
                text[every[use], done[use] + row] = chosen[use, row]
            done = done + right + 1
            last = text.gather(1, (done - 1).clamp(max=2)[:, None])[:, 0]
            before = torch.where(done < 3, last, before)
    assert steps > 1 and (text >= 0).all()
    joint = laws[0, 0][:, None, None] * laws[1][:, :, None] * laws[2][None]
    counts = (text @ torch.tensor([9, 3, 1])).bincount(minlength=27)
    rare = joint.flatten() * texts < 20
    merged = torch.cat([counts[~rare], counts[rare & (joint.flatten() > 0)].sum()[None]])
    law = torch.cat([joint.flatten()[~rare], joint.flatten()[rare].sum()[None]])
    assert counts[joint.flatten() == 0].sum() == 0
    if law[-1] * texts < 20:  # too few to judge: with the smallest of the others
        merged[-2], law[-2] = merged[-2] + merged[-1], law[-2] + law[-1]
        merged, law = merged[:-1], law[:-1]
    assert chi_square_p(merged, law) > RARE
