"""What kernel_bench's figures say: `<operator>.<variant>.<NAME rROWS>`, cut for plots and pages."""

from collections.abc import Mapping
from typing import Any


def fastest(variants: Mapping[str, Mapping[str, Any]]) -> str:
    """The variant that reaches the largest share of the wall, averaged over the cases it ran."""

    def mean(cases: Mapping[str, Any]) -> float:
        return sum(values["wall_fraction"] for values in cases.values()) / len(cases)

    return max(variants, key=lambda name: mean(variants[name]))


def by_rows(cases: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Share of the wall by name, then by rows."""
    found: dict[str, dict[str, float]] = {}
    for case, values in cases.items():
        name, _, rows = case.rpartition(" r")
        found.setdefault(name, {})[rows] = values["wall_fraction"]
    return found


def counted(rows: str) -> str:
    return f"{rows} row" if rows == "1" else f"{rows} rows"


def is_large(operator: str) -> bool:
    """Whether an operator reads large matrices."""
    return operator == "matmul" or operator.startswith("int4")


def fast_matmuls(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The large matrices, each operator by its fastest variant: shares of the wall by rows."""
    shown: dict[str, Any] = {"wall_gb_per_s": figures["wall_gb_per_s"]}
    for operator, variants in figures.items():
        if is_large(operator):
            variant = fastest(variants)
            shares = by_rows(variants[variant])
            shown[f"{operator}, {variant}: share of the wall"] = {
                name: {counted(rows): share for rows, share in values.items()}
                for name, values in shares.items()
            }
    return shown
