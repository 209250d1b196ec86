"""Reports over records: beside each other, whole or refused, never over somebody's files."""

import json

from tests.report.made import made
from tr.report import beside, found, origin, pages, record
from tr.report.__main__ import main
from tr.report.pages import PAGE


def saved(folder, **records):
    for name, one in records.items():
        record.save(one, folder / f"{name}.json")
    return str(folder)


def test_a_verdict_says_what_was_compared():
    said = {name: origin.verdict_line(made(figures={}) | {"experiment": name}) for name in
            ("any", *origin.EQUAL)}  # fmt: skip
    assert said["any"] == "Exact: speculative output equals raw output, 4,096 tokens compared."
    assert "equal eager steps" in said["replay_check"]
    assert "the CPU reference's" in said["device_check"]


def test_a_run_leaves_a_picture_and_its_data(tmp_path):
    path = pages.write_report({"decode": made("decode")}, tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    plots = ("tokens_per_s", "wall_fraction")
    assert names == [PAGE, *(f"{n}.{e}" for n in plots for e in ("plot.json", "png"))]
    assert "![Raw decoding](tokens_per_s.png)" in path.read_text()


def test_two_devices_stand_side_by_side_in_one_table(tmp_path, capsys):
    mine = made("decode", name="NVIDIA H200", power_limit_w="700.00", clock_sm_mhz="1980")
    yours = made("decode", name="NVIDIA 5090", power_limit_w="575.00", clock_sm_mhz="2400")
    yours["figures"]["contexts"]["0"]["step_ms"] = 13.0
    yours["versions"]["torch"] = "2.11.0"
    records = saved(tmp_path / "mine", decode=mine), saved(tmp_path / "yours", decode=yours)
    out = tmp_path / "out"
    assert main([*records, "--output", str(out), "--only", "wall_by_context"]) == 0
    assert capsys.readouterr().out.strip() == str(out / PAGE)
    lines = (out / PAGE).read_text().splitlines()
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| ")}
    assert rows["| device"] == "| device | NVIDIA H200 | NVIDIA 5090 |"
    assert rows["| power limit, W"] == "| power limit, W | 700 | 575 |"
    assert rows["| torch"] == f"| torch | {mine['versions']['torch']} | 2.11.0 |"
    assert rows["| contexts.0.step_ms"] == "| contexts.0.step_ms | 6.50 | 13.00 |"
    assert all(name in rows for name in ("| commit", "| python", "| date", "| exact"))
    names = sorted(p.name for p in out.iterdir() if p != out / PAGE)
    assert names == sorted(
        f"wall_by_context{end}"
        for end in ("-dark.png", "-dark.svg", "-light.png", "-light.svg", ".plot.json")
    )


def test_many_records_have_a_row_each_and_tables_of_six():
    records = {
        f"job/{n}": made("verify_cost", config={"draft": {"strategy": f"s{n}"}}) for n in range(8)
    }
    (summary,) = pages.summaries(records)
    assert summary.columns[0] == "draft" and len(summary.rows) == 8
    assert [len(table.columns) for table in beside.tables(records)] == [7, 3]
    assert beside.short(["a/b/c", "a/b/d/e"]) == {"a/b/c": "c", "a/b/d/e": "d/e"}


def test_a_later_report_replaces_an_earlier_one_and_nothing_else(tmp_path, capsys):
    records, out = saved(tmp_path / "r", one=made("verify_cost")), tmp_path / "out"
    job = [records, "--output", str(out)]
    assert main([*job, "--only", "step_ms"]) == 0 and (out / "step_ms-light.svg").exists()
    assert main([*job, "--only", "ratio"]) == 0
    assert not list(out.glob("step_ms*")) and (out / "ratio-light.svg").exists()
    (out / "mine.txt").write_text("kept")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert main([*job, "--only", "step_ms"]) == 2
    said = capsys.readouterr().err
    assert "holds other files: expected an empty folder or an earlier report, got mine.txt" in said
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def bad_records(folder):
    text = json.dumps(made("verify_cost"))
    folder.mkdir()
    return {
        "has record schema 2, expected 1": text.replace('"schema": 1', '"schema": 2'),
        "is not whole JSON": text[:-40],
        "lacks verdict": text.replace('"verdict"', '"verdikt"'),
        "has no schema number, expected 1": "[]",
    }


def test_what_cannot_be_read_is_named_and_nothing_is_written(tmp_path, capsys):
    out, folder = tmp_path / "out", tmp_path / "r"
    job = [str(folder), "--output", str(out)]
    for said, text in bad_records(folder).items():
        (folder / "bad.json").write_text(text)
        assert main(job) == 2
        error = capsys.readouterr().err
        assert said in error and "bad.json" in error and "; " in error
    (folder / "bad.json").unlink()
    (folder / "sweep.json").write_text("{}")  # kept beside a sweep's records
    assert main(job) == 2 and "holds no records: expected *.json" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 2 and "none.json" in capsys.readouterr().err
    assert not out.exists()


def test_runs_of_one_config_are_named_and_the_newest_only_when_asked(tmp_path, capsys):
    old, new = made("verify_cost"), made("verify_cost")
    old["utc"], new["utc"] = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    records, out = saved(tmp_path / "r", a=new, b=old), str(tmp_path / "out")
    job = [records, "--output", out, "--only", "ratio"]
    assert main(job) == 2
    said = capsys.readouterr().err
    assert "expected one run of a config on a device, got 2; --newest keeps the last one" in said
    assert "r/a" in said and "r/b" in said and not (tmp_path / "out").exists()
    assert main([*job, "--newest"]) == 0
    text = (tmp_path / "out" / PAGE).read_text()
    assert "r/a" in text and "r/b" not in text


def test_a_plot_that_no_record_has_is_named(tmp_path, capsys):
    records, out = saved(tmp_path / "r", a=made("verify_cost")), tmp_path / "out"
    assert main([records, "--output", str(out), "--only", "kl_by_bits"]) == 2
    said = capsys.readouterr().err
    assert "plot kl_by_bits has nothing to show" in said and "ratio, step_ms" in said
    assert not out.exists()


def test_plots_are_drawn_again_from_their_data(tmp_path, capsys):
    records, out = saved(tmp_path / "r", a=made("verify_cost")), tmp_path / "out"
    assert main([records, "--output", str(out), "--only", "ratio"]) == 0
    capsys.readouterr()
    data, again = out / "ratio.plot.json", tmp_path / "again"
    assert main(["--draw", str(data), "--output", str(again)]) == 0
    names = sorted(p.name for p in again.iterdir())
    assert names == [f"ratio-{t}.{kind}" for t in ("dark", "light") for kind in ("png", "svg")]
    assert all((again / name).read_bytes() == (out / name).read_bytes() for name in names)
    assert main(["--draw", str(tmp_path / "r" / "a.json")]) == 2
    assert "expected a plot's data, NAME.plot.json" in capsys.readouterr().err


def test_identity_sees_config_and_device():
    one = made("decode")
    assert found.identity(one) == found.identity(made("decode"))
    assert found.identity(one) != found.identity(made("decode", name="another"))
    assert found.identity(one) != found.identity(made("decode", config={"seed": 1}))
    assert found.differing([one, made("decode", config={"kv": {"format": "fp8"}})]) == ["kv.format"]
