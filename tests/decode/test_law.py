"""The law of what speculation emits when it samples: drafts may cost speed, never probability.

Texts of three tokens over six ids, each decoded by propose, verify and accept on its own positions.
All texts run at once, with the noise of the operator and of `choose`, which are called beside it.
"""

import pytest
import torch
from torch import Tensor

from kernels.accept import accepted
from kernels.define import VARIANTS
from kernels.sample import gumbel, survivors
from tests.kernels.test_sample import chi_square_p
from tr.drafts.head import whole
from tr.drafts.mtp import choose
from tr.model.sampling import Sampling, noiseless, sampling
from tr.nn.formats.dense import Dense
from tr.tree import unchecked

TEXTS, LENGTH, IDS, RARE = 50_000, 3, 6, 1e-3
G = torch.Generator().manual_seed(11)
TARGET = 1.3 * torch.randn(LENGTH, IDS, IDS, generator=G)  # [position, token before, token]
DRAFT = TARGET + 0.7 * torch.randn(LENGTH, IDS, IDS, generator=G)
SETTINGS = {
    "whole": {"temperature": 1.0},
    "hot": {"temperature": 1.6, "top_p": 0.95},
    "cut": {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "min_p": 0.02},
}
ALL = torch.arange(TEXTS)
POSITIONS = 4 * ALL[:, None] + torch.arange(LENGTH)  # no two draws share noise
NOISES = pytest.mark.parametrize("noise", [True, False], ids=["shared", "none"])
HEATS = pytest.mark.parametrize("setting", SETTINGS)


def laws(s: Sampling) -> Tensor:
    """Exact probabilities [position, token before, token] after temperature and cuts, fp64."""
    out = torch.zeros(LENGTH, IDS, IDS, dtype=torch.float64)
    for law, logits in zip(out.flatten(0, 1), TARGET.flatten(0, 1), strict=True):
        scores = logits / s.temperature
        kept = survivors(scores, int(s.top_k), float(s.top_p), float(s.min_p))
        law[kept] = scores[kept].double().softmax(0)
    return out


def drawn(s: Sampling) -> Tensor:
    """The target's draw for every text, position and token before."""
    noise = gumbel(s.seed, POSITIONS[:, :, None], torch.arange(IDS))[:, :, None]
    scores = (TARGET / s.temperature).masked_fill(laws(s) == 0, -torch.inf)
    return (scores + noise).argmax(-1)


def drafted(s: Sampling) -> Tensor:
    """The draft's token for every text, position and token before."""
    if s.greedy:
        return DRAFT.argmax(-1).expand(TEXTS, -1, -1)
    noise = gumbel(s.seed, POSITIONS[:, :, None], torch.arange(IDS))[:, :, None]
    return (DRAFT / s.temperature + noise).argmax(-1)


def raw(s: Sampling) -> Tensor:
    """Texts [texts, length] drawn one token after another."""
    choice, before, made = drawn(s), torch.zeros_like(ALL), []
    for at in range(LENGTH):
        before = choice[ALL, at, before]
        made.append(before)
    return torch.stack(made, 1)


def speculative(s: Sampling, noise: bool) -> tuple[Tensor, float]:
    """The same by steps of three rows, and how many tokens a step gave."""
    choice, guess = drawn(s), drafted(s if noise else noiseless(s))
    made = torch.full((TEXTS, LENGTH), -1)
    done, before, steps = torch.zeros_like(ALL), torch.zeros_like(ALL), 0
    with unchecked():
        while (done < LENGTH).any():
            steps += int((done < LENGTH).sum())
            at = (done[:, None] + torch.arange(3)).clamp(max=LENGTH - 1)
            inputs = [before]
            for row in range(2):
                inputs.append(guess[ALL, at[:, row], inputs[-1]])
            tokens = torch.stack(inputs, 1)
            chosen = choice[ALL[:, None], at, tokens]
            kept = torch.vmap(accepted)(tokens[:, 1:], chosen) + 1
            for row in range(3):
                use = (row < kept) & (done + row < LENGTH)
                made[ALL[use], done[use] + row] = chosen[use, row]
            done = done + kept
            before = made.gather(1, (done - 1).clamp(max=LENGTH - 1)[:, None])[:, 0]
    return made, TEXTS * LENGTH / steps


