"""Counts of processes from telemetry: the utilisation law, and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kproc.pipeline.spec import parse_spec
from kproc.pipeline.telemetry.report import propose, remarks, spec_text, summary


def look(at: int, role: str, count: int, busy: float, on_cpu: float | None = None) -> dict[str, Any]:
    return {
        "at_ms": at,
        "role": role,
        "count": count,
        "busy": busy,
        "on_cpu": on_cpu,
        "queued": 0,
        "interval_ms": 1000,
    }


@pytest.mark.parametrize(
    ("busy", "target", "wanted"),
    [(0.0, 0.7, 1), (0.7, 0.7, 1), (0.71, 0.7, 2), (1.4, 0.7, 2), (1.9, 0.7, 3), (1.9, 0.95, 2)],
)
def test_count_is_the_work_over_the_utilisation(busy: float, target: float, wanted: int) -> None:
    looks = [look(at, "handler", 2, busy) for at in range(10)]
    (proposal,) = propose(looks, target)
    assert (proposal.count, proposal.count_wanted) == (2, wanted)
    assert f"so {wanted}" in proposal.reason
    assert proposal.setting == "num.io.threads"


def test_busy_looks_count_and_one_outlier_does_not() -> None:
    quiet = [look(at, "processor", 1, 0.1) for at in range(90)]
    bursts = [look(90 + at, "processor", 1, 0.9) for at in range(10)]
    (proposal,) = propose(quiet + bursts)
    assert (proposal.busy, proposal.count_wanted) == (0.9, 2)
    (proposal,) = propose(
        [*[look(at, "processor", 1, 0.1) for at in range(99)], look(99, "processor", 1, 0.9)]
    )
    assert (proposal.busy, proposal.count_wanted) == (0.1, 1)


def test_looks_at_idle_roles_hide_no_load() -> None:
    idle = [look(at, "handler", 2, 0.02) for at in range(1000)]
    (proposal,) = propose([*idle, *(look(1000 + at, "handler", 2, 1.5) for at in range(20))])
    assert (proposal.busy, proposal.count_wanted, proposal.looks) == (1.5, 3, 20)
    assert proposal.busy_mean == pytest.approx(1.5)
    assert "95th percentile of 20 looks" in proposal.reason
    (proposal,) = propose(idle)
    assert (proposal.busy, proposal.count_wanted, proposal.looks) == (0.02, 1, 1000)


def test_the_present_count_is_that_of_the_latest_look() -> None:
    (proposal,) = propose([look(2, "handler", 3, 0.2), look(1, "handler", 1, 0.9)])
    assert proposal.count == 3


def test_time_that_was_waited_is_told() -> None:
    (proposal,) = propose([look(1, "handler", 1, 0.9, 0.3)])
    assert "waited" in proposal.reason
    assert "0.30 on a CPU" in proposal.reason
    (proposal,) = propose([look(1, "handler", 1, 0.9, 0.85)])
    assert "waited" not in proposal.reason


def test_time_that_was_waited_for_a_cpu_is_no_reason_for_more_processes() -> None:
    (proposal,) = propose([look(1, "handler", 1, 0.9, 0.65)])
    assert (proposal.busy, proposal.work, proposal.count_wanted) == (0.9, 0.65, 1)
    assert "0.65 / 70% = 0.93, so 1" in proposal.reason


def test_the_summary_says_of_what_time_the_figures_are_and_what_they_lack() -> None:
    broker = {
        "seconds": 20.4, "looks": 20, "from_ms": 1767225600000, "to_ms": 1767225620400, "dropped": 0,
    }  # fmt: skip
    assert summary(broker) == "20 looks at 20 s from 2026-01-01 00:00:00 to 2026-01-01 00:00:20 UTC"
    assert "7 lines of telemetry were dropped" in summary({**broker, "dropped": 7})
    assert "kproc.telemetry" in summary({**broker, "seconds": None, "looks": 0})


def test_remarks_name_what_gives_out_first_and_a_host_that_is_too_small() -> None:
    proposals = propose([look(1, "handler", 1, 0.5), look(1, "processor", 1, 0.25)])
    assert "handlers would be used up first: at 2.0 times" in remarks(proposals, 2.0, "process")[0]
    busy = propose([look(1, "handler", 4, 4.0), look(1, "processor", 4, 4.0)])
    assert "too small" in remarks(busy, 2.0, "process")[0]
    assert "share one process" in remarks(proposals, 2.0, "thread")[0]
    assert "metrics or all" in remarks([], None, None)[0]


def test_the_specification_can_begin_later_and_write_to_a_topic() -> None:
    pipeline = parse_spec(spec_text(), Path("/tmp/t.toml"))
    assert [sink.name for sink in pipeline.sinks] == ["latency", "apis", "partitions", "load", "brokers"]
    text = spec_text(topic='na"me', since="2026-01-01T00:00:00+00:00")
    later = parse_spec(text, Path("/tmp/t.toml"))
    assert later.sources[0].options["startingTimestamp"] == "1767225600000"
    assert [sink.target for sink in later.sinks if sink.kind == "topic"] == ['na"me'] * 4
