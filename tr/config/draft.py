"""Draft strategies and what each of them takes."""

from dataclasses import dataclass, field
from os.path import expanduser

from omegaconf import MISSING

from tr.config.choice import PLANNED, check_choice, check_range

STRATEGIES = ("raw", "mtp", "dflash2", "lookup", "dflash2_lookup", "chain", "auto", "oracle")
NOISE = ("shared", "none")
DEPTH = 64  # layers of the target that draft.random.taps are stated for
VERIFY_ROWS = 16  # the most rows one verify step takes: an anchor and 15 draft tokens


def check_ngrams(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"draft needs 1 <= ngram_min <= ngram_max, got {low} and {high}")


@dataclass
class Draft:
    strategy: str = MISSING

    def __post_init__(self) -> None:
        check_choice("draft.strategy", self.strategy, STRATEGIES, PLANNED["draft"])
        tokens = getattr(self, "tokens", None)
        if tokens is not None:
            check_range("draft.tokens", tokens, 1, VERIFY_ROWS - 1)

    def parts(self) -> "list[Draft]":
        """The strategies that may run."""
        return [self]


@dataclass
class RawDraft(Draft):
    strategy: str = "raw"


@dataclass
class DraftHead:
    """Which tokens a draft chooses among; control tokens are always kept.

    full: all; first: the first `ids` ones; counted: the `ids` most frequent ones of a file that
    +exp=draft_vocab writes. All where there are fewer.
    """

    kind: str = "full"
    ids: int = 131072
    path: str = ""

    def __post_init__(self) -> None:
        check_choice("draft.head.kind", self.kind, ("full", "first", "counted"))
        self.path = expanduser(self.path)
        if self.ids < 1:
            raise ValueError(f"draft.head.ids must be positive, got {self.ids}")
        if (self.kind == "counted") != bool(self.path):
            raise ValueError(
                f"draft.head.kind={self.kind} takes"
                f" {'draft.head.path=FILE' if self.kind == 'counted' else 'no draft.head.path'}"
            )


@dataclass
class MtpDraft(Draft):
    """Every step drafts `tokens`; with `least`, 2 more than the last one accepted.

    These are `least` at least and `tokens` at most.
    """

    strategy: str = "mtp"
    tokens: int = MISSING
    least: int = 0
    head: DraftHead = field(default_factory=DraftHead)
    noise: str = "shared"  # when sampling: the target's own, or none (the likeliest tokens)
    kv: str = "same"  # format of the head's cache; same: as the target's

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("draft.noise", self.noise, NOISE)
        check_choice("draft.kv", self.kv, ("same", "bf16", "fp8", "int8", "int4"))
        check_range("draft.least", self.least, 0, self.tokens)


@dataclass
class Dflash2Shape:
    """A draft made with weights=random; its other widths, window aside, are the target's own.

    `taps` are layers of a target of 64; a shallower one is tapped at the same fractions.
    """

    layers: int = MISSING
    block: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    d_head: int = MISSING
    taps: list[int] = MISSING
    window: int = MISSING
    mask_token: int = MISSING
    conv_width: int = MISSING
    conv_group: int = MISSING
    selector_rank: int = MISSING
    selector_top: int = MISSING

    def __post_init__(self) -> None:
        for name in ("layers", "block", "heads", "kv_heads", "d_head", "window", "conv_group"):
            if getattr(self, name) < 1:
                raise ValueError(f"draft.random.{name} must be positive, got {getattr(self, name)}")
        if not self.taps or not all(0 <= tap < DEPTH for tap in self.taps):
            raise ValueError(f"draft.random.taps must lie in 0..{DEPTH - 1}, got {self.taps}")


@dataclass
class Dflash2Draft(Draft):
    """Weights from beside the target's, or from a folder or hub repository of their own."""

    strategy: str = "dflash2"
    tokens: int = MISSING
    window: int = 0  # context tokens the draft attends to; 0: as its checkpoint says
    head: DraftHead = field(default_factory=DraftHead)
    noise: str = "shared"  # when sampling: the target's own, or none (the likeliest tokens)
    path: str = ""
    repo: str = ""
    revision: str = "main"
    random: Dflash2Shape = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("draft.noise", self.noise, NOISE)
        self.path = expanduser(self.path)
        if self.window < 0:
            raise ValueError(f"draft.window must be 0 or more, got {self.window}")
        if self.path and self.repo:
            raise ValueError("draft=dflash2 takes draft.path or draft.repo, got both")


