"""StrayDirectories: directories that no topic serves are set aside, or deleted if their topic was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kproc.broker.cleaner.strays import StrayDirectories
from kproc.broker.storage import checkpoints
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import list_set_aside
from tests.support.cleaner_rig import CHECK_MS, CleanerRig
from tests.support.in_memory_controller import InMemoryController, topic

TICK_MS = 100  # How often a role looks at what is due.


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
