"""MetadataReplay: torn tails, damage, and snapshots."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kproc.broker.cluster import metadata_files
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.storage.checkpoints import write_partition_metadata
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import Corrupt
from tests.support.metadata_logs import (
    FIRST_LOG,
    contents,
    files,
    fill_up,
    grown,
    ids,
    new_topic,
    open_log,
    reopened,
    write_four_deltas,
)


@pytest.fixture
def three_topics(tmp_path: Path) -> tuple[Path, list[ClusterImage], list[int]]:
    """A log of four deltas, with the image and the file's size after each."""
    return tmp_path / "data", *write_four_deltas(tmp_path / "data")


def mark_synced(directory, size):
    """As the log was marked when the controller died in its last write."""
    descriptor = OsFs().open(directory / METADATA_DIRECTORY / FIRST_LOG)
    OsFs().write_synced_mark(descriptor, size)
    OsFs().close(descriptor)


@pytest.mark.parametrize("harm", ["cut", "zeroes"])
def test_open_log_damaged_below_what_was_synced_is_refused(three_topics, harm):
    """A cut at the end of a batch, and zeroes up to the end, look like a torn write, but all of it was synced."""
    directory, _, sizes = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    for size in sizes[1:-1]:
        good = path.read_bytes()
        with open(path, "r+b") as file:
            file.truncate(size)
            file.truncate(size if harm == "cut" else len(good))
        with pytest.raises(Corrupt, match=rf"at byte {size}, but {len(good)} bytes had been synced"):
            open_log(directory)
        with open(path, "r+b") as file:
            file.write(good)


def test_loss_of_the_last_change_is_refused_after_a_kill(tmp_path):
    """The change was acknowledged. A log that ends before it must not pass for one with a torn write."""
    log, image = open_log(tmp_path)
    log.commit(image, [r.ClusterRegistered("c")])
    before = log.size_bytes
    log.commit(image, new_topic(1, 0))
    path = tmp_path / METADATA_DIRECTORY / FIRST_LOG
    for size in (before, log.size_bytes - 1):
        os.truncate(path, size)
        with pytest.raises(Corrupt, match=rf"at byte {before}, but {log.size_bytes} bytes had been synced"):
            open_log(tmp_path)
    log.close()


@pytest.mark.long
def test_a_write_torn_at_any_byte_is_cut_off_and_the_log_goes_on(three_topics, tmp_path, caplog):
    directory, images, sizes = three_topics
    for cut in range(sizes[-2] + 1, sizes[-1]):
        copy = tmp_path / f"cut-at-{cut}"
        shutil.copytree(directory, copy)
        os.truncate(copy / METADATA_DIRECTORY / FIRST_LOG, cut)
        mark_synced(copy, sizes[-2])
        log, image = open_log(copy)
        assert contents(image) == contents(images[-2])
        assert log.size_bytes == sizes[-2]
        log.commit(image, new_topic(3, 2))
        log.close()
        assert contents(reopened(copy)) == contents(images[-1])
    assert "torn_at" in caplog.text


def test_a_wrong_offset_in_the_last_batch_is_refused(three_topics):
    directory, _, sizes = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    data = bytearray(path.read_bytes())
    data[sizes[-2] + 7] = 0
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="records 0 to 3 follows version 7"):
        open_log(directory)


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\xff" * 100, b"\x02" * 64])
def test_bytes_that_were_never_a_batch_are_cut_off(three_topics, tail):
    directory, images, sizes = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    path.write_bytes(path.read_bytes() + tail)
    assert contents(reopened(directory)) == contents(images[-1])
    assert path.stat().st_size == sizes[-1]


def test_damage_with_good_batches_behind_it_is_refused(three_topics):
    directory, _, sizes = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    good = path.read_bytes()
    for position in range(sizes[1], sizes[2]):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x40]) + good[position + 1 :])
        if 12 <= position - sizes[1] < 16:
            continue  # The leader epoch lies outside the CRC, and nothing here looks at it.
        # So does the base offset, but a wrong one does not follow the version before it.
        why = "follows version 1" if position - sizes[1] < 8 else rf"damaged or truncated at byte {sizes[1]}, but"
        with pytest.raises(Corrupt, match=why):
            open_log(directory)
        assert path.stat().st_size == len(good)


