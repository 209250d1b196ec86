"""What is generated from committed records is current, and no figure stands without one."""

import re
import shutil

import pytest

from tests.report.made import made
from tr.report import plot, readme, record
from tr.report.machine import ROOT
from tr.report.readme import BEGIN, END, README

#: what the README says with a number that measures nothing
STATED = (
    "(3.11 or newer)",
    "not the 75 % and more that it is meant to",
    "exits with 1\n",
    "and with 2 on a caller's mistake",
    "weights to 4 bits",
    "16-entry tables",
)


@pytest.fixture(scope="module")
def generated():
    return readme.generated()


def test_generated_texts_are_current_to_the_byte(generated):
    for path, text in generated[0].items():
        stored = ROOT / path
        assert stored.exists(), f"{path} is missing; run: python -m tr.report --readme"
        same = stored.read_bytes() == text.encode()
        assert same, f"{path} is not current; run: python -m tr.report --readme"


def test_every_plot_is_there_with_its_data_and_no_other(generated):
    names = [path for name in generated[1] for path in readme.pictures_of(name)]
    names += [path for path in generated[0] if path.endswith(plot.SUFFIX)]
    inside = [str(p.relative_to(ROOT)) for p in (ROOT / readme.FOLDER).iterdir()]
    assert sorted(inside) == sorted(names)
    for name, shown in generated[1].items():
        stored = plot.load(ROOT / readme.FOLDER / f"{name}{plot.SUFFIX}")
        assert plot.text(stored) == plot.text(shown)


def bare(text):
    """Numbers outside code, generated parts and names such as H200 or Qwen3.8-27B."""
    generated = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
    for pattern in (generated, readme.INLINE, re.compile("```.*?```", re.DOTALL)):
        text = pattern.sub("", text)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", text)
    return re.findall(r"(?<![\w.-])\d[\d.,]*(?![\w])(?<![.,])", text)


def test_no_number_stands_in_the_readme_without_a_record():
    text = (ROOT / README).read_text(encoding="utf-8")
    for phrase in STATED:
        assert phrase in text, f"{phrase!r} is no longer said; take it off the list"
        text = text.replace(phrase, "")
    assert bare(text) == [], "say it with <!-- figure RECORD PATH FORMAT --><!-- / -->"
    assert bare("at 180 tokens/s, 0.54 on the H200, 27B, `5` [x](a#1)") == ["180", "0.54"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / README).write_text(f"# head\n\n{BEGIN}\nold\n{END}\n\ntail\n")
    (tmp_path / readme.RECORDS).mkdir(parents=True)
    return tmp_path


def test_the_readme_is_regenerated_between_its_markers(root):
    assert readme.update(root) == [README, readme.PAGE]
    assert readme.NOTHING in (root / README).read_text()
    records = root / readme.RECORDS
    record.save(made(), records / "cpu" / "dflash2_verify-tiny.json")
    record.save(made("quality"), records / "cpu" / "quality-tiny.json")
    changed = readme.update(root)
    assert {README, readme.PAGE, *readme.pictures_of("kl_by_bits")} < set(changed)
    assert readme.update(root) == []
    text = (root / README).read_text()
    link = "[cpu/dflash2_verify-tiny](docs/figures.md#cpudflash2_verify-tiny)"
    assert (
        f"| dflash2, code | 120.0 tokens/s, raw 51.00 | 4.00 tokens a step; exact | {link}" in text
    )
    assert "KL 0.0150 nats, 0.25 of rtn's" in text and "old" not in text
    assert text.startswith("# head\n") and text.endswith(f"{END}\n\ntail\n")
    chosen = made()
    chosen["config"]["kernel"] = {"variant": "auto", "silu_mul": "reference"}
    record.save(chosen, records / "cpu" / "dflash2_verify-chosen.json")
    assert readme.update(root) == [readme.PAGE]  # not among the headlines


def test_pictures_are_drawn_again_where_their_data_changed(root):
    path = root / readme.RECORDS / "cpu" / "quality-tiny.json"
    one = made("quality")
    record.save(one, path)
    readme.update(root)
    picture = root / readme.pictures_of("kl_by_bits")[0]
    picture.write_text("drawn by another matplotlib")
    assert readme.update(root) == []
    one["figures"]["candidates"]["refined"]["kl_mean"] = 0.02
    record.save(one, path)
    assert readme.pictures_of("kl_by_bits")[0] in readme.update(root)
    shutil.rmtree(root / readme.FOLDER)
    assert readme.update(root)[1:] == readme.pictures_of("kl_by_bits")


def test_numbers_in_sentences_come_from_records(root):
    records = {"cpu/q": made("quality")}
    marked = "A <!-- figure cpu/q candidates.rtn.kl_mean .1f -->9<!-- / --> of"
    assert "-->0.1<!-- / -->" in readme.inline(marked, records)
    with pytest.raises(ValueError, match="names the record cpu/q, which"):
        readme.inline(marked, {})
    with pytest.raises(ValueError, match="expected a number, got None"):
        readme.inline(marked.replace("kl_mean", "kl"), records)
    (root / README).write_text("no markers")
    with pytest.raises(ValueError, match="expected the lines"):
        readme.update(root)
    assert not (root / readme.PAGE).exists()


def test_progress_is_kept_where_git_has_no_history(root):
    record.save(made("decode"), root / readme.RECORDS / "h200" / "decode-int4.json")
    readme.update(root)
    assert not (root / readme.FOLDER / "progress.plot.json").exists()
    kept = plot.Plot("curves", "t", "commit", "speed", {"a": [["c1", 1.0]]}, x_scale="names")
    (root / readme.FOLDER).mkdir(parents=True, exist_ok=True)
    (root / readme.FOLDER / "progress.plot.json").write_text(plot.text(kept))
    assert readme.update(root) == [README, readme.PAGE, *readme.pictures_of("progress")]
    assert plot.load(root / readme.FOLDER / "progress.plot.json") == kept
