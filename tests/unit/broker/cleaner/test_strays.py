"""StrayDirectories: directories of deleted or unknown topics are removed or set aside."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.cleaner.strays import StrayDirectories
from kproc.broker.role.roles import handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import OsFs, StorageFailure
from kproc.broker.storage.set_aside import list_set_aside
from tests.support.cleaner_rig import CHECK_MS, CleanerRig
from tests.support.in_memory_controller import InMemoryController, topic

DELAY_MS = 60_000  # Kafka's default of file.delete.delay.ms.
TICK_MS = 100  # How often a role looks at what is due.


# -- directories of deleted topics ---------------------------------------------------------------------------


def doomed_directory(data: Path, name: str = "t-0") -> Path:
    path = data / f"{name}.{'a' * 32}-delete"
    path.mkdir()
    (path / "0.log").write_bytes(b"x")
    return path


def test_deleted_topic_directory_is_removed_after_delay(rig: CleanerRig) -> None:
    """Until then a Processor may open and send what is in it."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept = rig.directory / "t-1"
    kept.mkdir()
    doomed = doomed_directory(rig.directory)
    rig.delete("t")
    rig.advance_ms(DELAY_MS // 2)
    assert doomed.exists()
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()
    assert kept.exists()


def test_what_earlier_runs_left_of_deleted_topics_is_removed(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    doomed = doomed_directory(tmp_path)
    rig = start()
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_what_cannot_be_removed_is_tried_again(
    tmp_path: Path, start: Callable[..., CleanerRig], caplog: pytest.LogCaptureFixture
) -> None:
    class StubbornFs(OsFs):
        """Removes nothing until it is told that it may."""

        is_stubborn = True

        def remove_tree(self, path: Path) -> None:
            if self.is_stubborn:
                raise StorageFailure(errno.EACCES, f"remove {path}")
            super().remove_tree(path)

    fs = StubbornFs()
    doomed = doomed_directory(tmp_path)
    rig = start(fs=fs)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert doomed.exists()
    assert "cannot remove" in caplog.text
    fs.is_stubborn = False
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_stop_removes_what_still_waits(rig: CleanerRig) -> None:
    doomed = doomed_directory(rig.directory)
    rig.cleaner.finish(is_clean=True)
    assert not doomed.exists()


@pytest.mark.parametrize("ends", ["knows", "dies"])
def test_deleted_topic_files_are_removed_when_handlers_released(rig: CleanerRig, *, ends: str) -> None:
    """A Handler that is busy or stopped for longer than file.delete.delay.ms still has the log open."""
    rig.create("t")
    path = rig.directory / "t-0"
    path.mkdir()
    checkpoints.write_partition_metadata(OsFs(), path, rig.cluster.image.topics_by_name["t"].topic_id)
    rig.delete("t")
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert path.exists()
    if ends == "dies":
        for index in range(2):
            rig.cleaner.detach(handler_id(index))
        rig.step()
    else:
        assert set(rig.asked()) == {(0, "", 0), (1, "", 0)}
    assert not path.exists()


def test_deleted_directory_of_an_existing_topic_stays(rig: CleanerRig) -> None:
    """The metadata were restored from a copy that is older than the deletion."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept, gone = doomed_directory(rig.directory), doomed_directory(rig.directory, "u-0")
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    checkpoints.write_partition_metadata(OsFs(), kept, topic_id)
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not gone.exists()
    assert kept.exists()
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    rig.tell()
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not kept.exists()


def test_deleted_directories_stay_until_the_metadata_come(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """A cleaner that starts, or stops, before the controller has sent them knows no topic."""
    kept = doomed_directory(tmp_path)
    rig = start(has_metadata=False)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert kept.exists()
    rig.cleaner.finish(is_clean=True)
    assert kept.exists()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN_FILE).exists(), "nobody has looked at the rows"


def test_directory_of_no_topic_is_set_aside_after_a_while(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    rig = start()
    rig.create("lives")
    lives = rig.cluster.image.topics_by_name["lives"].topic_id
    for name, topic_id in (
        ("gone-0", bytes(15) + b"x"),
        ("lives-0", lives),
        ("no-id-0", None),
        ("lives-7", b"y" * 16),
        ("grown-3", lives),
        ("photos-2023", None),
        ("__cluster_metadata-0", None),
    ):
        (tmp_path / name).mkdir()
        if name in ("no-id-0", "__cluster_metadata-0"):
            (tmp_path / name / f"{0:020d}.log").write_bytes(b"x")
        if topic_id is not None:
            checkpoints.write_partition_metadata(OsFs(), tmp_path / name, topic_id)
    rig.advance_ms(CHECK_MS)
    assert (tmp_path / "gone-0").exists(), "it may be of a topic that is being created"
    rig.advance_ms(60_000 - TICK_MS)
    assert (tmp_path / "gone-0").exists()
    rig.advance_ms(2 * TICK_MS)
    assert (tmp_path / "gone-0").exists(), "a Handler that is behind may have it open"
    assert rig.asked() == [(0, "", 0)] * 4 + [(1, "", 0)] * 4
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    kept = [name for name in names if not name.endswith("-stray")]
    assert kept == ["__cluster_metadata-0", "lives-0", "photos-2023"]
    strays = list_set_aside(OsFs(), tmp_path)
    assert [each.path.name.partition(".")[0] for each in strays] == [
        "gone-0",
        "grown-3",
        "lives-7",
        "no-id-0",
    ]
    assert "no topic has this partition" in strays[0].reason
    assert "no readable partition.metadata" in strays[3].reason


def test_directory_of_a_deleted_topic_id_is_deleted(tmp_path: Path) -> None:
    """All roles died between the record of the deletion and the rename."""
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("t"))
    topic_id = cluster.image.topics_by_name["t"].topic_id
    cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    (tmp_path / "t-0").mkdir()
    checkpoints.write_partition_metadata(OsFs(), tmp_path / "t-0", topic_id)
    strays = StrayDirectories(OsFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then())
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-delete")


def test_restored_directory_of_a_deleted_topic_is_set_aside(tmp_path: Path) -> None:
    """A topic was deleted by mistake, and somebody puts a copy of its files back while the broker is stopped."""
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("t"))
    topic_id = cluster.image.topics_by_name["t"].topic_id
    cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    cluster.do("start_broker", was_clean=True)
    (tmp_path / "t-0").mkdir()
    checkpoints.write_partition_metadata(OsFs(), tmp_path / "t-0", topic_id)
    strays = StrayDirectories(OsFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then())
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-stray")


def test_directory_of_topic_learned_late_is_kept(tmp_path: Path, start: Callable[..., CleanerRig]) -> None:
    rig = start()
    path = tmp_path / "late-0"
    path.mkdir()
    checkpoints.write_partition_metadata(
        OsFs(), path, (1).to_bytes(16, "big")
    )  # The next id that is given out.
    rig.advance_ms(CHECK_MS)
    rig.create("late")
    assert rig.cluster.image.topics_by_name["late"].topic_id == (1).to_bytes(16, "big")
    for _ in range(5):
        rig.advance_ms(CHECK_MS)
    assert path.exists()


def test_directory_created_at_last_moment_is_restored(tmp_path: Path) -> None:
    """Between the look at the topic id and the rename its owner has set the stray aside and made its own."""
    path, stray_id, new_id = tmp_path / "t-0", b"s" * 16, b"n" * 16

    class RacingFs(OsFs):
        def rename(self, source: Path, target: Path) -> bool:
            if source == path and not (tmp_path / "t-0.0-delete").exists():
                path.rename(tmp_path / "t-0.0-delete")
                path.mkdir()
                checkpoints.write_partition_metadata(OsFs(), path, new_id)
            return super().rename(source, target)

    path.mkdir()
    checkpoints.write_partition_metadata(OsFs(), path, stray_id)
    strays = StrayDirectories(
        RacingFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then()
    )
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("another"))
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t-0", "t-0.0-delete"]
    assert checkpoints.read_partition_metadata(OsFs(), path) == new_id
