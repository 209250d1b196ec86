"""What every test runs under: one thread, determinism, Triton's interpreter on a CPU."""

import os

import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:  # before the first import of a kernel
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("tr", deadline=None, derandomize=True)
settings.load_profile("tr")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("interpreter") and not interpreted:
            item.add_marker(pytest.mark.skip(reason="Triton compiles here; TRITON_INTERPRET=1"))


@pytest.fixture(autouse=True)
def reproducible() -> None:
    """Each test starts with one thread, seed 0, float32 and deterministic algorithms."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)


@pytest.fixture
def device() -> str:
    return "cuda" if HAS_GPU else "cpu"
