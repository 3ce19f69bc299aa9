"""Measured samples: the bottleneck, and CPU of other programs."""

from __future__ import annotations

import os

from kproc.tools.tune.measure import ProcessCounts, Sample, bottleneck, machine_cpu_seconds

INLINE, ONE, TWO, FOUR = (
    ProcessCounts(1, 1, "inline"),
    ProcessCounts(1, 1),
    ProcessCounts(2, 2),
    ProcessCounts(4, 4),
)


def test_the_bottleneck_is_who_had_no_time_left():
    def sample(cpus, generator, **roles):
        return Sample(
            ONE, 1, 1, cpus, throughput=1, seconds=1.0, requests=1, generator_cpu_s=generator,
            broker_cpu_s=sum(roles.values()), cpu_by_role=roles,
        )  # fmt: skip

    assert bottleneck(sample(8, 0.3, handler=0.99, processor=0.5)) == "handler 99 %"
    assert bottleneck(sample(8, 1.0, handler=0.5)) == "generator 100 %"
    assert bottleneck(sample(2, 0.5, handler=0.8, processor=0.6)).startswith("CPUs (all 2)")
    assert bottleneck(sample(8, 0.1, handler=0.4)).startswith("none")


def test_busy_machine_is_not_taken_for_idle_broker(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    mine = Sample(
        ONE, 1, 1, 2, throughput=1, seconds=1.0, requests=1, generator_cpu_s=0.1, broker_cpu_s=0.6,
        cpu_by_role={"handler-0": 0.4}, machine_cores=1.9,
    )  # fmt: skip
    assert bottleneck(mine) == "other programs, which used 1.2 cores"


def test_the_machines_cpu_time_leaves_out_idle_and_waiting(tmp_path):
    stat = tmp_path / "stat"
    hertz = os.sysconf("SC_CLK_TCK")
    stat.write_text(f"cpu {hertz} 0 {hertz} 900 77 0 0 {hertz} 5 0\ncpu0 1 2 3 4\n")
    assert machine_cpu_seconds(stat) == 3.0
    assert machine_cpu_seconds(tmp_path / "none") == 0.0
