"""Two sets of records: what changed, and what is noise."""

import pytest

from tests.report.made import made
from tr.report import record
from tr.report.__main__ import main
from tr.report.compare import Value, change, pairs, spread, values
from tr.report.pages import PAGE


@pytest.mark.parametrize(
    "figure, before, after, said",
    [
        ("contexts.0.step_ms", Value(5.0), Value(5.0), "equal"),
        ("contexts.0.step_ms", Value(5.0), Value(5.1), "noise"),
        ("contexts.0.step_ms", Value(5.0), Value(5.2), "slower"),
        ("us", Value(5.0), Value(4.0), "faster"),
        ("tokens_per_s", Value(5.0), Value(4.0), "slower"),
        ("wall_fraction", Value(0.5), Value(0.6), "faster"),
        ("tokens_per_step", Value(5.0), Value(4.0), "lower"),
        ("kl_mean", Value(0.0), Value(0.1), "higher"),
        ("us", Value(5.0, (4.0, 6.0)), Value(6.5, (5.9, 7.0)), "noise"),
        ("us", Value(5.0, (4.99, 5.01)), Value(5.05, (5.04, 5.06)), "slower"),
        ("us", Value(5.0, (4.9, 5.1)), Value(5.05), "noise"),
        ("exact", Value(True), Value(False), "differs"),
        ("override", Value("a"), Value("a"), "equal"),
    ],
)
def test_what_a_change_is_called(figure, before, after, said):
    found = change(figure, before, after, 0.03)
    assert found.said == said and found.counts == (said not in ("equal", "noise"))


def test_a_ratio_and_its_bound():
    found = change("step_ms", Value(5.0), Value(6.0), 0.03)
    assert (found.ratio, found.bound) == (pytest.approx(1.2), "3.0%")
    found = change("us", Value(5.0, (4.0, 6.0)), Value(9.0, (8.0, 9.5)), 0.03)
    assert found.bound == "4.00 to 6.00 and 8.00 to 9.50"


@pytest.mark.parametrize(
    "node, key, want",
    [
        ({"us": 5.0, "us_min": 4.0, "us_max": 6.0}, "us", (4.0, 6.0)),
        ({"t": 2.0, "least_t": 1.0, "most_t": 3.0}, "t", (1.0, 3.0)),
        ({"t": 2.0, "t_by_turn": [1.5, None, 2.5]}, "t", (1.5, 2.5)),
        ({"on_step_ms": 5.0, "on_drift_ms": 0.5}, "on_step_ms", (4.5, 5.5)),
        ({"us": 5.0, "us_min": 4.0}, "us", None),
    ],
)
def test_spreads_are_read_from_the_keys_beside_a_figure(node, key, want):
    assert spread(node, key) == want
    assert list(dict(values({"case": node}))) == [f"case.{key}"]


def test_pairs_are_found_by_name_or_by_config():
    one, other = made("decode"), made("decode", name="another card")
    assert pairs({"a": one}, {"b": other}) == [("a", one, other)]
    many = {"x": one, "y": made("verify_cost")}
    assert pairs(many, {"z": other, "y": many["y"]}) == [
        ("y", many["y"], many["y"]),
        ("x", one, other),
    ]
    with pytest.raises(ValueError, match="expected one experiment, got decode and verify_cost"):
        pairs({"a": one}, {"b": many["y"]})
    with pytest.raises(ValueError, match="nothing to compare: no record of A .x, y. has"):
        pairs(many, {"z": made("prefill")})


def test_the_command_shows_both_sides(tmp_path, capsys):
    mine = made("decode", name="NVIDIA H200", power_limit_w="700.00")
    config = {"threads": 2, "kv": {"format": "fp8"}}
    yours = made("decode", name="NVIDIA 5090", power_limit_w="575.00", config=config)
    yours["figures"]["contexts"]["0"] |= {"step_ms": 13.0, "tokens_per_s": 155.0}
    for name, one in (("mine", mine), ("yours", yours)):
        record.save(one, tmp_path / name / "decode-int4.json")
    two = ["--compare", str(tmp_path / "mine"), str(tmp_path / "yours")]
    assert main(two) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert "| power limit, W | 700 | 575 |" in rows and "| config kv.format | bf16 | fp8 |" in rows
    assert "| settings that not all know | 0 | 1 |" in rows
    assert "| contexts.0.step_ms | 6.50 | 13.00 | 2.000 | 3.0% | **slower** |" in rows
    assert "| contexts.0.tokens_per_s | 154.0 | 155.0 | 1.006 | 3.0% | noise |" in rows
    assert main([*two, "--noise", "0.001", "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / PAGE).read_text()
    assert "| contexts.0.tokens_per_s | 154.0 | 155.0 | 1.006 | 0.1% | **faster** |" in text
    assert "2 of 9 figures changed by more than noise." in text
    capsys.readouterr()
    assert main([*two, "--noise", "3"]) == 2
    assert "--noise 3.0: expected a fraction of 0 to 1" in capsys.readouterr().err
