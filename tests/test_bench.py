"""Timing helpers, on whatever device there is."""

import pytest
import torch

from tr.bench import CACHES, MOST_COPIES, Draw, Timing, cache_bytes, measure, time_us, waits

CPU = torch.device("cpu")
seen: set[int] = set()


def double(x):
    seen.add(x.data_ptr())
    return x + x


@pytest.mark.parametrize(
    "cold, copies", [(0, 2), (5 * 8192, 5), (5 * 8192 - 1, 5), (2**30, MOST_COPIES)]
)
def test_arguments_rotate_past_the_cache(cold, copies):
    seen.clear()
    timing = measure(double, [torch.ones(1024)], 8192, CPU, rounds=4, cold_bytes=cold)
    assert timing.copies == copies == len(seen)
    assert 0 < timing.us_min <= timing.us <= timing.us_max and not timing.captured


def test_default_cold_bytes_follow_the_cache():
    x = torch.ones(2**20)
    timing = measure(double, [x], 2 * x.nbytes, CPU, rounds=1)
    assert timing.copies == max(2, CACHES * cache_bytes(CPU) // 2**23)


def test_bandwidth_is_bytes_over_time():
    assert Timing(2.0, 1.0, 3.0, 2, 8000, False).gb_per_s == pytest.approx(4.0)


def test_rounds_run_every_call_in_order():
    order = []
    figures = time_us([lambda i=i: order.append(i) for i in range(3)], CPU, 2, 1)
    assert order == [0, 0, 1, 2, 0, 1, 2] and len(figures) == 2
    with pytest.raises(ValueError, match="nothing to time"):
        time_us([], CPU)


def test_draws_repeat_and_are_never_zeros():
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        a, b = (Draw("cpu", dtype, seed=3)(8, 16).float() for _ in range(2))
        assert torch.equal(a, b) and a.std() > 0.5
    draw = Draw("cpu")
    assert not torch.equal(draw(4), draw(4))
    assert draw.scalar(2).dtype == torch.int64 and draw.scalar(2.0).dtype == torch.float32
    assert Draw("meta")(3, 5).shape == (3, 5) and Draw("meta").scalar(1).is_meta


@pytest.mark.gpu
def test_graph_replay_times_and_runs_the_calls():
    x = torch.zeros(1024, device="cuda")
    figures = time_us([lambda: x.add_(1)] * 4, torch.device("cuda"), rounds=5, warmup=2)
    assert len(figures) == 5 and min(figures) > 0
    assert x[0] == 4 * (1 + 2 + 5)  # once before capture, then each replay


@pytest.mark.gpu
def test_calls_that_wait_are_timed_without_a_graph():
    x = torch.ones(1024, device="cuda")
    assert waits(lambda: x.sum().item()) and not waits(lambda: x.sum())
    for call, captured in ((lambda x: x.sum().item(), False), (lambda x: x.sum(), True)):
        timing = measure(call, [x], x.nbytes, x.device, rounds=2, cold_bytes=0)
        assert timing.captured is captured and timing.us > 0
