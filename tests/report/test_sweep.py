"""A sweep read back: which settings are axes, what its table and report say."""

import copy
import json

import pytest

from tr.report import sweep
from tr.report.record import KEYS, SCHEMA, save

CONFIG = {
    "run": "decode",
    "seed": 0,
    "model": {"name": "tiny", "layers": 8},
    "draft": {"strategy": "mtp", "tokens": 3},
    "kernel": {"variant": "tile", "matmul": ""},
    "params": {"contexts": [0]},
}


def config(**changes):
    made = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        group, _, leaf = path.partition("__")
        made[group] = value if not leaf else {**made[group], leaf: value}
    return made


def record(tokens_per_step=2.0, exact=True, **changes):
    verdict = None if exact is None else {"exact": exact, "compared_tokens": 9}
    made = {
        "schema": SCHEMA, "experiment": "decode", "command": "python", "config": config(**changes),
        "commit": "0" * 40, "dirty": False, "utc": "2026-01-01T00:00:00+00:00",
        "device": {"name": "a machine"}, "versions": {"torch": "2"}, "seed": 0, "verdict": verdict,
        "figures": {"families": {"essay": {"tokens_per_step": tokens_per_step},
                                 "code": {"tokens_per_step": 4.0}}},
        "simulated_acceptance": False, "warnings": [],
    }  # fmt: skip
    assert list(made) and set(made) == set(KEYS)
    return made


@pytest.mark.parametrize(
    "configs, axes",
    [
        ([config()], []),
        ([config(), config(seed=1)], ["seed"]),
        ([config(), config(model={"name": "smoke", "layers": 4})], ["model.name"]),
        ([config(), config(draft={"strategy": "raw"})], ["draft.strategy"]),
        (
            [config(), config(draft={"strategy": "raw"}), config(draft__tokens=5)],
            ["draft.strategy", "draft.tokens"],
        ),
        ([config(), config(kernel__matmul="reference")], ["kernel.matmul"]),
        ([config(), config(params__contexts=[512])], ["params.contexts"]),
    ],
)
def test_axes(configs, axes):
    assert sweep.axes(configs) == axes


def test_identity_is_that_of_the_file_and_of_the_settings_alone():
    assert sweep.identity("decode", {"a": {2: 1.0, 10: 2.0}, "b": 1}) == sweep.identity(
        "decode", json.loads(json.dumps({"b": 1, "a": {10: 2.0, 2: 1.0}}))
    )
    assert sweep.identity("decode", CONFIG) != sweep.identity("prefill", CONFIG)
    assert sweep.identity("decode", CONFIG) != sweep.identity("decode", config(seed=1))


def test_a_table_has_axes_headlines_and_what_became_of_each_job():
    made = {
        "b": record(2.0, params__contexts=[512]),
        "a": record(6.0, None, params__contexts=[8192]),
        "c": record(5.0, False, params__contexts=[0]),
        "d": {"config": config(params__contexts=[1024]), "reason": "CUDA out of memory\nand so on"},
    }
    table = sweep.table(made, "title")
    assert table.columns == ("contexts", "tokens/step", "outcome")
    assert table.rows == (
        ("[0]", "4.50", "NOT exact"),
        ("[512]", "3.00", "exact"),
        ("[1024]", "-", "failed: CUDA out of memory"),
        ("[8192]", "5.00", "done"),
    )
    assert sweep.table(made, "title", names=True).rows[0][-1] == "c"


def test_plots_hold_the_table_s_numbers():
    made = {
        f"{draft}-{seed}": record(float(seed), draft__strategy=draft, seed=seed)
        for draft in ("mtp", "raw")
        for seed in (1, 2)
    }
    (plot,) = sweep.plots(made).values()
    assert plot.series == {
        "draft mtp": [["1", 2.5], ["2", 3.0]],
        "draft raw": [["1", 2.5], ["2", 3.0]],
    }
    assert sweep.plots({"a": record()}) == {}


def test_a_report_over_a_folder(tmp_path):
    manifest = {"schema": SCHEMA, "sweep": "kv", "experiments": ["decode"]}
    (tmp_path / "sweep.json").write_text(json.dumps(manifest))
    for name, made in {"a": record(), "b": record(seed=1)}.items():
        (tmp_path / name).mkdir()
        save(made, tmp_path / name / "record.json")
    failure = {"schema": SCHEMA, "experiment": "decode", "command": "python -m x"}
    failure |= {"config": config(seed=2), "reason": "out of memory"}
    for name in ("b", "c"):  # b was recorded by a later try
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "failure.json").write_text(json.dumps(failure))
    found = sweep.collect(tmp_path)
    assert (found.title, list(found.records), list(found.failures)) == (
        "kv-decode", ["a", "b"], ["c"]
    )  # fmt: skip
    text = sweep.write_report(found, tmp_path).read_text()
    assert "2 jobs recorded, 1 failed" in text and "| 1 | 3.00 | exact | b |" in text
    assert "**c** failed ([failure.log](c/failure.log)): `python -m x`" in text
    assert "(tokens_per_step.png)" in text and (tmp_path / "tokens_per_step.png").exists()
    with pytest.raises(ValueError, match="is not a sweep's folder"):
        sweep.collect(tmp_path / "a")
