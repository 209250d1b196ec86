"""Figures as tables, and what a table of kernels leaves out."""

from tests.report.made import DRAFTS, FIGURES, made
from tr.report import kernels, tables


def test_numbers():
    values = [None, 3, 2048, 0.0, 0.00123, 3.14159, 314.159, 31415.9, True, "raw"]
    shown = ["-", "3", "2,048", "0.00", "0.001", "3.14", "314.2", "31,416", "True", "raw"]
    assert [tables.number(value) for value in values] == shown


def test_tables_of_families():
    first, second, third = tables.tables(made()["figures"])
    assert first.rows == (("draft", "dflash2"),)
    assert second.columns[:3] == ("", "tokens/step", "sampled tokens/step")
    assert second.rows[3] == ("copy", "6.00", "5.00", "51.00", "120.0", "2,048")
    assert third.title == "families: accepted by position"
    assert third.rows[0] == ("essay", "0.90", "0.70", "0.40")


def test_tables_of_any_depth():
    figures = {
        "loss": [3.0, 2.0],
        "matmul": {"tile": {"r1": {"us": 5.0}, "r8": {"us": 6.0, "gb_per_s": 9.0}}, "count": 2},
    }
    matmul, loss = tables.tables(figures)
    assert matmul.columns == ("", "count", "us", "gb/s")
    assert matmul.rows[1:] == (
        ("tile / r1", "-", "5.00", "-"),
        ("tile / r8", "-", "6.00", "9.00"),
    )
    assert (loss.title, loss.rows) == ("loss", (("", "3.00", "2.00"),))
    assert tables.markdown(loss) == "|  | 1 | 2 |\n|---|---:|---:|\n|  | 3.00 | 2.00 |"
    assert tables.tables({}) == []


def test_a_table_of_lists_leaves_out_rows_without_one():
    *_, table = tables.tables({"strategies": DRAFTS["strategies"]})
    assert [row[0] for row in table.rows] == [
        "mtp / code",
        "mtp / copy",
        "dflash2 / code",
        "dflash2 / copy",
    ]
    assert table.columns == ("", "1", "2") and table.rows[0] == ("mtp / code", "0.50", "-")


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