def p_values(made: Tensor, law: Tensor) -> dict[str, float]:
    """Of the first token, of the first two together, of the third."""
    pairs = law[0, 0][:, None] * law[1]
    third = (pairs.sum(0)[:, None] * law[2]).sum(0)
    seen = {
        "first": (made[:, 0], law[0, 0]),
        "first two": (made[:, :2] @ torch.tensor([IDS, 1]), pairs.flatten()),
        "third": (made[:, 2], third),
    }
    out = {}
    for name, (tokens, law) in seen.items():
        counts, common = tokens.bincount(minlength=len(law)), law * TEXTS > 8
        rare = ~common & (law > 0)  # merged: too few to judge one by one
        if counts[law == 0].sum():
            out[name] = 0.0
            continue
        cells = torch.cat([counts[common], counts[rare].sum()[None]])
        expected = torch.cat([law[common], law[rare].sum()[None]])
        use = expected * TEXTS > 8
        out[name] = chi_square_p(cells[use], expected[use])
    return out


@HEATS
def test_the_operator_and_the_draft_choose_what_the_tables_say(setting):
    s = sampling(**SETTINGS[setting], seed=3)
    choice, guess, plain = drawn(s), drafted(s), drafted(noiseless(s))
    head = whole(Dense(weight=torch.zeros(IDS, 1), splits=(IDS,)), IDS)
    cuts = s.temperature, s.top_k, s.top_p, s.min_p, s.seed, IDS, s.cuts
    with unchecked():
        for text in range(40):
            for at in range(LENGTH):
                position = POSITIONS[text, at]
                for before in range(IDS):
                    logits = TARGET[at, before][None]
                    token = VARIANTS["sample"]["reference"](logits, position, *cuts)
                    assert token == choice[text, at, before]
                    for table, how in ((guess, s), (plain, noiseless(s))):
                        token = choose(head, DRAFT[at, before], position, how)
                        assert token == table[text, at, before]


@NOISES
@HEATS
def test_speculation_has_the_exact_law(setting, noise):
    s = sampling(**SETTINGS[setting], seed=3)
    made, per_step = speculative(s, noise)
    assert torch.equal(made, raw(s)) and per_step > 1.3
    found = p_values(made, laws(s))
    assert min(found.values()) > RARE, found


@pytest.mark.parametrize("setting", ["whole", "hot"])
def test_shared_noise_is_accepted_more_often(setting):
    s = sampling(**SETTINGS[setting], seed=3)
    assert speculative(s, True)[1] > speculative(s, False)[1]


@NOISES
@HEATS
def test_two_seeds_agree_with_each_other(setting, noise):
    """First and second tokens of speculation, against raw texts of another seed."""
    made, _ = speculative(sampling(**SETTINGS[setting], seed=3), noise)
    other = raw(sampling(**SETTINGS[setting], seed=4))
    assert not torch.equal(made, other)
    for at in range(2):
        a, b = (x[:, at].bincount(minlength=IDS).double() for x in (made, other))
        used = a + b > 16
        share = (a + b)[used] / 2
        statistic = (((a[used] - share) ** 2 + (b[used] - share) ** 2) / share).sum()
        freedom = torch.tensor((int(used.sum()) - 1) / 2, dtype=torch.float64)
        assert torch.special.gammaincc(freedom, statistic / 2) > RARE


@NOISES
@HEATS
def test_a_bias_of_two_percent_is_noticed(setting, noise):
    """In one text of 50 the rarest token replaced the first one."""
    s = sampling(**SETTINGS[setting], seed=3)
    made, _ = speculative(s, noise)
    law = laws(s)
    planted = torch.rand(TEXTS, generator=torch.Generator().manual_seed(5)) < 0.02
    rarest = law[0, 0].masked_fill(law[0, 0] == 0, torch.inf).argmin()
    replaced = made.clone()
    replaced[planted, 0] = rarest
    assert p_values(replaced, law)["first"] < RARE
