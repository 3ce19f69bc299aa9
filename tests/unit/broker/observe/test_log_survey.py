"""LogSurvey, and the figures that the cleaner reads from the files of logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import LogDirRequest, LogFiguresReply, LogFileFigures
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.observe import log_survey
from kproc.broker.observe.log_dir_usage import log_figures, read_log_figures
from kproc.broker.observe.log_survey import LogSurvey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record


class Rig:
    """An image of two topics with three partitions each, and a cleaner that replies when it is told to."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        for at, name in enumerate(("a", "b")):
            topic_id, zeros = name.encode() * 16, (0, 0, 0)
            slots = (3 * at, 3 * at + 1, 3 * at + 2)
            made = [r.TopicCreated(name, topic_id), r.PartitionsAdded(topic_id, 0, zeros, slots, zeros)]
            self.image.apply_records(made, self.image.version + 1)
        self.asked: list[tuple[LogDirRequest, Callable[[Any], None]]] = []
        self.answers: list[Any] = []
        LogSurvey(self.image, self._ask, self.answers.append).advance()

    def _ask(self, _call: Any, body: LogDirRequest, on_reply: Callable[[Any], None]) -> None:
        self.asked.append((body, on_reply))

    def reply(self) -> None:
        request, on_reply = self.asked.pop()
        on_reply(LogFiguresReply([[LogFileFigures(10 + at, 2, 1) for at in each] for _, each in request.topics]))


def test_survey_asks_for_some_partitions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_survey, "PARTITIONS_AT_ONCE", 4)
    rig = Rig()
    assert [request.topics for request, _ in rig.asked] == [[("a", [0, 1, 2]), ("b", [0])]]
    rig.reply()
    assert [request.topics for request, _ in rig.asked] == [[("b", [1, 2])]]
    assert not rig.answers
    rig.reply()
    rows = [[at, 10 + at, 2, 1] for at in range(3)]
    assert rig.answers == [[{"name": "a", "partitions": rows}, {"name": "b", "partitions": rows}]]


def test_survey_of_a_dead_cleaner_has_no_rows() -> None:
    rig = Rig()
    rig.asked.pop()[1](Lost())
    assert rig.answers == [None]


def test_figures_are_those_of_the_files(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [bytes(encode_batch([Record(None, b"v", time_ms)])) for time_ms in (5000, 9000)]
    for offset, batch in zip((0, 100), batches, strict=True):
        path = directory / f"{offset:020}.log"
        path.write_bytes(batch)
        os.utime(path, (offset, 77 + offset))
    (directory / f"{200:020}.log").touch()
    (directory / f"{0:020}.index").write_bytes(b"x" * 100)
    expected = LogFileFigures(len(batches[0]) + len(batches[1]), 177_000, 5000)
    assert log_figures(str(directory)) == expected
    missing = LogFileFigures(0, -1, -1)
    assert read_log_figures(tmp_path, LogDirRequest([("t", [0, 1])])).figures == [[expected, missing]]


def test_figures_of_damaged_files_have_no_oldest_record(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(b"short")
    found = log_figures(str(tmp_path))
    assert (found.bytes, found.oldest_ms) == (5, -1)
