"""Two looks for plots, and one colour per name: a strategy or a cache keeps its colour throughout.

Any two colours of a theme stay apart for red-, green- and blue-blind eyes (a test measures it);
marks and dashes repeat what colours say.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MARKS = "oDs^vPX*"
DASHES = ("-", "--", ":", "-.")
LIMIT = 8  # colours that stay apart


@dataclass(frozen=True)
class Theme:
    name: str
    paper: str
    ink: str
    faint: str  # grid and leader lines
    colours: tuple[str, ...]  # a slot each, the first one grey


LIGHT = Theme(
    "light",
    paper="#FFFFFF",
    ink="#1F2328",
    faint="#D1D9E0",
    colours=(
        *("#717171", "#B69500", "#004C91", "#00B062"),
        *("#657DFF", "#620546", "#B4381F", "#E670C4"),
    ),
)
DARK = Theme(
    "dark",
    paper="#0D1117",
    ink="#E6EDF3",
    faint="#30363D",
    colours=(
        *("#7C7C7C", "#FEC50B", "#3074FF", "#00AD63"),
        *("#A8DEF0", "#D659BE", "#DC6316", "#CAD168"),
    ),
)
THEMES = (LIGHT, DARK)

#: names that keep one colour in every plot
KNOWN = {
    **dict.fromkeys(("raw", "bf16", "noise floor"), 0),
    **dict.fromkeys(("mtp", "fp8"), 1),
    **dict.fromkeys(("dflash2", "speculative", "int8"), 2),
    **dict.fromkeys(("lookup", "int4"), 3),
    **dict.fromkeys(("dflash2_lookup", "kvarn"), 4),
    **dict.fromkeys(("chain", "kvarn_v4"), 5),
    **dict.fromkeys(("auto",), 6),
    **dict.fromkeys(("oracle",), 7),
}


def slots(names: Iterable[str]) -> dict[str, int]:
    """A colour's index per name; `oracle rate=0.6` counts as `oracle`, unknown names get free ones,
    from the first again when all are taken.
    """
    names = list(dict.fromkeys(names))
    found = {name: KNOWN[key] for name in names if (key := name.partition(" ")[0]) in KNOWN}
    found |= {name: KNOWN[name] for name in names if name in KNOWN}
    order = (2, 6, 3, 1, 4, 5, 7, 0)  # far apart first
    free = [slot for slot in order if slot not in found.values()] or list(order)
    for i, name in enumerate(name for name in names if name not in found):
        found[name] = free[i % len(free)]
    return found
