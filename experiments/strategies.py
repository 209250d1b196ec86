"""Draft strategies as experiments list them: a choice of the group `draft`, and its own values.

`mtp`, `mtp tokens=4`, `dflash2 head.kind=first head.ids=64`, `oracle rate=0.6`: what stands after
the name are keys of that choice. The run's own `draft` is taken where an entry names it alone, so
that the command line reaches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from omegaconf.errors import OmegaConfBaseException

from experiments.dflash2_verify import replay
from tr.assemble import Assembly
from tr.config import STRATEGIES, Config, OracleDraft, check_choice
from tr.config import Draft as DraftChoice
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.overrides import choices, compose, explain, to_object

ORACLES = ("oracle rate=0.3", "oracle rate=0.6", "oracle rate=0.9")


def drafting() -> list[str]:
    """Every strategy that drafts from what the model gives; the oracle alone needs a known text."""
    return [name for name in STRATEGIES if name not in ("raw", "oracle")]


def runnable(
    entries: Sequence[str], default: Sequence[str], made: Assembly
) -> tuple[list[str], tuple[str, ...]]:
    """`entries`, or where there are none those of `default` that can run, and a warning."""
    if entries or made.text is not None:
        return list(entries or default), ()
    reason = "weights=random has no tokenizer to judge prompts by"
    return [e for e in default if e != "auto"], (f"draft=auto was left out: {reason}",)


@dataclass(frozen=True, eq=False)
class Strategy:
    """One draft for every prompt; an oracle is made for each, from raw decoding's own text.

    `plain`: its values are those of the group `draft`.
    """

    made: Draft
    oracle: OracleDraft | None = None
    plain: bool = True

    def draft(self, prompt: list[int], text: list[int], device: torch.device) -> Draft:
        """The draft for `prompt`, whose text by raw decoding is `text`."""
        return self.made if self.oracle is None else replay(self.oracle, prompt, text, device)


def chosen(config: Config, entry: str) -> DraftChoice:
    """The config of an entry; raises ValueError for an unknown name or key."""
    name, *values = entry.split() or [""]
    check_choice("params.strategies", name, choices("draft"))
    if name == config.draft.strategy and not values:
        return config.draft
    choice = compose([f"draft={name}"]).draft
    try:
        choice.merge_with_dotlist(values)
        return to_object(choice)
    except (OmegaConfBaseException, ValueError) as error:
        raise ValueError(f"params.strategies: {entry!r}: {explain(error)}") from error


def strategies(entries: Sequence[str], config: Config, made: Assembly) -> dict[str, Strategy]:
    """The strategies of a list by their entries, made once; twice the same is once."""
    found = {}
    for entry in entries:
        choice = chosen(config, entry)
        if isinstance(choice, OracleDraft):
            found[entry] = Strategy(Raw(), replace(choice, seed=config.seed), plain=False)
        else:
            plain = choice == to_object(compose([f"draft={entry.split()[0]}"]).draft)
            found[entry] = Strategy(made.draft(replace(config, draft=choice)), plain=plain)
    return found
