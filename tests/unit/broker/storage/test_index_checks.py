"""Indexes that recovery checks against their batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from tests.support.logs import NOW_MS, LogRig, append_one, batch, write_log

LOG = f"{0:020d}.log"
INDEX = f"{0:020d}.index"
TIME_INDEX = f"{0:020d}.timeindex"


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200))


def test_a_rebuilt_index_equals_the_one_that_appending_wrote(rig: LogRig) -> None:
    write_log(rig, 200, clean=True)
    written = rig.files
    assert len(written[INDEX]) > 400
    for doomed in ([INDEX], [TIME_INDEX], [INDEX, TIME_INDEX]):
        for recovery_point in (0, 1, 150, 399, 400):
            for name in doomed:
                (rig.directory / name).unlink()
            log = rig.open(recovery_point=recovery_point)
            log.close()
            assert {name: rig.files[name] for name in (INDEX, TIME_INDEX)} == {
                name: written[name] for name in (INDEX, TIME_INDEX)
            }


@pytest.mark.parametrize("recovery_point", [0, 7, 100, 390])
def test_an_unclean_start_goes_on_with_the_same_indexes(rig: LogRig, recovery_point: int) -> None:
    other = LogRig(rig.directory.with_name("other-0"), config=rig.config)
    write_log(rig, 200)
    log = rig.open(recovery_point=recovery_point)
    unbroken = other.open()
    for number in range(200):
        append_one(unbroken, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number))
    for both in (log, unbroken):
        for number in range(100):
            append_one(both, batch(str(number), timestamp=NOW_MS + 5000 + number))
        both.close()
    for name in (INDEX, TIME_INDEX, LOG):
        assert rig.files[name] == other.files[name], name


def test_indexes_of_segment_at_recovery_point_are_rebuilt(rig: LogRig) -> None:
    """Its records were synced while it was active, and no round since has synced its indexes."""
    rig.config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    log = rig.open()
    log.append([batch("a", timestamp=NOW_MS + number) for number in range(10)])
    following = log.state.segment_info()[1].base_offset
    log.close(clean=False)
    index = rig.directory / INDEX
    content = index.read_bytes()
    assert len(content) == 16
    index.write_bytes(bytes(8) + content[8:])  # An entry whose page never reached the disk.
    log = rig.open(recovery_point=following)
    assert index.read_bytes() == content
    log.close()
