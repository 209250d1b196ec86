"""Records become tables, plots and the README's figures."""

import pytest

from tr.report import pages, plots, record, tables
from tr.report.__main__ import main
from tr.report.record import Outcome, Verdict

FAMILIES = {
    name: {
        "tokens_per_step": 3.0 + i,
        "sampled_tokens_per_step": 2.0 + i,
        "accepted_by_position": [0.9, 0.7, 0.4],
        "raw_tokens_per_s": 51.0,
        "speculative_tokens_per_s": 120.0,
        "counted_tokens": 2048,
    }
    for i, name in enumerate(("essay", "code", "math", "copy"))
}


def verify(families=None, experiment="dflash2_verify"):
    outcome = Outcome({"draft": "dflash2", "families": families or FAMILIES}, Verdict(True, 4096))
    return record.build(outcome, experiment, "python -m it", {}, 0, {"name": "a card"})


def test_numbers():
    values = [None, 3, 2048, 0.0, 0.00123, 3.14159, 314.159, 31415.9, True, "raw"]
    shown = ["-", "3", "2,048", "0.00", "0.001", "3.14", "314.2", "31,416", "True", "raw"]
    assert [tables.number(value) for value in values] == shown


def test_tables_of_families():
    first, second, third = tables.tables(verify()["figures"])
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


def test_plots_have_data_labels_and_units():
    drawn = plots.plots(verify())
    assert list(drawn) == ["tokens_per_step", "accepted_by_position", "tokens_per_s"]
    assert all(data.startswith(b"\x89PNG") and len(data) > 10_000 for data in drawn.values())
    figure = plots.tokens_per_step(verify()["figures"])
    assert figure is not None
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("prompt family", "tokens per step")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["greedy", "sampled"]


def test_a_plot_without_data_is_left_out():
    raw = {name: {"raw_tokens_per_s": 51.0} for name in FAMILIES}
    assert list(plots.plots(verify(raw))) == ["tokens_per_s"]
    assert plots.plots(verify(experiment="plan")) == {}


DRAFTS = {
    "strategies": {
        name: {
            family: {
                "tokens_per_s": 100.0 + i,
                "tokens_per_step": 1.0 + i,
                "sampled_tokens_per_step": 1.0 + i,
                "accepted_by_position": [0.5] * i,
            }
            for family in ("code", "copy")
        }
        for i, name in enumerate(("raw", "mtp", "dflash2"))
    },
    "steps": {"raw": {"1": {"step_ms": 7.7}}, "chain": {"16 (copy)": {"step_ms": 9.0}}},
}
LENGTHS = {
    "mtp": {
        str(n): {
            "tokens_per_step": None if n == 64 else 2.0,
            "least_tokens_per_step": 1.0,
            "most_tokens_per_step": 3.0,
            "accepted_by_position": [0.8, 0.4],
        }
        for n in (64, 512, 2048)
    }
}
COVERAGE = {str(n): {"counted_coverage": n / 600, "first_coverage": None} for n in (75, 150, 300)}


@pytest.mark.parametrize(
    "experiment, figures, names",
    [
        (
            "draft_compare",
            DRAFTS,
            [
                "tokens_per_s",
                "tokens_per_step",
                "sampled_tokens_per_step",
                "accepted_by_position",
                "step_ms",
            ],
        ),
        ("accept_curve", {"strategies": LENGTHS}, ["tokens_per_step", "accepted_by_position"]),
        ("draft_vocab", {"coverage": COVERAGE}, ["coverage"]),
    ],
)
def test_plots_of_drafts(experiment, figures, names):
    drawn = plots.plots({"experiment": experiment, "figures": figures})
    assert list(drawn) == names and all(len(data) > 8_000 for data in drawn.values())


def test_curves_of_drafts_are_what_the_figures_say():
    figure = plots.accepted_by_strategy(DRAFTS)
    assert figure is not None
    found = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert {name: list(y) for name, y in found.items()} == {"mtp": [0.5], "dflash2": [0.5, 0.5]}
    figure = plots.acceptance_curve({"strategies": LENGTHS})
    assert figure is not None
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_xdata()) == [512, 2048] and list(line.get_ydata()) == [2.0, 2.0]


def test_a_table_of_lists_leaves_out_rows_without_one():
    *_, table = tables.tables({"strategies": DRAFTS["strategies"]})
    assert [row[0] for row in table.rows] == [
        "mtp / code",
        "mtp / copy",
        "dflash2 / code",
        "dflash2 / copy",
    ]
    assert table.columns == ("", "1", "2") and table.rows[0] == ("mtp / code", "0.50", "-")


def test_a_verdict_says_what_was_compared():
    said = {name: pages.verdict_line(verify(experiment=name)) for name in ("any", *pages.EQUAL)}
    assert said["any"] == "Exact: speculative output equals raw output, 4,096 tokens compared."
    assert "equal eager steps" in said["replay_check"]
    assert "the CPU reference's" in said["device_check"]


def test_the_command_writes_a_report(tmp_path, capsys):
    for name in ("one", "two"):
        record.save(verify(), tmp_path / "records" / f"{name}.json")
    out = tmp_path / "out"
    assert main([str(tmp_path / "records"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.md")
    text = (out / "report.md").read_text()
    assert text.count("4,096 tokens compared") == 2
    images = sorted(path.name for path in out.glob("*.png"))
    assert len(images) == 6 and all(image in text for image in images)


def test_the_command_names_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('{"schema": 1, ')
    assert main([str(tmp_path)]) == 2
    assert "bad.json is not whole JSON" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "holds no records" in capsys.readouterr().err


def test_readme_figures_are_current():
    text = pages.README.read_text(encoding="utf-8")
    shown = text.partition(pages.BEGIN)[2].partition(pages.END)[0]
    assert shown == f"\n\n{pages.figures_block()}\n", "run: python -m tr.report --readme"


def test_readme_is_regenerated_between_its_markers(tmp_path):
    readme, records = tmp_path / "README.md", tmp_path / "records"
    readme.write_text(f"# head\n\n{pages.BEGIN}\nold\n{pages.END}\n\ntail\n")
    assert pages.update_readme(readme, records)
    assert pages.NOTHING in readme.read_text()
    record.save(verify(), records / "cpu" / "dflash2_verify-tiny.json")
    assert pages.update_readme(readme, records)
    assert not pages.update_readme(readme, records)
    text = readme.read_text()
    assert "### cpu/dflash2_verify-tiny" in text and "old" not in text
    chosen = verify()
    chosen["config"]["kernel"] = {"variant": "auto", "silu_mul": "reference"}
    record.save(chosen, records / "cpu" / "dflash2_verify-chosen.json")
    assert pages.update_readme(readme, records)  # by name alone
    assert "Further records: `cpu/dflash2_verify-chosen`." in readme.read_text()
    assert text.startswith("# head\n") and text.endswith(f"{pages.END}\n\ntail\n")
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="lacks the lines"):
        pages.update_readme(readme, records)
