"""The deliveries of a task's rows and of a batch, without Spark and without a broker."""

from __future__ import annotations

import pytest

from kproc.spark import delivery
from kproc.spark.commit_message import MicroBatch
from kproc.spark.delivery import BatchIdentity, batch_write, stream_write, write_task_once
from kproc.spark.sink_options import ExactlyOnce, parse_sink_options
from kproc.spark.task_writer import WriteFailed

pytest.importorskip("pyspark")

pa = pytest.importorskip("pyarrow")


class Done:
    """A commit that finds the rows of its task committed already: at once, or when it has fenced the others."""

    is_decided = True

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def is_done(self, task: int) -> bool:
        return self._at_once

    def start(self, task: int) -> None:
        return None


@pytest.mark.parametrize("at_once", [True, False])
def test_committed_batch_is_read_to_its_end_but_not_written(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its end an operator before the sink would not keep its state for the next batch."""
    monkeypatch.setattr(delivery, "BatchCommit", lambda *_, **__: Done(at_once=at_once))
    monkeypatch.setattr(delivery, "_transactions", lambda _options: None)
    monkeypatch.setattr(delivery, "current_micro_batch", lambda: MicroBatch("query", 3))
    options = parse_sink_options(
        {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t", "delivery": "exactly-once"}
    )
    for is_stream in (True, False):
        batches = (pa.record_batch({"value": [text]}) for text in ("one", "two", "three"))
        message = write_task_once(options, BatchIdentity("write", 3), batches, is_stream=is_stream)
        assert message.is_done
        assert message.is_decided
        assert not message.written
        assert (next(batches, None) is None) is is_stream


def test_batch_write_without_app_id_cannot_be_recognised() -> None:
    named, unnamed = batch_write(ExactlyOnce(app_id="a", version=7)), batch_write(ExactlyOnce())
    assert named == batch_write(ExactlyOnce(app_id="a", version=7)) == ("kproc-spark-a", 7, True)
    assert not unnamed.has_marks
    assert unnamed != batch_write(ExactlyOnce())


def test_stream_write_without_query_id_is_rejected() -> None:
    assert stream_write("q", 3) == ("kproc-spark-q", 3, True)
    with pytest.raises(WriteFailed, match="id of the query"):
        stream_write(None, 3)
