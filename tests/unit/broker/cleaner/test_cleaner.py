"""Cleaner: it asks owners about retention at its interval."""

from __future__ import annotations

import os

import pytest

from kproc.broker.calls.cleaner_calls import CleanerActivity
from kproc.broker.cleaner import cleaner
from kproc.broker.role.roles import handler_id
from tests.support.cleaner_rig import CHECK_MS, CleanerRig

# -- retention -----------------------------------------------------------------------------------------------


def test_owners_are_asked_at_the_interval_about_what_is_open(rig: CleanerRig) -> None:
    rig.create("t", 4)
    for index in (0, 1, 3):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    assert rig.asked() == []
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == sorted((rig.owner("t", index), "t", index) for index in (0, 1, 3))
    assert rig.asked() == []
    rig.advance_ms(CHECK_MS)
    assert len(rig.asked()) == 3


def test_many_partitions_are_looked_at_a_few_at_a_time(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "_PARTITIONS_PER_PASS", 5)
    rig.create("t", 23)
    for index in range(23):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    rig.clock.advance_ms(CHECK_MS)
    looked_at = [rig.cleaner.do_work(0) for _ in range(8)]
    assert looked_at == [0, 5, 5, 5, 5, 3, 0, 0]
    assert len(rig.asked()) == 23, "and none is left out"


def test_retention_check_is_reported_until_owners_reply(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "_PARTITIONS_PER_PASS", 1)
    rig.create("t", 2)
    rig.write_row("t", 0, start=0, end=9, recovery=9)
    rig.step(20)
    assert rig.activity() == CleanerActivity(checks_retention=False, compacts=False)
    rig.clock.advance_ms(CHECK_MS)
    rig.step(1)  # The tick starts a round, which checks one partition a duty cycle.
    assert rig.activity().checks_retention
    rig.step(20)
    assert rig.activity().checks_retention  # The owner has not replied.
    assert len(rig.asked()) == 1
    assert not rig.activity().checks_retention


def test_untouched_partition_is_opened_only_if_files_justify_it(rig: CleanerRig) -> None:
    rig.create("young", retention_ms="3600000")
    rig.create("old", retention_ms="3600000")
    rig.create("large", retention_ms="-1", retention_bytes="1000")
    rig.create("small", retention_ms="-1", retention_bytes="100000")
    rig.create("forever", retention_ms="-1")
    rig.create("empty", retention_ms="3600000")
    now_s = rig.clock.wall_ms() // 1000
    for name, age_s, size in (
        ("young", 60, 5000),
        ("old", 7200, 5000),
        ("large", 60, 5000),
        ("small", 60, 5000),
        ("forever", 10**8, 5000),
        ("empty", 7200, 0),
    ):
        path = rig.directory / f"{name}-0" / "00000000000000000000.log"
        path.parent.mkdir()
        path.write_bytes(bytes(size))
        os.utime(path, (now_s - age_s, now_s - age_s))
    rig.advance_ms(CHECK_MS)
    assert [name for _, name, _ in rig.asked()] == sorted(
        ["large", "old"], key=lambda name: (rig.owner(name, 0), name)
    )


def test_partition_that_was_never_written_to_is_not_asked_about(rig: CleanerRig) -> None:
    rig.create("t", 10)
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == []


def test_owner_that_is_away_costs_nothing(rig: CleanerRig) -> None:
    rig.create("t", 4)
    for index in range(4):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    rig.cleaner.detach(handler_id(0))
    rig.advance_ms(CHECK_MS)
    assert {index for index, _, _ in rig.asked()} == {1}


def test_stopping_cleaner_sends_no_calls(rig: CleanerRig) -> None:
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=9)
    rig.cleaner.drain()
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == []
    assert rig.cleaner.is_drained()
