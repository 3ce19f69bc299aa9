"""Shared words between real processes: rows read whole, and a fence that a fork cannot break."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time

import pytest

from kproc.broker.ipc import words as words_module
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.words import RowWriter, cast_words, fence, read_row
from tests.support.ring_pair import Forked
from tests.support.wait import PATIENCE_SECONDS, wait_until

LITMUS_SECONDS = 0.4


@pytest.fixture
def region():
    with Region.create(RegionKind.TABLE, 4096, 1) as made:
        yield made


def test_words_must_be_whole():
    with pytest.raises(AssertionError):
        cast_words(memoryview(bytearray(12)))


def test_row_is_read_as_written(region):
    writer = RowWriter(region.words, 8, 3)
    assert read_row(region.words, 8, 3) == [0, 0, 0]
    writer.publish([1, 2, (1 << 64) - 1])
    assert read_row(region.words, 8, 3) == [1, 2, (1 << 64) - 1]
    assert region.words[12] == 0, "the row wrote past its end"


def test_row_of_another_length_is_refused(region):
    with pytest.raises(struct.error):
        RowWriter(region.words, 0, 3).publish([1, 2])


def test_torn_row_is_not_read_until_a_successor_publishes(region):
    RowWriter(region.words, 0, 2).publish([5, 6])
    region.words[0] += 1  # What a writer leaves that is killed after its first store.
    assert read_row(region.words, 0, 2) is None
    successor = RowWriter(region.words, 0, 2)
    assert region.words[0] & 1
    assert read_row(region.words, 0, 2) is None
    successor.publish([7, 8])
    assert not region.words[0] & 1
    assert read_row(region.words, 0, 2) == [7, 8]


@pytest.mark.long
def test_rows_are_never_torn_between_processes(region):
    """The words of a row, read one by one beside the row itself, do disagree: so the test can fail."""

    def write() -> int:
        writer = RowWriter(region.words, 0, 8)
        count = 0
        while not region.words[64]:
            count += 1
            writer.publish([count * factor for factor in range(1, 9)])
        return count

    child = Forked(write)
    wait_until(lambda: region.words[1], what="the writer has begun")
    rows = given_up = naive_torn = 0
    last = 0
    words = region.words
    deadline = time.monotonic() + LITMUS_SECONDS
    # A busy machine may run the reader alone for most of the time.
    while time.monotonic() < deadline or rows <= 100 or words[1] <= 100:
        row = read_row(words, 0, 8)
        if row is None:
            given_up += 1
            continue
        rows += 1
        assert row == [row[0] * factor for factor in range(1, 9)]
        assert row[0] >= last
        last = row[0]
        naive = [words[place] for place in range(1, 9)]
        naive_torn += naive != [naive[0] * factor for factor in range(1, 9)]
    words[64] = 1
    written = child.result()
    assert rows > 100
    assert written > 100
    print(f"rows {rows}, given up {given_up}, torn without the version {naive_torn}, written {written}")


@pytest.mark.long
def test_killed_row_writers_leave_a_row_that_is_whole_or_refused(region):
    def write() -> None:
        writer = RowWriter(region.words, 0, 8)
        count = int(region.words[1])
        while True:
            count += 1
            writer.publish([count * factor for factor in range(1, 9)])

    for _ in range(10):
        before = int(region.words[1])
        child = Forked(write)
        wait_until(lambda before=before: region.words[1] > before + 100, what="the writer has begun")
        child.kill()
        row = read_row(region.words, 0, 8)
        assert (row is None) == bool(region.words[0] & 1)
        if row is not None:
            assert row == [row[0] * factor for factor in range(1, 9)]


def test_fence_works_in_child_forked_during_fence():
    assert words_module._lock.acquire(blocking=False)
    try:
        # The child gets a copy of the held lock and no thread that would ever release it.
        assert Forked(lambda: fence() or "fenced").result() == "fenced"
    finally:
        words_module._lock.release()
    fence()


def test_fence_of_several_threads_does_not_deadlock():
    threads = [threading.Thread(target=lambda: [fence() for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_every_publish_is_fenced_where_the_cpu_reorders_stores(region, monkeypatch):
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    monkeypatch.setattr(words_module, "WEAKLY_ORDERED", True)
    monkeypatch.setattr(words_module, "fence", counted)
    RowWriter(region.words, 0, 2).publish([1, 2])
    assert count == 2
    assert read_row(region.words, 0, 2) == [1, 2]
    assert count == 4


def test_child_that_is_killed_is_told_from_one_that_fails():
    with pytest.raises(AssertionError, match="the child failed"):
        Forked(lambda: os.kill(os.getpid(), signal.SIGTERM)).result()
