"""Figures become plots: data first, then pictures that are legible and repeat to the byte."""

import itertools
import json

import numpy as np
import pytest
from matplotlib.text import Text

from tests.report.made import DRAFTS, FAMILIES, FIGURES, LENGTHS, made
from tr.report import draw, pictures, plot
from tr.report.plot import Plot
from tr.report.plots import PLOTS, across, drafts, plots, speed
from tr.report.theme import DARK, LIGHT, THEMES, slots

BARS = Plot("bars", "Speed", "text", "tokens per second", {"raw": [["code", 1.0]]}, "a card")


def clipped(figure):
    """Texts that leave the picture, among those that are drawn."""
    (axes,) = figure.axes
    hidden = {
        tick.label1
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    return [
        text.get_text()
        for text in shown
        if text not in hidden
        and not (
            figure.bbox.x0 <= (box := text.get_window_extent()).x0
            and box.x1 <= figure.bbox.x1
            and figure.bbox.y0 <= box.y0
            and box.y1 <= figure.bbox.y1
        )
    ]


@pytest.mark.parametrize("experiment", FIGURES)
def test_every_plot_is_whole_and_legible(experiment):
    found = plots(made(experiment))
    assert set(found) == set(PLOTS[experiment])
    for name, shown in found.items():
        assert "a card" in shown.note and (shown.x or shown.y)
        figure = draw.figure(shown, LIGHT)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        assert clipped(figure) == [], name
        assert axes.get_xlabel() == shown.x and axes.get_ylabel() == shown.y
        ticks = [[t for t in axes.get_xticklabels() if t.get_text()], axes.get_yticklabels()]
        for a, b in itertools.chain(*(itertools.combinations(some, 2) for some in ticks)):
            assert not a.get_window_extent().overlaps(b.get_window_extent()), name
        for legend in figure.legends:
            assert not legend.get_window_extent().overlaps(axes.get_tightbbox()), name


def test_a_plot_without_data_is_left_out():
    raw = {name: {"raw_tokens_per_s": 51.0} for name in FAMILIES}
    found = plots(made(figures={"draft": "raw", "families": raw}))
    assert list(found) == ["tokens_per_s"]
    assert plots(made("plan", {"bytes": 1})) == {}
    assert "losses" not in plots(made("train_tiny", {"losses_nats": {"1": 2.0}}))
    assert list(plots(made("decode", {"contexts": {"0": {"wall_fraction": 0.5}}}))) == []


def test_a_plot_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="'Speed' has nothing to show: .* got none; choose"):
        Plot("bars", "Speed", "text", "tokens per second", {"raw": []})
    with pytest.raises(ValueError, match="kind 'pie', expected one of"):
        Plot("pie", "Speed", "", "", {"raw": [[1, 2]]})


def test_curves_are_what_the_figures_say():
    shown = drafts.accepted_by_strategy(DRAFTS)
    assert shown is not None
    assert shown.series == {"mtp": [[1, 0.5]], "dflash2": [[1, 0.5], [2, 0.5]]}
    shown = drafts.acceptance_curve({"strategies": LENGTHS})
    assert shown is not None
    assert shown.series == {"mtp": [[512, 2.0, 1.0, 3.0], [2048, 2.0, 1.0, 3.0]]}


def test_the_wall_stands_beside_the_measured_speed():
    shown = speed.decoding_speed(FIGURES["decode"])
    assert shown is not None
    assert shown.series["at the read wall"][0] == [0, pytest.approx(4492 / 14)]


def test_the_longest_operator_comes_first_and_gaps_last():
    shown = speed.step_parts(FIGURES["step_profile"])
    assert shown is not None
    assert [name for name, _ in shown.series["1 row"]] == ["int4_matmul", "sample", "gaps"]


