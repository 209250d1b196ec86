"""Reports of the measuring experiments: tables, plots, and what the README shows of a card."""

import pytest

from tr.report import kernels, pages, plots, record, tables
from tr.report.record import Outcome

CARD = {"kind": "cuda", "name": "a card", "read_gb_per_s": 4480.0, "copy_gb_per_s": 4265.2}
TIME = {"us": 10.0, "gb_per_s": 2246.0, "wall_fraction": 0.5, "bytes": 22_460, "captured": True}
FIGURES = {
    "decode": {
        "wall_gb_per_s": 4492.0,
        "contexts": {
            context: {"step_ms": 6.5, "tokens_per_s": 154.0, "bytes_per_step": 1.4e10} | share
            for context, share in (("0", {"wall_fraction": 0.48}), ("8192", {"wall_fraction": 0.4}))
        },
    },
    "verify_cost": {"rows": {"1": {"step_ms": 6.5, "ratio": 1.0}, "8": {"step_ms": 7, "ratio": 2}}},
    "kernel_bench": {
        "wall_gb_per_s": 4492.0,
        "int4_matmul": {
            "triton": {"mlp down r1": TIME, "mlp down r8": {**TIME, "wall_fraction": 0.7}},
            "tile": {"mlp down r1": {**TIME, "wall_fraction": 0.1}},
        },
        "matmul": {"tile": {"lm_head r1": TIME}},
        "silu_mul": {"triton": {"d_ff r1": TIME}},
    },
    "step_profile": {
        "rows": {"1": {"launches": 3, "step_us": 100.0, "busy_us": 90.0, "gap_us": 10.0}},
        "operators": {"1": {"sample": {"us": 30.0}, "int4_matmul": {"us": 60.0}}},
    },
    "compile_compare": {
        "backends": {
            "eager": {"build_s": 0.1, "step_ms": 9.0, "equal": True, "refused": ""},
            "cuda_graph": {"build_s": None, "step_ms": None, "equal": None, "refused": "no card"},
        }
    },
}


def made(experiment, **device):
    outcome = Outcome(FIGURES[experiment])
    return record.build(outcome, experiment, "python -m it", {}, 0, {**CARD, **device})


@pytest.mark.parametrize("experiment", FIGURES)
def test_every_plot_is_drawn(experiment):
    drawn = plots.plots(made(experiment))
    assert set(drawn) == set(plots.PLOTS[experiment])
    assert all(data.startswith(b"\x89PNG") and len(data) > 5_000 for data in drawn.values())


def test_the_wall_stands_beside_the_measured_speed():
    contexts = plots.contexts(FIGURES["decode"])
    assert list(contexts) == ["0", "8,192"]
    assert contexts["0"]["wall_tokens_per_s"] == pytest.approx(4492 / 14)


def test_a_step_is_split_with_the_longest_operator_first():
    figure = plots.step_parts(FIGURES["step_profile"])
    assert figure is not None
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["int4_matmul", "sample", "gaps"]


def test_the_fastest_variant_speaks_for_an_operator():
    shown = kernels.fast_matmuls(FIGURES["kernel_bench"])
    assert shown["int4_matmul, triton: share of the wall"] == {
        "mlp down": {"1 row": 0.5, "8 rows": 0.7}
    }
    assert list(shown) == [
        "wall_gb_per_s",
        "int4_matmul, triton: share of the wall",
        "matmul, tile: share of the wall",
    ]


def test_kernel_tables_have_a_row_per_variant_and_case():
    found = {table.title: table for table in tables.tables(FIGURES["kernel_bench"])}
    assert found["int4 matmul"].columns[1:4] == ("us", "gb/s", "wall fraction")
    assert [row[0] for row in found["int4 matmul"].rows] == [
        "triton / mlp down r1",
        "triton / mlp down r8",
        "tile / mlp down r1",
    ]


def test_the_readme_shows_experiments_in_order_and_only_what_matters(tmp_path):
    for experiment in FIGURES:
        record.save(made(experiment), tmp_path / "h200" / f"{experiment}-x.json")
    record.save(made("decode", kind="cpu"), tmp_path / "cpu" / "decode-x.json")
    text = pages.figures_block(tmp_path)
    titles = [line.split()[1] for line in text.splitlines() if line.startswith("### ")]
    names = ["decode", "verify_cost", "step_profile", "compile_compare", "kernel_bench"]
    assert titles == ["cpu/decode-x", *(f"h200/{name}-x" for name in names)]
    assert "Ceilings measured in this run: read 4,480.0 GB/s, copy 4,265.2 GB/s." in text
    assert "silu mul" not in text