def test_a_missing_batch_is_refused(three_topics):
    directory, _, sizes = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    good = path.read_bytes()
    path.write_bytes(good[: sizes[1]] + good[sizes[2] :])
    with pytest.raises(Corrupt, match="records 4 to 7 follows version 1"):
        open_log(directory)


@pytest.mark.parametrize(
    "record", [b"\x92\x63\x01", b"\x94\x08\xa1\xff\xa1n\xa1v"], ids=["unknown kind", "text not UTF-8"]
)
def test_a_record_of_a_newer_kproc_is_refused_not_skipped(tmp_path, monkeypatch, record):
    log, _ = open_log(tmp_path)
    monkeypatch.setattr(r, "encode_record", lambda _: record)
    log.append([r.BrokerStarted(0)])
    log.close()
    with pytest.raises(Corrupt, match="start the newer version") as refused:
        open_log(tmp_path)
    assert "restore a copy" not in str(refused.value), "an older copy would lose what the newer version has changed"


def test_half_a_snapshot_is_thrown_away(three_topics):
    directory, images, _ = three_topics
    half = directory / METADATA_DIRECTORY / f"{9:020d}-{0:010d}.checkpoint.tmp"
    half.write_bytes(b"half")
    assert contents(reopened(directory)) == contents(images[-1])
    assert not half.exists()


def test_snapshot_without_its_log_is_refused(tmp_path, monkeypatch):
    """The records that follow the snapshot are lost: the topics of last week would be served."""
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    log.close()
    for name in files(tmp_path):
        if name.endswith(".log"):
            (tmp_path / METADATA_DIRECTORY / name).unlink()
    with pytest.raises(Corrupt, match=r"the log that follows .* is missing"):
        open_log(tmp_path)


def test_a_damaged_snapshot_is_refused(tmp_path, monkeypatch):
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    log.close()
    path = tmp_path / METADATA_DIRECTORY / files(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(Corrupt, match="the snapshot was complete when it got its name"):
        open_log(tmp_path)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_snapshot_cut_between_two_batches_is_refused(tmp_path, monkeypatch, batches):
    """Emptied, it was taken for an empty cluster; cut at a batch, for a smaller one."""
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    log.close()
    path = tmp_path / METADATA_DIRECTORY / files(tmp_path)[0]
    ends = [end for _, end in metadata_files.batches_in(path.read_bytes())]
    assert len(ends) > 2
    os.truncate(path, [0, *ends][batches])
    with pytest.raises(Corrupt, match=r"damaged.*restore a copy of __cluster_metadata-0"):
        open_log(tmp_path)
    assert not metadata_files.is_missing(OsFs(), tmp_path)


def test_snapshot_without_first_record_is_refused(tmp_path, monkeypatch):
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    log.close()
    path = tmp_path / METADATA_DIRECTORY / files(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[next(metadata_files.batches_in(data))[1] :])
    with pytest.raises(Corrupt, match="damaged"):
        open_log(tmp_path)


def old_snapshot(directory: Path, monkeypatch, topic_count: int) -> tuple[Path, ClusterImage]:
    """Write a snapshot without a record count, as older versions did, and an empty log behind it."""
    log, image = grown(directory, monkeypatch)
    for number in range(3, topic_count + 1):
        log.commit(image, new_topic(number, number - 1))
    encode = MetadataLog._batch
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "_batch", lambda self, records, base, count=0: encode(self, records, base))
        log._compact_at = 0
        log.compact_if_large(image)
    log.close()
    return directory / METADATA_DIRECTORY / files(directory)[0], image


def partition_directory(directory: Path, topic: int) -> None:
    path = directory / f"topic-{topic}-0"
    path.mkdir()
    write_partition_metadata(OsFs(), path, ids(topic))


