"""What every group checks its values with."""

from collections.abc import Iterable
from difflib import SequenceMatcher

PLANNED = {  # names that a later stage builds: refused as such, not as typing errors
    "quant": (),
    "kv": (),
    "kernel": (),
    "draft": (),
    "jit": ("tensorrt",),
}


def unknown(where: str, name: str, valid: Iterable[str]) -> str:
    """The message for a name that is not in `valid`: the nearest one, then all of them."""
    names = sorted(valid)
    if not names:
        return f"{where} {name!r}: there is none to choose from"
    best = max(names, key=lambda v: SequenceMatcher(None, name.lower(), v.lower()).ratio())
    return f"{where} {name!r}; did you mean {best!r}? (valid: {', '.join(names)})"


def check_choice(key: str, value: str, built: Iterable[str], planned: Iterable[str] = ()) -> None:
    if value in planned:
        raise ValueError(f"{key}={value} is not built yet; built: {', '.join(built)}")
    if value in ("True", "False"):
        raise ValueError(f"{key} is {value}: YAML reads a bare on, off, yes or no so; quote it")
    if value not in built:
        raise ValueError(unknown(f"unknown {key}", value, built))


def check_range(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{key} must lie in {low:g}..{high:g}, got {value:g}")
