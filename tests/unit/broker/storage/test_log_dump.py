"""`kproc dump-log` of a partition's files, whole and damaged in each way."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.log_dump import (
    Problem,
    describe_batch,
    describe_index,
    read_batches,
    verify_partition,
)
from kproc.broker.storage.os_fs import OsFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, sequenced

LOG = f"{0:020d}.log"
INDEX = f"{0:020d}.index"
TIME_INDEX = f"{0:020d}.timeindex"
BATCHES = 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition of several segments with indexes and a producer snapshot, cleanly closed."""
    rig = LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200, segment_bytes=900))
    log = rig.open()
    for number in range(BATCHES):
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number))
    append_one(log, sequenced(7, 0, count=3))
    log.close(clean=True)
    return rig.directory


def problems(directory: Path) -> list[Problem]:
    return verify_partition(OsFs(), directory)[2]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_a_whole_log_has_all_its_batches_and_no_problem(directory: Path) -> None:
    assert len(list(directory.glob("*.log"))) > 1
    assert verify_partition(OsFs(), directory) == (BATCHES + 1, 2 * BATCHES + 3, [])


def test_a_batch_is_described_as_it_was_sent(directory: Path) -> None:
    first = describe_batch(next(read_batches(OsFs(), directory / LOG)))
    assert (first["base_offset"], first["last_offset"], first["count"], first["position"]) == (0, 1, 2, 0)
    assert (first["codec"], first["max_timestamp"], first["is_valid"]) == ("none", NOW_MS, True)
    assert first["bytes"] < (directory / LOG).stat().st_size


def test_index_entries_are_shown_with_whole_offsets(directory: Path) -> None:
    last = sorted(directory.glob("*.index"))[1]
    entries = describe_index(OsFs(), last)
    assert all(entry["offset"] >= int(last.stem) for entry in entries)
    stamps = describe_index(OsFs(), directory / TIME_INDEX)
    assert stamps[0]["timestamp"] >= NOW_MS
    [snapshot] = [path for path in directory.glob("*.snapshot") if describe_index(OsFs(), path)]
    [entry] = describe_index(OsFs(), snapshot)
    assert (entry["producer_id"], entry["batches"][0][0]) == (7, 2)


def test_a_changed_byte_in_a_record_is_damage(directory: Path) -> None:
    flip(directory / LOG, 70)
    [problem] = problems(directory)
    assert "CRC" in problem.what
    assert not problem.is_torn_tail


def test_a_cut_last_segment_is_a_torn_tail(directory: Path) -> None:
    last = sorted(directory.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    found = problems(directory)
    assert [problem.is_torn_tail for problem in found if problem.path == last] == [True]


def test_broken_header_before_good_batches_is_no_torn_tail(directory: Path) -> None:
    for path in sorted(directory.glob("*.log"))[1:]:
        path.unlink()
    flip(directory / LOG, 16)  # The magic byte of the first batch.
    [problem] = [problem for problem in problems(directory) if problem.path.name == LOG]
    assert not problem.is_torn_tail


@pytest.mark.parametrize("name", [INDEX, TIME_INDEX])
def test_an_index_that_says_what_the_log_does_not_is_damage(directory: Path, name: str) -> None:
    flip(directory / name, len((directory / name).read_bytes()) - 1)
    assert [problem.path.name for problem in problems(directory)] == [name]


def test_zeros_behind_mapped_index_entries_are_ignored(directory: Path) -> None:
    before = describe_index(OsFs(), directory / INDEX)
    with open(directory / INDEX, "ab") as file:
        file.write(bytes(80))
    assert describe_index(OsFs(), directory / INDEX) == before
