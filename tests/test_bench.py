"""Timing helpers, on whatever device there is."""

import pytest
import torch

from tr.bench import CACHES, MOST_COPIES, Bench, Timing, cache_bytes, time_us


def double(x):
    seen.add(x.data_ptr())
    return x + x


seen: set[int] = set()
BENCH = Bench(
    double,
    double,
    lambda n, dtype, device: (torch.ones(n, dtype=dtype, device=device),),
    [{"n": 1024}],
    lambda x: 2 * x.nbytes,
)


@pytest.mark.parametrize("cold, copies", [(0, 2), (5 * 8192, 5), (5 * 8192 - 1, 5), (2**30, 64)])
def test_arguments_rotate_past_the_cache(cold, copies):
    seen.clear()
    timing = BENCH.measure({"n": 1024}, torch.float32, "cpu", rounds=4, cold_bytes=cold)
    assert timing.copies == copies == len(seen) and copies <= MOST_COPIES
    assert 0 < timing.us_min <= timing.us <= timing.us_max


def test_default_cold_bytes_follow_the_cache():
    timing = BENCH.measure({"n": 2**20}, torch.float32, "cpu", rounds=1)
    assert timing.copies == max(2, CACHES * cache_bytes(torch.device("cpu")) // 2**23)


def test_bandwidth_is_bytes_over_time():
    assert Timing(2.0, 1.0, 3.0, 2, 8000).gb_per_s == pytest.approx(4.0)


def test_rounds_run_every_call_in_order():
    order = []
    figures = time_us([lambda i=i: order.append(i) for i in range(3)], torch.device("cpu"), 2, 1)
    assert order == [0, 0, 1, 2, 0, 1, 2] and len(figures) == 2
    with pytest.raises(ValueError, match="nothing to time"):
        time_us([], torch.device("cpu"))


@pytest.mark.gpu
def test_graph_replay_times_and_runs_the_calls():
    x = torch.zeros(1024, device="cuda")
    figures = time_us([lambda: x.add_(1)] * 4, torch.device("cuda"), rounds=5, warmup=2)
    assert len(figures) == 5 and min(figures) > 0
    assert x[0] == 4 * (1 + 2 + 5)  # once before capture, then each replay
