"""The bottleneck that `kproc top` names."""

from __future__ import annotations

from typing import Any

from kproc.cli.bottleneck import find_bottleneck
from tests.support.status_rows import api, role, start, status


def found(now: dict[str, Any], host_busy: float | None = None) -> tuple[str, str]:
    stage, reason, _ = find_bottleneck(now, start(now), 1.0, host_busy)
    return stage, reason


def test_handler_without_time_to_spare_is_named_with_its_ring() -> None:
    now = status(
        role("handler", 0, slept=0.02), role("handler", 1, slept=0.8), role("processor", ring_fill=0.75)
    )
    stage, reason = found(now)
    assert stage == "Handlers"
    assert "handler-0 works 98 % of the time (of 2, the idlest 20 %)" in reason
    assert "request rings 75 % full" in reason
    assert "--handlers" in reason


def test_busy_processor_is_named_but_not_control_plane() -> None:
    control = role("processor", 447, slept=0.0, pool="control")
    assert found(status(role("processor", slept=0.01), control))[0] == "Processors"
    assert found(status(role("processor", slept=0.5), control))[0] == "none"


def test_hung_role_comes_before_everything() -> None:
    now = status(role("handler", slept=0.0), role("processor", state="hung", hung_ms=4_200))
    assert found(now) == ("processor-0", "it hangs: no sign of life for 4.2 s")


def test_limit_of_connections_is_named_by_its_listener() -> None:
    stage, reason = found(status(role("handler"), PLAINTEXT=0.6))
    assert stage == "Acceptor"
    assert reason.startswith("PLAINTEXT let new connections wait 60 % of the time")


def test_full_ring_of_a_handler_that_does_not_take_is_named() -> None:
    assert found(status(role("handler"), role("processor", ring_fill=0.9)))[0] == "request ring"


def test_sync_is_named_when_acks_all_waits_for_it() -> None:
    now = status(role("handler", counters={"syncs": 30}), apis=[api(remote=40.0, total=50.0)])
    reason = "acks=all waits 40.0 of 50.0 ms for fdatasync (30 rounds)"
    assert find_bottleneck(now, start(now), 1.0) == ("disk sync", reason, False)
    now["apis"] = [api(remote=4.0, total=5.0)]
    assert find_bottleneck(now, start(now), 1.0).is_normal
    assert found(now, 0.99)[0] == "CPU", "a usual disk does not hide a host without a free core"
    for syncs in (0, 4):
        now = status(role("handler", counters={"syncs": syncs}), apis=[api(remote=40.0, total=50.0)])
        assert found(now)[0] == "none"


def test_sync_is_judged_by_the_interval_alone() -> None:
    """Requests from before the interval once made an idle disk the bottleneck."""
    now = status(role("handler", counters={"syncs": 30}), apis=[api(remote=40.0, total=50.0)])
    before = start(now) | {"apis": [dict(now["apis"][0])]}
    assert find_bottleneck(now, before, 1.0).stage == "none"


def test_wait_for_a_paused_handler_is_named_before_the_disk() -> None:
    waits = api(queue=202.0, remote=8.0, total=213.0)
    now = status(role("handler", slept=0.99, counters={"syncs": 30}), apis=[waits])
    stage, reason = found(now)
    assert stage == "Handlers"
    assert "Produce waits 202 of 213 ms for a Handler, and the busiest works 1 %: one is paused" in reason
    assert found(now, 0.99)[0] == "Handlers", "a busy host does not explain a wait this long"
    now["processes"][0]["counters"]["slept_ns"] = 300_000_000
    assert "--handlers" in found(now)[1]


def test_small_or_rare_wait_for_a_handler_is_not_named() -> None:
    rows = (role("handler", counters={"syncs": 30}), role("processor", requests_total=500))
    assert found(status(*rows, apis=[api(queue=3.0, total=4.0)]))[0] == "none"
    assert found(status(*rows, apis=[api(queue=30.0, total=31.0)]), 0.99)[0] == "CPU"
    rare = api(queue=202.0, total=213.0) | {"timed": 2}
    assert found(status(*rows, apis=[rare]))[0] == "none"
    slow = api(queue=30.0, remote=90.0, total=121.0)
    assert found(status(*rows, apis=[slow]))[0] == "disk sync", "the disk has the larger part"


def test_host_without_a_free_core_is_named() -> None:
    assert found(status(role("handler", slept=0.5)), 0.99)[0] == "CPU"
    assert found(status(role("handler", slept=0.5)), 0.5)[0] == "none"


def test_broker_that_has_time_says_what_waits() -> None:
    now = status(role("handler", slept=0.7, parked=3), role("processor", requests_total=500))
    stage, reason = found(now)
    assert stage == "none"
    assert "handler-0 least: it works 30 %" in reason
    assert "3 requests wait in the purgatory" in reason
    assert "nothing to do" in found(status(role("handler"), role("processor")))[1]
    assert "nothing is known yet" in find_bottleneck(now, None, 1.0)[1]
