"""The copies of a data directory, and every state in which a killed broker can leave a restore."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.supervisor import snapshots
from kproc.broker.supervisor.snapshots import Snapshots, complete_restore, remove_snapshots
from kproc.common.errors import Corrupt

GONE = "gone-0.0123456789abcdef0123456789abcdef-delete"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a partition, a deleted one, and files that are no state."""
    for name in ("t-0", GONE, ".faults", ".snapshots", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00.log").write_bytes(name.encode() * 1000)
    for name in (".lock", "meta.properties", "requests-handler-0.log"):
        (tmp_path / name).write_text(name)
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory that are not in a directory of ours."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    found = {str(path.relative_to(directory)): path.read_bytes() for path in paths}
    return {name: content for name, content in found.items() if not name.startswith(".kproc-snapshots/")}


def request(data: Path, do: str, name: str | None = None) -> dict[str, Any]:
    """Send one request and return the reply with the number of restores that it has begun as `begun`."""
    begun: list[None] = []
    replies: list[dict[str, Any]] = []
    handler = Snapshots(data, contextlib.nullcontext, lambda: begun.append(None))
    handler.handle({"do": do, "snapshot": name}, replies.append)
    [reply] = replies
    return {**reply, "begun": len(begun)}


def test_restore_returns_to_files_times_and_attributes(data: Path) -> None:
    log = data / "t-0" / "00.log"
    os.utime(log, ns=(1_000, 2_000))
    os.setxattr(log, "user.kproc.aborted", b"7")
    before = contents(data)
    name = request(data, "snapshot")["snapshot"]
    log.write_bytes(b"other")
    (data / "new-0").mkdir()
    (data / "new-0" / "00.log").write_bytes(b"new")
    assert request(data, "restore", name) == {"begun": 1}
    complete_restore(data)
    del before[f"{GONE}/00.log"]  # The cleaner would delete it anyway.
    assert contents(data) == before
    assert (log.stat().st_mtime_ns, os.getxattr(log, "user.kproc.aborted")) == (2_000, b"7")


def test_restore_without_name_keeps_only_the_identity(data: Path) -> None:
    assert request(data, "restore") == {"begun": 1}
    complete_restore(data)
    # Other programs have directories of these names at the root of a file system.
    others = [".snapshots/00.log", "lost+found/00.log"]
    ours = [".faults/00.log", ".lock", "meta.properties", "requests-handler-0.log"]
    assert sorted(contents(data)) == sorted([*others, *ours])


def test_dotted_topic_is_restored_and_strange_files_stay(data: Path) -> None:
    for name in (".hidden-0", "requests-handler-x-0", "photos"):
        (data / name).mkdir()
        (data / name / "00.log").write_bytes(b"before")
    (data / "letter.txt").write_bytes(b"before")
    snapshot = request(data, "snapshot")["snapshot"]
    for path in (*data.glob("*/00.log"), data / "letter.txt"):
        path.write_bytes(b"after")
    assert request(data, "restore", snapshot) == {"begun": 1}
    complete_restore(data)
    found = contents(data)
    assert found[".hidden-0/00.log"] == found["requests-handler-x-0/00.log"] == b"before"
    assert found["photos/00.log"] == found["letter.txt"] == b"after"


def test_restore_after_a_clean_stop_removes_its_marker(data: Path) -> None:
    """A broker that gets SIGTERM after it has prepared a restore marks its stop as clean."""
    assert request(data, "restore") == {"begun": 1}
    (data / ".kafka_cleanshutdown").touch()
    complete_restore(data)
    assert not (data / ".kafka_cleanshutdown").exists()


def test_failed_restore_keeps_no_partial_copy(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, and the file system has no hard links."""
    name = request(data, "snapshot")["snapshot"]
    before = contents(data)

    def refused(*_arguments: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refused)
    with monkeypatch.context() as patch:
        patch.setattr(snapshots.shutil, "copyfile", full)
        reply = request(data, "restore", name)
    full = "restore failed: [Errno 28] No space left on device"
    assert reply == {"error": full, "is_retriable": True, "begun": 0}
    assert contents(data) == before
    assert request(data, "restore", name) == {"begun": 1}


@contextlib.contextmanager
def killed_after(operations: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise KeyboardInterrupt at the file operation after the first `operations` ones."""
    left = operations

    def limited(operation: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return operation(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for owner, operation in (
            (os, "open"),
            (os, "link"),
            (os, "listdir"),
            (os, "copy_file_range"),
            (os, "ftruncate"),
            (os, "utime"),
            (snapshots.shutil, "rmtree"),
        ):
            patch.setattr(owner, operation, limited(getattr(owner, operation)))
        for operation in ("mkdir", "rename", "chmod", "unlink"):
            patch.setattr(Path, operation, limited(getattr(Path, operation)))
        yield


def test_killed_restore_leaves_one_of_both_states(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each file operation of a restore in turn. The next start finds the former state or the new one."""
    former = contents(data)
    name = request(data, "snapshot")["snapshot"]
    (data / "t-0" / "01.log").write_bytes(b"later")
    later = contents(data)
    restored = {key: value for key, value in former.items() if "delete" not in key}
    outcomes = []
    for survived in range(100):
        is_complete = False
        with contextlib.suppress(KeyboardInterrupt), killed_after(survived, monkeypatch):
            request(data, "restore", name)
            complete_restore(data)
            is_complete = True
        complete_restore(data)
        found = contents(data)
        assert found in (later, restored), survived
        outcomes.append(found == restored)
        if is_complete:
            break
        (data / "t-0" / "01.log").write_bytes(b"later")
        (data / GONE).mkdir(exist_ok=True)
        (data / GONE / "00.log").write_bytes(former[f"{GONE}/00.log"])
    assert is_complete
    assert outcomes == sorted(outcomes)  # Once the copy is complete, a kill cannot undo the restore.
    assert set(outcomes) == {True, False}


def test_restore_after_reset_reuses_files_if_killed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill each restore after a reset at a later file operation. The next start completes it."""
    restored = {key: value for key, value in contents(data).items() if "delete" not in key}
    name = request(data, "snapshot")["snapshot"]
    is_complete = False
    for survived in range(100):
        request(data, "restore")
        complete_restore(data)
        assert not (data / "t-0").exists()
        # Topics of the next test, one of which has the name of a spare directory.
        for topic in ("t-0", "u-0", "v-0")[survived % 2 :]:
            (data / topic).mkdir()
            (data / topic / "00.log").write_bytes(topic.encode() * 5000)
        (data / "u-0" / "00.index").write_bytes(b"other")
        request(data, "restore", name)
        with contextlib.suppress(KeyboardInterrupt), killed_after(survived, monkeypatch):
            complete_restore(data)
            is_complete = True
        if not is_complete:
            assert complete_restore(data)
        assert contents(data) == restored, survived
        if is_complete:
            break
    assert is_complete
    request(data, "restore")
    complete_restore(data)
    spare = data / ".kproc-snapshots" / "spare"
    assert (data / ".kproc-snapshots" / name).exists()
    assert {path.name for path in spare.iterdir()} >= {"t-0"}
    remove_snapshots(data)
    assert not spare.exists()


def test_failed_copy_is_reported_and_leaves_nothing(data: Path) -> None:
    (data / "t-0" / "link").symlink_to("nowhere")
    reply = request(data, "snapshot")
    assert reply["error"].startswith("snapshot failed: [Errno 2] No such file or directory")
    assert list((data / ".kproc-snapshots").iterdir()) == []


def test_damaged_snapshot_is_rejected_and_can_be_deleted(data: Path) -> None:
    """The broker goes on. A restore ends all roles, and the next start could not complete it."""
    name = request(data, "snapshot")["snapshot"]
    path = data / ".kproc-snapshots" / name
    path.write_bytes(path.read_bytes()[:-3])
    before = contents(data)
    refused = request(data, "restore", name)
    assert (refused["error"], refused["begun"]) == (f"restore failed: {path}: the snapshot is damaged", 0)
    assert contents(data) == before
    assert "error" not in request(data, "delete-snapshot", name)


def test_damaged_prepared_restore_keeps_the_present_data(data: Path) -> None:
    request(data, "restore", request(data, "snapshot")["snapshot"])
    restore = data / ".kproc-restore"
    restore.write_bytes(restore.read_bytes()[:-3])
    before = contents(data)
    with pytest.raises(Corrupt, match=r"\.kproc-restore: the snapshot is damaged; remove the file to start"):
        complete_restore(data)
    assert contents(data) == before
    restore.unlink()
    assert not complete_restore(data)


def test_unknown_snapshot_is_rejected(data: Path) -> None:
    before = contents(data)
    for do in ("restore", "delete-snapshot"):
        reply = request(data, do, "0123456789abcdef")
        assert "does not exist" in reply["error"]
        assert reply["begun"] == 0
    assert contents(data) == before


def test_deleted_and_removed_snapshots_are_gone(data: Path) -> None:
    names = [request(data, "snapshot")["snapshot"] for _ in range(2)]
    assert request(data, "delete-snapshot", names[0]) == {"begun": 0}
    assert [path.name for path in (data / ".kproc-snapshots").iterdir()] == [names[1]]
    remove_snapshots(data)
    assert not (data / ".kproc-snapshots").exists()


def test_number_of_snapshots_is_limited(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOTS_MAX", 1)
    assert request(data, "restore") == {"begun": 1}
    complete_restore(data)  # Spare directories do not count.
    request(data, "snapshot")
    refused = request(data, "snapshot")
    assert "1 snapshots exist already" in refused["error"]
    assert not refused["is_retriable"]


def test_bytes_are_copied_without_copy_file_range(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refused)
    name = request(data, "snapshot")["snapshot"]
    before = (data / "t-0" / "00.log").read_bytes()
    (data / "t-0" / "00.log").unlink()
    assert request(data, "restore", name) == {"begun": 1}
    complete_restore(data)
    assert (data / "t-0" / "00.log").read_bytes() == before
