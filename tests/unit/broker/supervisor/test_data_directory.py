"""The data directory: locked for one broker, identified for ever."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from kproc.broker.config import Config
from kproc.broker.storage import checkpoints
from kproc.broker.storage.os_fs import OsFs, UnsyncedFs
from kproc.broker.supervisor import data_directory
from kproc.broker.supervisor.data_directory import DataDirectory, make_fs
from kproc.broker.supervisor.offline_metadata import alter_users
from kproc.common.errors import FatalError
from tests.support.ring_pair import Forked


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_directory(stack: ExitStack, path: Path, **settings: object) -> DataDirectory:
    made = DataDirectory(Config.build({"log.dirs": str(path), **settings}))
    stack.callback(made.close)
    return made


def refusal(path: Path, **settings: object) -> str:
    with pytest.raises(FatalError) as refused:
        DataDirectory(Config.build({"log.dirs": str(path), **settings}))
    return str(refused.value)


def test_directory_and_its_parents_are_made(opened: ExitStack, tmp_path: Path) -> None:
    made = open_directory(opened, tmp_path / "a" / "b")
    assert made.path.is_dir()
    assert (made.path / ".lock").exists()
    assert made.path.is_absolute()


def test_damaged_snapshot_or_record_of_syncs_is_one_line(opened: ExitStack, tmp_path: Path) -> None:
    """And the lock is released, so that a start without the damaged file succeeds."""
    data, record = tmp_path / "data", tmp_path / "power"
    open_directory(opened, data).close()
    (data / ".kproc-restore").write_bytes(b"damaged")
    reason = "/.kproc-restore: the snapshot is damaged; remove the file to start with the present data"
    assert refusal(data).endswith(reason)
    (data / ".kproc-restore").unlink()
    settings = {"kproc.faults.enable": "true", "kproc.faults.power.directory": str(record)}
    open_directory(opened, data, **settings).close()
    (record / "names.json").write_bytes(b"damaged")
    (record / "lose").touch()
    assert "/power/names.json: the record of synced files is damaged" in refusal(data, **settings)
    shutil.rmtree(record)
    open_directory(opened, data, **settings)


def test_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    ids = set()
    for _ in range(3):
        with ExitStack() as stack:
            ids.add(open_directory(stack, tmp_path).cluster_id)
    assert len(ids) == 1
    meta = checkpoints.read_meta_properties(OsFs(), tmp_path)
    assert meta is not None
    assert (meta.cluster_id, meta.node_id) == (ids.pop(), 1)
    assert meta.directory_id != meta.cluster_id


def test_ids_have_kafkas_form(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uuid:
        """Random, but first with a dash in front, which Kafka's tools would take for an option."""

        values: ClassVar = [b"\xf8" + bytes(15), b"\x01" + bytes(15)]

        def __init__(self) -> None:
            self.bytes = self.values.pop(0)

    monkeypatch.setattr(data_directory.uuid, "uuid4", Uuid)
    assert data_directory._random_id() == "AQ" + "A" * 20


def test_second_broker_is_refused_while_the_first_one_lives(opened: ExitStack, tmp_path: Path) -> None:
    first = open_directory(opened, tmp_path)
    assert refusal(tmp_path) == f"log.dirs: {first.path} is in use by another broker"


def test_directory_stays_locked_as_long_as_any_role_holds_it(tmp_path: Path) -> None:
    """The supervisor was killed and a Handler still writes: a new broker must not start."""
    with ExitStack() as stack:
        made = open_directory(stack, tmp_path)
        read_end, write_end = os.pipe()
        held = Forked(lambda: os.close(write_end) or os.read(read_end, 1))
        os.close(read_end)
        assert made.lock_fd >= 0
    assert "in use by another broker" in refusal(tmp_path)
    os.close(write_end)
    held.result()
    with ExitStack() as stack:
        open_directory(stack, tmp_path)


def test_start_waits_for_the_roles_of_a_killed_broker(tmp_path: Path) -> None:
    """The kernel ends a killed role a moment after its supervisor."""
    with ExitStack() as stack:
        open_directory(stack, tmp_path)
        held = Forked(lambda: threading.Event().wait(0.2))
    with ExitStack() as stack:
        open_directory(stack, tmp_path)
    held.result()


def test_data_of_another_node_is_refused_and_unlocked_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        open_directory(stack, tmp_path)
    assert "node.id 1, but this broker's node.id is 2" in refusal(tmp_path, **{"node.id": 2})
    with ExitStack() as stack:
        open_directory(stack, tmp_path)


def test_unreadable_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("nonsense\n")
    assert "cannot use" in refusal(tmp_path)


def leave_partition(data: Path, name: str = "t-0") -> Path:
    path = data / name
    path.mkdir(parents=True)
    checkpoints.write_partition_metadata(OsFs(), path, b"i" * 16)
    return path


