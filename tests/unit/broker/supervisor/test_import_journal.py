"""An import that was killed while it renamed its copies into place is completed by the next command."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config
from kproc.broker.storage.fs import DiskFull
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import list_set_aside
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.import_journal import JOURNAL_FILE, copy_path, write_journal
from kproc.broker.supervisor.import_partitions import import_partitions
from kproc.broker.supervisor.offline_metadata import alter_users
from kproc.common.clock import SystemClock
from kproc.common.errors import FatalError
from tests.support.in_memory_controller import topic
from tests.support.logs import LogRig, append_one, batch

FS = OsFs()
NAMES = ["t-0", "t-1"]
SEGMENT = f"{0:020d}.log"


class Killed(BaseException):
    """The process ends here."""


class DyingFs(OsFs):
    """Ends the process before the call of rename() with this number, counted from 0."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at

    def rename(self, source: Path, target: Path) -> bool:
        if not self._left:
            raise Killed
        self._left -= 1
        return super().rename(source, target)


def config_of(data: Path) -> Config:
    return Config.build({"log.dirs": str(data)})


def make_target(data: Path) -> None:
    """Create a data directory with a topic of two partitions, of which the first one was opened."""
    config = config_of(data)
    alter_users(config, [])
    log, image = MetadataLog.open(data, SystemClock(), FS)
    state = ControllerState(config, image, SystemClock())
    do_at_once(state, log, image, "create_topics", {"topics": [topic("t", 2)], "validate_only": False})
    log.close()
    (data / "t-0").mkdir()
    (data / "t-0" / SEGMENT).touch()


def make_source(directory: Path) -> list[Path]:
    directory.mkdir()
    for name in NAMES:
        log = LogRig(directory / name).open()
        append_one(log, batch(name))
        log.close()
    return [directory / name for name in NAMES]


def test_import_killed_at_any_rename_is_completed(tmp_path: Path) -> None:
    sources = make_source(tmp_path / "kafka")
    make_target(tmp_path / "new")
    wanted = [(source / SEGMENT).read_bytes() for source in sources]
    rows = []
    for dies_at in range(100):
        data = tmp_path / f"data-{dies_at}"
        shutil.copytree(tmp_path / "new", data)
        try:
            import_partitions(config_of(data), sources, DyingFs(dies_at))
            break
        except Killed:
            rows.append(import_partitions(config_of(data), sources))
        found = [(data / name / SEGMENT).read_bytes() for name in NAMES]
        assert found == wanted, f"killed at rename {dies_at}"
        assert not (data / JOURNAL_FILE).exists()
        assert not any(copy_path(data, name).exists() for name in NAMES)
    assert len(rows) > 5
    assert all(each == rows[0] for each in rows)


def test_start_completes_an_import_and_keeps_other_records(tmp_path: Path) -> None:
    """Somebody has copied files back since the import was killed. They are set aside, not deleted."""
    data = tmp_path / "data"
    make_target(data)
    (data / "t-0" / SEGMENT).write_bytes(b"other")
    copy_path(data, "t-0").mkdir()
    (data / "t-1").mkdir()
    write_journal(FS, data, NAMES)
    directory = DataDirectory(config_of(data))
    directory.close()
    assert directory.imported == NAMES
    assert list((data / "t-0").iterdir()) == []
    (kept,) = list_set_aside(FS, data)
    assert (kept.path / SEGMENT).read_bytes() == b"other"


def test_damaged_import_journal_is_rejected_in_one_line(tmp_path: Path) -> None:
    make_target(tmp_path / "data")
    for content in (b"../t-0\n", b"\xff\n", b"t\n", b"/etc/t-0\n"):
        (tmp_path / "data" / JOURNAL_FILE).write_bytes(content)
        with pytest.raises(FatalError, match=r"\.kproc-import: each line must name a partition's directory"):
            DataDirectory(config_of(tmp_path / "data"))


def test_journal_without_copy_and_partition_is_rejected(tmp_path: Path) -> None:
    """Somebody has removed the copies. The import must not count as complete."""
    data = tmp_path / "data"
    make_target(data)
    write_journal(FS, data, ["t-1"])
    with pytest.raises(FatalError, match=r"neither t-1\.importing nor t-1 exists; remove \.kproc-import and import"):
        DataDirectory(config_of(data))


def test_import_that_cannot_write_its_journal_leaves_nothing(tmp_path: Path) -> None:
    class FullFs(OsFs):
        def rename(self, source: Path, target: Path) -> bool:
            if target.name == JOURNAL_FILE:
                raise DiskFull(errno.ENOSPC, f"rename {source}")
            return super().rename(source, target)

    sources = make_source(tmp_path / "kafka")
    data = tmp_path / "data"
    make_target(data)
    with pytest.raises(DiskFull):
        import_partitions(config_of(data), sources, FullFs())
    assert not any(copy_path(data, name).exists() for name in NAMES)
    assert not (data / JOURNAL_FILE).exists()
    import_partitions(config_of(data), sources)
