"""A short run of the embedded model: a strategy's text against raw decoding's, token for token."""

import json
from collections.abc import Iterator
from dataclasses import replace

from tr.assemble import EMBEDDED, assemble
from tr.config import Dflash2Draft, Doctor, EmbeddedWeights
from tr.decode.generate import generate
from tr.decode.stream import Counts
from tr.doctor.finding import FAIL, OK, WARN, Finding, refused
from tr.doctor.machine import Machine
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.overrides import compose, to_object

PROMPT = 120  # tokens of a held-out text
WITHOUT_DRAFT = ("raw", "oracle")


def check(machine: Machine) -> Iterator[Finding]:
    config = small(machine.config)
    name, tokens = config.draft.strategy, config.max_new_tokens
    capacity = PROMPT + tokens + 1
    device = machine.device
    try:
        made = assemble(config, capacity)
    except ValueError as error:  # a choice of the run's that the small model cannot take
        found = refused("embedded model", error, WARN)
        yield replace(found, todo=f"not run: {found.todo}" if found.todo else "not run")
        return
    draft = made.draft(config)
    text = json.loads((EMBEDDED / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[0])
    prompt = made.tokenizer.encode(text["text"])[:PROMPT]
    warm = config.sampling.temperature or 1.0
    for way, heat in (("greedy", 0.0), (f"temperature {warm:g}", warm)):
        drawn = sampling(heat, seed=config.sampling.seed, device=device)

        def write(strategy: Draft, drawn=drawn) -> Counts:
            return generate(made.model, strategy, prompt, drawn, tokens, (), capacity)

        yield compared(f"{name}, {way}", write(Raw()), write(draft))


def compared(item: str, raw: Counts, own: Counts) -> Finding:
    """`own` against `raw`; both have one length, since no end token stops them."""
    pairs = zip(raw.tokens, own.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if raw.tokens != own.tokens:
        where = min(len(raw.tokens), len(own.tokens)) if at is None else at
        return Finding(
            item,
            FAIL,
            f"token {where} of {len(raw.tokens)} is not raw decoding's",
            "speculation must not be trusted here: find the operator with kernel=reference",
        )
    said = f"{len(raw.tokens)} tokens as raw decoding's, {own.tokens_per_step:.2f} per step"
    return Finding(item, OK, said, figures={"tokens_per_step": own.tokens_per_step})


def small(config: Doctor) -> Doctor:
    """The same run on the embedded model, whose own draft it takes."""
    own = [part for part in config.draft.parts() if isinstance(part, Dflash2Draft)]
    files = any(part.path or part.repo or part.head.path for part in own)
    name = config.draft.strategy
    if files or name in WITHOUT_DRAFT:
        chosen = "dflash2" if name in WITHOUT_DRAFT else name
        config = replace(config, draft=to_object(compose([f"draft={chosen}"]).draft))
    return replace(config, weights=EmbeddedWeights())
