"""SegmentDirectory: files that their owner renames, replaces and deletes while they are read."""

from __future__ import annotations

import os

import pytest

from kproc.broker.storage.log import Log
from kproc.common.errors import Corrupt
from tests.support.logs import LogRig

pytest.importorskip("numpy")

from kproc.spark import segment_directory
from kproc.spark.segment_directory import LOOKS, HalfReplaced, SegmentDirectory


def test_renamed_segment_is_opened_by_its_deleted_name(rig: LogRig, log: Log) -> None:
    segments = SegmentDirectory(rig.directory)
    base = segments.bases()[0]
    path = segments.path(base)
    content = path.read_bytes()
    path.rename(path.with_name(path.name + ".deleted"))
    descriptor = segments.open(base)
    assert os.pread(descriptor, len(content) + 1, 0) == content
    os.close(descriptor)


def test_listed_segment_that_stays_missing_is_corrupt(rig: LogRig, log: Log) -> None:
    looks: list[list[int]] = []

    def look(bases: list[int]) -> None:
        looks.append(bases)
        raise FileNotFoundError

    segments = SegmentDirectory(rig.directory)
    with pytest.raises(Corrupt, match=r"t-0 in .*data: the directory lists a segment whose file"):
        segments.repeat_until_listed(look)
    assert looks == [segments.bases()] * LOOKS


def test_swap_file_that_stays_is_half_replaced(
    rig: LogRig, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_directory, "pause", lambda _ms: None)
    (rig.directory / f"{0:020d}.log.swap").touch()
    with pytest.raises(HalfReplaced):
        SegmentDirectory(rig.directory).bases()


def test_position_of_an_index_of_another_file_is_0(rig: LogRig, log: Log) -> None:
    segments = SegmentDirectory(rig.directory)
    base, other = segments.bases()[:2]
    descriptor = segments.open(base)
    offset = segments.offset_index(base)[0][-1]
    assert segments.position(base, offset, descriptor) > 0
    os.close(descriptor)
    descriptor = segments.open(other)
    assert segments.position(base, offset, descriptor) == 0
    os.close(descriptor)