@pytest.mark.parametrize("topic_count", [2, 3, 4, 5])
def test_snapshot_of_older_kproc_is_loaded_and_replaced_at_once(tmp_path, monkeypatch, topic_count):
    path, image = old_snapshot(tmp_path, monkeypatch, topic_count)
    for topic in range(1, topic_count + 1):
        partition_directory(tmp_path, topic)
    assert contents(reopened(tmp_path)) == contents(image)
    log, image = open_log(tmp_path)
    log.commit(image, [r.BrokerStarted(7)])
    log.close()
    # Now the record count tells that it is cut.
    (snapshot,) = [name for name in files(tmp_path) if name.endswith(".checkpoint")]
    assert snapshot != path.name
    new = tmp_path / METADATA_DIRECTORY / snapshot
    os.truncate(new, next(metadata_files.batches_in(new.read_bytes()))[1])
    with pytest.raises(Corrupt, match="damaged, because it has 3 of"):
        open_log(tmp_path)


def test_old_snapshot_cut_between_two_batches_is_refused(tmp_path, monkeypatch):
    """It was taken for a smaller cluster: all topics behind the cut were set aside."""
    path, _ = old_snapshot(tmp_path, monkeypatch, 7)
    for topic in range(1, 8):
        partition_directory(tmp_path, topic)
    ends = [end for _, end in metadata_files.batches_in(path.read_bytes())]
    assert len(ends) > 5
    os.truncate(path, ends[3])
    with pytest.raises(Corrupt, match=r"its end seems to be missing.*topic-\d-0.*; restore a copy of"):
        open_log(tmp_path)
    # The way out for a whole snapshot beside directories of another broker.
    (tmp_path / "elsewhere").mkdir()
    for topic in range(1, 8):
        (tmp_path / f"topic-{topic}-0").rename(tmp_path / "elsewhere" / str(topic))
    reopened(tmp_path)


def test_check_of_old_snapshots_ignores_deleted_topics(tmp_path, monkeypatch):
    """A crash can leave the directory of a topic whose deletion is recorded."""
    log, image = grown(tmp_path, monkeypatch)
    log.commit(image, [r.TopicDeleted(ids(2))])
    log.close()
    partition_directory(tmp_path, 1)
    partition_directory(tmp_path, 2)
    log, image = open_log(tmp_path)
    metadata_files.check_directories(OsFs(), tmp_path / METADATA_DIRECTORY / "snapshot", image)
    log.close()


def test_record_about_a_topic_that_is_missing_is_refused(three_topics):
    """The start ended with a KeyError and a traceback."""
    directory, _, _ = three_topics
    path = directory / METADATA_DIRECTORY / FIRST_LOG
    log, _ = open_log(directory)
    log.append([r.TopicConfigSet(ids(99), "retention.ms", "1")])
    log.close()
    with pytest.raises(Corrupt, match=rf"{path}: a record up to version 11 is about a topic or partition"):
        open_log(directory)


def test_log_whose_snapshot_is_missing_is_refused(tmp_path, monkeypatch):
    """The log is empty after a compaction, so that nothing in it tells of the records before."""
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    log.close()
    (tmp_path / METADATA_DIRECTORY / files(tmp_path)[0]).unlink()
    assert not metadata_files.is_missing(OsFs(), tmp_path)
    with pytest.raises(Corrupt, match="are missing; restore a copy"):
        open_log(tmp_path)


def test_log_with_records_above_snapshot_stays_at_start(tmp_path, monkeypatch):
    """The newest snapshot is lost, but an older one is there, and the log that went on behind it."""
    log, image = grown(tmp_path, monkeypatch)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "_start_log", fail)
        log._compact_at = 0
        log.commit(image, new_topic(3, 2))
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "_remove_older_than", fail)
        log._compact_at = 0
        log.commit(image, new_topic(4, 3))
    log.commit(image, new_topic(5, 4))
    log.close()
    _, _, snapshot, log_name = sorted(files(tmp_path), key=lambda name: (name[:20], name))
    assert (snapshot[-11:], log_name[-4:]) == (".checkpoint", ".log")
    (tmp_path / METADATA_DIRECTORY / snapshot).unlink()
    for _ in range(3):
        assert contents(reopened(tmp_path)) == contents(image)
