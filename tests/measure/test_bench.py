"""Benchmarks of updates, small enough for a CPU."""

import pytest

from cclf.measure import bench
from tiny_runs import tiny_config


@pytest.mark.parametrize(("base", "method"), [("sac", "cclf"), ("drqv2", "drq-v2+cclf")])
def test_an_update_is_timed_with_its_parity_and_its_arithmetic(base: str, method: str) -> None:
    report = bench.update([tiny_config(base=base, method=method, env_steps=200)], "cpu", 2)
    figures = report[method]
    assert figures["parity"]["step_cosine"] == pytest.approx(1.0)
    assert figures["p10_ms"] <= figures["median_ms"] <= figures["p90_ms"]
    assert figures["teraflop"] > 0
