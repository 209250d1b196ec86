"""Nested figures cut into a plot's points; what a run did not measure is left out."""

from collections.abc import Mapping
from typing import Any

Points = dict[str, list[list[Any]]]
Nested = Mapping[str, Mapping[str, Any]]


def by_key(families: Nested, labels: Mapping[str, str]) -> Points:
    """A series per key of `labels` (key to label), a point per family that has it."""
    found = {
        label: [[family, v[key]] for family, v in families.items() if v.get(key) is not None]
        for key, label in labels.items()
    }
    return {label: points for label, points in found.items() if points}


def by_name(strategies: Mapping[str, Nested], key: str) -> Points:
    """A series per strategy, a point per family that has `key`."""
    found = {
        name: [[family, v[key]] for family, v in families.items() if v.get(key) is not None]
        for name, families in strategies.items()
    }
    return {name: points for name, points in found.items() if points}


def by_number(strategies: Mapping[str, Nested], *keys: str) -> Points:
    """As `by_name` over families that are numbers, in order: the first key, then its range."""
    found: Points = {}
    for name, families in strategies.items():
        whole = {int(n): [v.get(key) for key in keys] for n, v in families.items()}
        points = [[n, *whole[n]] for n in sorted(whole) if None not in whole[n]]
        if points:
            found[name] = points
    return found


def by_position(families: Nested, key: str) -> Points:
    """A series per family, over positions 1, 2, ... of its list."""
    found = {name: v.get(key) or [] for name, v in families.items()}
    return {
        name: [[i, share] for i, share in enumerate(shares, 1)]
        for name, shares in found.items()
        if shares
    }
