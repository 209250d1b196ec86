"""Every measuring experiment runs on the embedded model as it does on a card."""

import pytest

from tests.experiments.runs import record_of

RUNS = {
    "plan": (),
    "decode": ("params.contexts=[0,100]", "params.rounds=1"),
    "verify_cost": ("params.rows=[1,8]", "params.rounds=1"),
    "kernel_bench": (
        "params.rows=[1,8]",
        "params.variants=[tile]",
        "params.rounds=1",
        "params.cold_bytes=0",
    ),
    "step_profile": ("params.steps=1",),
    "compile_compare": ("params.backends=[eager,cuda_graph]", "params.rounds=1"),
    "replay_check": ("params.steps=4", "params.rows=[1,8]"),
}


@pytest.mark.parametrize("name", RUNS)
def test_on_the_embedded_model(name, tmp_path):
    record = record_of(
        tmp_path, f"+exp={name}", "model=tiny", "device=cpu", "threads=1", *RUNS[name]
    )
    assert record["experiment"] == name and record["figures"]
    assert (tmp_path / "out" / "report.md").stat().st_size > 0
    if record["verdict"] is not None:
        assert record["verdict"]["exact"]