def test_switches_by_worth_and_as_a_chain():
    alone, chain = speed.switches(FIGURES["ablation"]), speed.waterfall(FIGURES["ablation"])
    assert alone is not None and chain is not None
    assert alone.series["step"] == [["overlap", 5.0, 5.5], ["sample", 5.0, 4.9]]
    assert chain.series["step"] == [["sample", 5.0, 4.9], ["overlap", 4.9, 5.5]]
    assert alone.note == "not drawn: jit +35.0 ms" and alone.marks == {"everything on": 5.0}


def test_records_share_a_plot_by_what_tells_them_apart():
    records = {
        f"{kv} {name}": made("decode", config={"kv": {"format": kv}}, name=name)
        for kv in ("bf16", "fp8")
        for name in ("H200", "5090")
    }
    found = across.together(records)
    assert list(found) == ["wall_by_context", "tokens_per_s_by_context"]
    names = ["H200, bf16", "5090, bf16", "H200, fp8", "5090, fp8"]
    assert list(found["wall_by_context"].series) == names
    assert across.together(dict(list(records.items())[:1])) == {}


def test_simulated_acceptance_is_said_in_the_plot():
    found = plots(made(simulated=True))
    assert all("simulated acceptance" in shown.note for shown in found.values())


def test_a_plot_comes_back_from_its_data(tmp_path):
    path = tmp_path / "speed.plot.json"
    path.write_text(plot.text(BARS))
    assert plot.load(path) == BARS
    again = plots(made("accept_curve"))["tokens_per_step"]
    path.write_text(plot.text(again))
    assert draw.picture(plot.load(path), LIGHT, "svg") == draw.picture(again, LIGHT, "svg")
    for bad in (plot.text(BARS)[:-9], json.dumps({"kind": "bars"}), "[]"):
        path.write_text(bad)
        with pytest.raises(ValueError, match=f"{path.name} is not a plot's data.*make it again"):
            plot.load(path)


def test_pictures_repeat_to_the_byte_and_carry_no_date():
    files = pictures.full("speed", BARS)
    assert files == pictures.full("speed", BARS)
    names = ["dark.png", "dark.svg", "light.png", "light.svg"]
    assert sorted(files) == [*(f"speed-{name}" for name in names), "speed.plot.json"]
    assert b"<dc:date>" not in files["speed-light.svg"]
    assert files["speed-light.svg"] != files["speed-dark.svg"]
    assert files["speed-dark.png"].startswith(b"\x89PNG")
    assert DARK.paper.lower().encode() in files["speed-dark.svg"]


def test_names_keep_their_colours():
    assert slots(["dflash2"]) == {"dflash2": slots(["raw", "mtp", "dflash2"])["dflash2"]}
    assert slots(["oracle rate=0.6"]) == {"oracle rate=0.6": slots(["oracle"])["oracle"]}
    assert len(set(slots([*"abcdefgh"]).values())) == 8
    assert len(set(slots([*"abcd", "raw", "mtp", "dflash2", "lookup"]).values())) == 8


#: what red-, green- and blue-blind eyes see of linear RGB (Machado, Oliveira, Fernandes 2009)
EYES = {
    "all": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(to_xyz @ rgb / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("eyes", EYES)
def test_colours_stay_apart(theme, eyes):
    seen = [lab(np.clip(np.array(EYES[eyes]) @ linear(c), 0.009, 1)) for c in theme.colours]
    gaps = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(gaps) > 20  # 2.3 is the least that eyes notice
    grey = [linear(c) @ [0.2126, 0.7152, 0.0722] + 0.05 for c in (*theme.colours, theme.paper)]
    contrast = [max(g, grey[-1]) / min(g, grey[-1]) for g in grey[:-1]]
    assert min(contrast) > 2.5


def test_labels_move_apart_in_order():
    moved = draw.apart([0.5, 0.51, 0.52, 0.9], 0.1)
    assert moved == pytest.approx([0.41, 0.51, 0.61, 0.9])
    assert min(draw.apart([0.0] * 5, 0.1)) == pytest.approx(0.05)
