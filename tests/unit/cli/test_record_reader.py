"""RecordReader: its rest to read as partitions come, go and end, and its search for unreadable batches."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from kproc.cli import batch_check, record_reader
from kproc.cli.failure import Failure
from kproc.cli.record_reader import Assigned, OffsetRange, Progress, RecordReader
from kproc.client import ConnectionLost

ENDS = {("t", 0): 3, ("t", 1): 2, ("u", 0): 0}


def test_reader_is_done_when_each_partition_is_read_to_end():
    progress = Progress(ENDS)
    assert not progress.is_done
    progress.add([("t", 0), ("t", 1)])
    assert progress.wants(("t", 0), 1)
    assert progress.wants(("t", 1), 1)
    assert not progress.is_done
    assert progress.wants(("t", 0), 2)
    assert progress.is_done


def test_records_after_the_initial_end_are_not_wanted():
    progress = Progress(ENDS)
    progress.add([("t", 0), ("t", 1)])
    assert not progress.wants(("t", 1), 2)
    assert not progress.is_done
    progress.finish(("t", 0))
    assert progress.is_done


def test_partition_lost_to_other_member_is_not_awaited():
    progress = Progress(ENDS)
    progress.add([("t", 0), ("t", 1)])
    progress.remove([("t", 0)])
    assert not progress.wants(("t", 0), 0)
    assert progress.wants(("t", 1), 1)
    assert progress.is_done
    progress.add([("t", 0)])
    assert not progress.is_done


def test_member_with_empty_assignment_is_done_unassigned_is_not():
    progress = Progress(ENDS)
    assert not progress.is_done
    progress.add([])
    assert progress.is_done


def test_partition_added_after_start_is_not_awaited():
    progress = Progress(ENDS)
    progress.add([("t", 2)])
    assert progress.is_done
    assert not progress.wants(("t", 2), 0)


def test_without_an_end_nothing_is_ever_done():
    progress = Progress(None)
    progress.add([])
    assert not progress.is_done
    progress.add([("t", 0)])
    progress.finish(("t", 0))
    assert progress.wants(("t", 0), 1 << 40)
    assert not progress.is_done


class QuietConsumer:
    """librdkafka's consumer of a topic that gets no records."""

    def __init__(self, _settings: dict[str, Any]) -> None:
        pass

    def assign(self, _partitions: list[Any]) -> None:
        pass

    def poll(self, _timeout: float) -> None:
        pass

    def position(self, partitions: list[Any]) -> list[Any]:
        return partitions


class Connection:
    """A connection to a broker, which closes it at the search `lost_at`."""

    def __init__(self, lost_at: int) -> None:
        self.searches = 0
        self.lost_at = lost_at
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_search_for_unreadable_batches_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It connected and logged in for each search, and there is one in each pause of a second."""
    opened: list[Connection] = []

    def connect(_bootstrap: str) -> Connection:
        opened.append(Connection(lost_at=3))
        return opened[-1]

    def search(client: Connection, *_: Any) -> None:
        client.searches += 1
        if client.searches == client.lost_at:
            raise ConnectionLost("closed")

    monkeypatch.setattr(confluent_kafka, "Consumer", QuietConsumer)
    monkeypatch.setattr(record_reader, "connect", connect)
    monkeypatch.setattr(batch_check, "find_unreadable", search)
    source = Assigned(OffsetRange({("t", 0): 0}, {("t", 0): 0}), Progress(None))
    reader = RecordReader("b:1", ["t"], source)
    for _ in range(8):
        assert reader.read(1) == []
    assert [each.searches for each in opened] == [2]  # After 4 and 8 polls.
    for _ in range(8):
        assert reader.read(1) == []
    assert [(each.searches, each.is_closed) for each in opened] == [(3, True), (1, False)]


def test_search_goes_on_after_a_partition_without_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first partition's error hid the unreadable batch of the third one, and consume --follow hung there."""
    failures = {0: batch_check.FilesUnreadable("t-0: a file is gone"), 1: Failure("t-1: it moves")}

    def search(_client: Connection, _topic: str, partition: int, offset: int) -> batch_check.CheckedBatch:
        if partition in failures:
            raise failures[partition]
        return batch_check.CheckedBatch(offset, offset + 1, 0, "it is damaged")

    monkeypatch.setattr(confluent_kafka, "Consumer", QuietConsumer)
    monkeypatch.setattr(record_reader, "connect", lambda _: Connection(lost_at=0))
    monkeypatch.setattr(batch_check, "find_unreadable", search)
    starts = {("t", number): 0 for number in range(3)}
    for ends, reason in (
        (None, "t-2: the batch at offsets 0 to 0"),
        (dict.fromkeys(starts, 1), "t-0: a file is gone"),
    ):
        reader = RecordReader(
            "b:1", ["t"], Assigned(OffsetRange(starts, starts | (ends or {})), Progress(ends))
        )
        assert [reader.read(1) for _ in range(3)] == [[], [], []]
        with pytest.raises(Failure, match=reason):
            reader.read(1)
    assert capsys.readouterr().err == "kproc: t-0: a file is gone\n"