@dataclass
class LookupDraft(Draft):
    """Copies what followed the last ngram_max..ngram_min tokens where they occurred before."""

    strategy: str = "lookup"
    tokens: int = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ngrams(self.ngram_min, self.ngram_max)


@dataclass
class Dflash2LookupDraft(Dflash2Draft):
    """`tokens` from the block; after steps that were accepted whole, `tail` more from the text."""

    strategy: str = "dflash2_lookup"
    tail: int = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING
    trust: int = MISSING  # a match this long replaces the block's tokens; above ngram_max: none
    saturated: int = MISSING  # steps in a row; 0: every step is a long one

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ngrams(self.ngram_min, self.ngram_max)
        check_range("draft.tail", self.tail, 1, VERIFY_ROWS - 1 - self.tokens)
        for name in ("trust", "saturated"):
            if getattr(self, name) < 0:
                raise ValueError(f"draft.{name} must be 0 or more, got {getattr(self, name)}")


@dataclass
class ChainDraft(Dflash2LookupDraft):
    """Whole steps from the text, once `after` long ones in a row were accepted whole."""

    strategy: str = "chain"
    after: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.after < 1:
            raise ValueError(f"draft.after must be positive, got {self.after}")


@dataclass
class Pace:
    """What steps cost, in raw ones: by their draft, copied ones by their rows.

    `rival`: which of `choices` is tried beside `other`; empty: none.
    """

    dflash2: float = MISSING
    dflash2_lookup: float = MISSING
    mtp: float = MISSING
    copy: dict[int, float] = field(default_factory=dict)
    rival: str = ""

    def __post_init__(self) -> None:
        for rows in self.copy or [0]:
            check_range("draft.paces.*.copy: rows", rows, 2, VERIFY_ROWS)
        costs = (self.dflash2, self.dflash2_lookup, self.mtp, *self.copy.values())
        if min(costs) <= 0:
            raise ValueError(f"draft.paces.*: a step's cost must be positive, got {min(costs)}")


@dataclass
class AutoDraft(Draft):
    """Two of `choices` by name: `cjk` where that `share` of a prompt is Chinese and the like.

    `adapt`: each step then runs what is worth most by `paces`, that draft or a copied step, which
    looks for n-grams as `lookup` does. Paces are named by the device or its kind, cpu or cuda, with
    the source of the weights behind it or without: the first of h200_random, cuda_random, h200 and
    cuda.
    """

    strategy: str = "auto"
    cjk: str = MISSING
    other: str = MISSING
    share: float = MISSING
    adapt: bool = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING
    paces: dict[str, Pace] = field(default_factory=dict)
    choices: dict[str, Draft] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("draft.share", self.share, 0, 1)
        check_ngrams(self.ngram_min, self.ngram_max)
        for key in ("cjk", "other"):
            check_choice(f"draft.{key}", getattr(self, key), self.choices)
        for device, pace in self.paces.items():
            check_choice(f"draft.paces.{device}.rival", pace.rival, ("", *self.choices))

    def parts(self) -> list[Draft]:
        return [self.choices[self.cjk], self.choices[self.other]]

    def pace(self, device: str, kind: str, source: str) -> Pace:
        """The one for weights of that source on a device; raises ValueError without one."""
        names = (f"{device}_{source}", f"{kind}_{source}", device, kind)
        for name in names:
            if name in self.paces:
                return self.paces[name]
        raise ValueError(
            f"draft.paces has none of {', '.join(names)}; take the step times of +exp=draft_compare"
            " for one, or draft.adapt=false"
        )


@dataclass
class OracleDraft(Draft):
    """A recorded continuation; each token is kept with probability `rate`, else corrupted."""

    strategy: str = "oracle"
    tokens: int = MISSING
    rate: float = MISSING
    source: str = ""  # a file of token ids; empty: the run's own raw output
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("draft.rate", self.rate, 0, 1)
