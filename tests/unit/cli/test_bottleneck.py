"""The bottleneck that `kproc top` names."""

from __future__ import annotations

from typing import Any

from kproc.cli.bottleneck import find_bottleneck
from tests.support.status_rows import api, role, start, status


def found(now: dict[str, Any], host_busy: float | None = None) -> tuple[str, str]:
    return find_bottleneck(now, start(now), 1.0, host_busy)


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
    now = status(role("handler", counters={"syncs": 30}), apis=[api(remote=4.0, total=5.0)])
    assert found(now) == ("disk sync", "acks=all waits 4.0 of 5.0 ms for fdatasync (30 rounds)")
    assert found(status(role("handler"), apis=[api(remote=4.0, total=5.0)]))[0] == "none"


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