@pytest.mark.parametrize("left", ["nothing", "an empty directory", "an empty log"])
def test_partitions_without_metadata_are_refused(tmp_path: Path, left: str) -> None:
    with ExitStack() as stack:
        open_directory(stack, tmp_path)
    path = leave_partition(tmp_path)
    metadata = tmp_path / "__cluster_metadata-0"
    if left != "nothing":
        metadata.mkdir()
    if left == "an empty log":
        (metadata / f"{0:020d}.log").write_bytes(b"")
    reason = refusal(tmp_path)
    assert "1 partitions, such as t-0" in reason
    assert "__cluster_metadata-0 is missing or empty" in reason
    assert "kproc.start.without.metadata=true" in reason
    with ExitStack() as stack:
        open_directory(stack, tmp_path, **{"kproc.start.without.metadata": "true"})
    assert path.exists()


def test_partitions_without_metadata_and_identity_are_refused(tmp_path: Path) -> None:
    """No identity is written either: the metadata may be put back, and belong to another cluster."""
    leave_partition(tmp_path)
    assert "__cluster_metadata-0 is missing" in refusal(tmp_path)
    assert not (tmp_path / "meta.properties").exists()


def test_directory_without_partitions_needs_no_metadata(opened: ExitStack, tmp_path: Path) -> None:
    """A start that died before its first record; a mount point; what a person keeps there."""
    for name in ("lost+found", "notes-1"):
        (tmp_path / name).mkdir()
    open_directory(opened, tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"version=1\n"])
def test_lost_identity_beside_metadata_is_refused(tmp_path: Path, content: bytes | None) -> None:
    config = Config.build({"log.dirs": str(tmp_path)})
    alter_users(config, [])
    meta = checkpoints.read_meta_properties(OsFs(), tmp_path)
    assert meta is not None
    path = tmp_path / "meta.properties"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    reason = refusal(tmp_path)
    assert f"cluster.id={meta.cluster_id}, node.id=1" in reason
    lines = reason.partition("lines: ")[2].split(", ")
    path.write_text("\n".join(lines) + "\n")
    with ExitStack() as stack:
        assert open_directory(stack, tmp_path).cluster_id == meta.cluster_id
    alter_users(config, [])


def test_a_directory_of_apache_kafka_is_refused_as_it_is(tmp_path: Path) -> None:
    """Its metadata log has the name of ours. Nothing is taken for a broken file of ours, or changed."""
    metadata = tmp_path / "__cluster_metadata-0"
    metadata.mkdir()
    (metadata / "quorum-state").write_text("{}")
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    assert "Apache Kafka's" in refusal(tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "meta.properties").exists()


def test_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(tmp_path / "file") == f"log.dirs: cannot use {tmp_path / 'file'}: not a directory"


def test_directory_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Ready file and status could not name it."""
    path = tmp_path / os.fsdecode(b"\xff")
    assert refusal(path) == f"log.dirs: the name of {str(path)!r} is not UTF-8"
    assert not path.exists()


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint.by-id", "log-start-offset-checkpoint"])
def test_unreadable_checkpoint_leaves_the_marker_of_a_clean_stop(tmp_path: Path, name: str) -> None:
    """Its rights are wrong, say. When they are mended, the next start need not recover every log."""
    checkpoints.write_clean_shutdown(OsFs(), tmp_path)
    (tmp_path / name).mkdir()  # Root may read everything else.
    assert str(tmp_path / name) in refusal(tmp_path)
    (tmp_path / name).rmdir()
    with ExitStack() as stack:
        assert open_directory(stack, tmp_path).remove_clean_marker()


def test_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    assert str(tmp_path / ".lock") in refusal(tmp_path)


@pytest.mark.parametrize("was_clean", [True, False])
def test_clean_stop_is_believed_once(tmp_path: Path, *, was_clean: bool) -> None:
    if was_clean:
        checkpoints.write_clean_shutdown(OsFs(), tmp_path, 1)
    for expected in (was_clean, False):
        with ExitStack() as stack:
            assert open_directory(stack, tmp_path).remove_clean_marker() is expected


def test_opening_directory_keeps_clean_shutdown_marker(tmp_path: Path) -> None:
    """A start that fails before its Handlers, or a user who is added while the broker is stopped."""
    checkpoints.write_clean_shutdown(OsFs(), tmp_path, 1)
    with ExitStack() as stack:
        open_directory(stack, tmp_path)
    alter_users(Config.build({"log.dirs": str(tmp_path)}), [])
    with ExitStack() as stack:
        assert open_directory(stack, tmp_path).remove_clean_marker()


def test_only_temporary_data_without_group_flush_are_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    own = {"kproc.temporary.directory": str(tmp_path), "kproc.flush": "none"}
    for settings, is_synced in (
        ({"kproc.flush": "none"}, True),
        (own, False),
        ({**own, "kproc.flush": "group"}, True),
        ({**own, "log.dirs": str(tmp_path.parent / "kept")}, True),
    ):
        fs = make_fs(Config.build({"log.dirs": str(tmp_path / "data"), **settings}))
        assert isinstance(fs, UnsyncedFs) != is_synced
        fs.sync(7)
        assert synced == [7] * is_synced
        synced.clear()
