"""MemoryLimit and CountedMemory: bytes count as long as their object exists."""

from __future__ import annotations

import logging

import pytest

from kproc.broker.coordinator.memory_limit import CountedMemory, MemoryLimit, bytes_of_texts


def test_bytes_count_until_their_object_is_gone() -> None:
    limit = MemoryLimit("a.setting", 100)
    first, second = CountedMemory(limit, 30), CountedMemory(limit)
    second.resize(60)
    second.resize(55)
    second.add(-5)
    assert limit.used_bytes == 80
    assert limit.has_room(20)
    assert not limit.has_room(21)
    del first
    assert limit.has_room(50)
    del second
    assert limit.used_bytes == 0


def test_nothing_added_has_room_above_the_limit() -> None:
    limit = MemoryLimit("a.setting", 10)
    counted = CountedMemory(limit, 20)
    assert [limit.has_room(added) for added in (-5, 0, 1)] == [True, True, False]
    assert counted.size == 20


def test_reserve_is_as_large_as_the_limit() -> None:
    limit = MemoryLimit("a.setting", 10)
    counted = CountedMemory(limit, 15)
    assert [limit.has_room(added, with_reserve=True) for added in (-5, 0, 5, 6)] == [True, True, True, False]
    assert not limit.has_room(1)
    assert counted.size == 15


def test_log_names_the_setting_once_until_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limit = MemoryLimit("a.setting", 100)
    counted = CountedMemory(limit, 95)
    for _ in range(3):
        assert not limit.has_room(10)
        assert limit.has_room(5)
    counted.resize(89)
    assert limit.has_room(1)
    assert not limit.has_room(12)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    begins = [record.message.partition(": ")[0] for record in caplog.records]
    assert begins == ["a.setting=100", "a.setting", "a.setting=100"]


def test_unusual_characters_count_four_times() -> None:
    assert bytes_of_texts("\N{OWL}" * 100) > 3 * bytes_of_texts("n" * 90)
    assert bytes_of_texts(None) == 0
