"""A step's beginning equals an embedding and `rms_norm` of the same variant, to the bit."""

import pytest
import torch
import torch.nn.functional as F

from kernels import registry  # noqa: F401  (registers every variant)
from kernels.define import VARIANTS, Target, refusal

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HERE = [
    name
    for name in sorted(VARIANTS["embed_norm"])
    if not refusal("embed_norm", name, Target.of(DEVICE))
]
VOCAB, POS = 90, 1234


@pytest.mark.parametrize("variant", HERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [320, 5120])
def test_rows_are_those_of_two_operators(variant, dtype, d):
    g = torch.Generator().manual_seed(0)
    embed, gain = (torch.randn(n, d, generator=g).to(dtype).to(DEVICE) for n in (VOCAB, 1))
    gain, pos = gain[0], torch.tensor(POS, device=DEVICE)
    every = torch.randint(VOCAB, (16,), generator=g).to(DEVICE)
    every[[2, 7]] = torch.tensor([-1, -2], device=DEVICE)
    call, norm = VARIANTS["embed_norm"][variant], VARIANTS["rms_norm"][variant]
    want = F.embedding(every.clamp(min=0), embed)
    for rows in (1, 2, 8, 16):
        for first in sorted({1, rows}):
            tokens, drafts = every[:first], every[first:rows]
            ids, places, x, y = call(
                tokens, drafts if len(drafts) else None, pos, embed, gain, 1e-6
            )
            assert torch.equal(ids, every[:rows].clamp(min=0))
            assert places.tolist() == list(range(POS + 1, POS + 1 + rows))
            assert torch.equal(x, want[:rows]) and torch.equal(y, norm(x, gain, 1e-6))


@pytest.mark.skipif("triton" not in HERE, reason="needs Triton")
def test_as_an_operator_with_drafts():
    call = VARIANTS["embed_norm"]["triton"]
    embed, gain = torch.randn(VOCAB, 64, device=DEVICE), torch.randn(64, device=DEVICE)
    tokens, drafts = torch.tensor([3], device=DEVICE), torch.tensor([5, -1], device=DEVICE)
    pos = torch.tensor(POS, device=DEVICE)
    torch.library.opcheck(call.op, (tokens, drafts, pos, embed, gain, 1e-6))
    with pytest.raises(ValueError, match="a gain of"):
        call(tokens, drafts, pos, embed, gain[:32], 1e-6)
    with pytest.raises(ValueError, match="drafts must be contiguous"):
        call(tokens, torch.arange(8, device=DEVICE)[::2], pos, embed, gain, 1e-6)
