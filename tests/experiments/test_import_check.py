"""The check of published formats: what it counts, and that it raises where it should."""

import pytest

from experiments import import_check, published
from tests.experiments.runs import record_of

FEW = ("+exp=import_check", "params.formats=[ct_symmetric,gguf]", "params.gb=0.003", "threads=1")
TWIN = "params.twins=['ct: no scale']"


def test_formats_twins_and_the_large_file(tmp_path):
    figures = record_of(tmp_path, *FEW, TWIN)["figures"]
    symmetric = figures["formats"]["ct_symmetric"]
    assert symmetric["held"] == symmetric["as_int4"] == {"exact": 73, "repacked": 50}
    assert symmetric["unequal_tensors"] == 0 and symmetric["tensors"] == 123
    assert figures["formats"]["gguf"]["as_int4"]["requantised"] > 50
    assert figures["twins"] == {"ct": 1, "cut_files": 2}
    stream = figures["stream"]
    assert 3e6 <= stream["file_bytes"] < 5e6
    assert stream["over_largest_bytes"] == stream["peak_bytes"] - stream["largest_tensor_bytes"]
    assert stream["held"]["repacked"] > 4 * stream["layers"]


def test_what_is_not_so_raises(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(published, "differences", lambda *_: ("layers.0.norm",))
        with pytest.raises(RuntimeError, match="1 tensors are not what .* layers.0.norm among"):
            record_of(tmp_path / "0", *FEW, "params.twins=[]")
    few = (FEW[0], "params.formats=[]", *FEW[2:])
    with monkeypatch.context() as patch:
        patch.setattr(import_check, "complaint", lambda _: "no")
        with pytest.raises(RuntimeError, match="the complaint has no 'model.layers.0.mlp"):
            record_of(tmp_path / "1", *few, TWIN)
    with pytest.raises(RuntimeError, match="the bound is .* of the largest tensor"):
        record_of(tmp_path / "2", *few, "params.twins=[]", "params.bound_gb=-1")
    with pytest.raises(ValueError, match="unknown params.formats 'ct_symetric'; did you mean"):
        record_of(tmp_path / "3", FEW[0], "params.formats=[ct_symetric]")
