"""Batches that consumers cannot read, found by the check."""

from __future__ import annotations

import pytest

from kproc.cli.batch_check import check_batches
from tests.support import hostile
from tests.support.raw import batch

DAMAGED = {
    "damaged": (lambda good: good[:-1] + b"!", "its CRC-32C does not match"),
    "another format": (lambda good: good[:16] + b"\1" + good[17:], "message format 1"),
    "no length": (lambda good: good[:8] + bytes(4) + good[12:], "batch length 0 is invalid"),
}


@pytest.mark.parametrize("story", DAMAGED)
def test_check_batches_names_what_is_wrong(story: str) -> None:
    change, why = DAMAGED[story]
    good = batch(b"x")
    found = list(check_batches(good + change(good), 0))
    assert [each.problem for each in found] == [None, why]


def test_check_batches_leaves_out_the_cut_last_batch() -> None:
    good = batch(b"x")
    assert len(list(check_batches(good + good[:-1], 0))) == 1
    assert list(check_batches(good[:30], 0)) == []


def test_check_batches_reads_a_bomb_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.wire.compression.INFLATED_BYTES_FREE", 10_000)
    monkeypatch.setattr("kproc.wire.compression.INFLATION_RATIO_MAX", 10)
    (found,) = check_batches(bytes(hostile.bomb(4, 100_000)), 0)
    assert found.problem == "records decompress to more than 10000 bytes"
