"""Offsets by topic id: what is written, what counts of it, and what damage costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage import checkpoints
from kproc.broker.storage.checkpoints import LOG_START_FILE, uuid_text
from kproc.broker.storage.offset_checkpoints import (
    OffsetCheckpoint,
    by_id_path,
    confirms_log_start,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kproc.broker.storage.os_fs import OsFs

FS = OsFs()
ONE, TWO = bytes.fromhex("6fcb514bb8784c9d95b783e9f39bf6d8"), bytes(range(16))
NAMES = {ONE: "one", TWO: "two"}
OFFSETS = {(ONE, 0): 7, (ONE, 11): 2**40, (TWO, 0): 0}


def test_offset_checkpoint_is_written_by_id_and_by_name(tmp_path: Path) -> None:
    write_offset_checkpoint(FS, tmp_path, LOG_START_FILE, OFFSETS, NAMES)
    assert (tmp_path / LOG_START_FILE).read_text() == f"0\n3\none 0 7\none 11 {2**40}\ntwo 0 0\n"
    body = f"1\n3\n{uuid_text(TWO)} 0 0\n{uuid_text(ONE)} 0 7\n{uuid_text(ONE)} 11 {2**40}\n"
    assert (tmp_path / f"{LOG_START_FILE}.by-id").read_text().startswith(body)
    by_name = {("one", 0): 7, ("one", 11): 2**40, ("two", 0): 0}
    assert read_offset_checkpoint(FS, tmp_path, LOG_START_FILE) == OffsetCheckpoint(
        OFFSETS, by_name, has_ids=True
    )


def test_missing_offset_checkpoint_is_empty(tmp_path: Path) -> None:
    assert read_offset_checkpoint(FS, tmp_path, LOG_START_FILE) == OffsetCheckpoint()


@pytest.mark.long
def test_damaged_offset_checkpoint_by_id_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every bit, every length, every zeroed half: no entry of a damaged file counts, and no reader fails."""
    write_offset_checkpoint(FS, tmp_path, LOG_START_FILE, OFFSETS, NAMES)
    path = by_id_path(tmp_path / LOG_START_FILE)
    content = path.read_bytes()
    damaged = [content[:size] for size in range(len(content))]
    damaged += [content + b"\n", bytes(len(content)), b"00000000\n", content[:8] + bytes(len(content) - 8)]
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for each in damaged:
        path.write_bytes(each)
        assert read_offset_checkpoint(FS, tmp_path, LOG_START_FILE).by_id == {}, each
    assert f"checkpoint=ignored {path}" in caplog.text


@pytest.mark.parametrize(
    "content", [b"\0" * 40, b"\xff\xfe", b"0\n2\none 0 1\n", b"1\n0\n", b"0\n1\none 0\n"]
)
def test_damaged_offset_checkpoint_by_name_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    write_offset_checkpoint(FS, tmp_path, LOG_START_FILE, OFFSETS, NAMES)
    (tmp_path / LOG_START_FILE).write_bytes(content)
    found = read_offset_checkpoint(FS, tmp_path, LOG_START_FILE)
    assert (found.by_id, found.by_name) == (OFFSETS, {})
    assert f"checkpoint=ignored {tmp_path / LOG_START_FILE}" in caplog.text


def test_confirms_log_start_needs_the_topic_id_and_its_epochs(tmp_path: Path) -> None:
    assert not confirms_log_start(FS, tmp_path / "missing", ONE, 5)
    assert not confirms_log_start(FS, tmp_path, ONE, 5)
    checkpoints.write_partition_metadata(FS, tmp_path, ONE)
    assert not confirms_log_start(FS, tmp_path, ONE, 5), "there are no epochs"
    checkpoints.write_leader_epochs(FS, tmp_path, [(0, 4), (1, 9)])
    assert not confirms_log_start(FS, tmp_path, ONE, 5), "offset 4 is still in the log"
    checkpoints.write_leader_epochs(FS, tmp_path, [(0, 5), (1, 9)])
    assert confirms_log_start(FS, tmp_path, ONE, 5)
    assert not confirms_log_start(FS, tmp_path, TWO, 5), "the directory is another topic's"
    checkpoints.write_leader_epochs(FS, tmp_path, [])
    assert not confirms_log_start(FS, tmp_path, ONE, 5)
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"")
    assert not confirms_log_start(FS, tmp_path, ONE, 5)
    (tmp_path / "partition.metadata").write_bytes(b"x" * 60)
    assert not confirms_log_start(FS, tmp_path, ONE, 5)
