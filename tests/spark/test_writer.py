"""The writers of a batch and of a stream, without Spark and without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types

from kproc.spark import writer as writer_module
from kproc.spark.writer import MicroBatch, batch_writer, stream_writer

pytest.importorskip("pyspark")

pa = pytest.importorskip("pyarrow")
ONCE = {"delivery": "exactly-once"}
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


STRING = types.StringType()
TO = {**BROKER, "topic": "t"}


def test_batch_writer_rejects_overwrite_and_stream_appends() -> None:
    """Overwriting is the save mode of a batch, and the output mode complete of a stream."""
    schema = types.StructType([types.StructField("value", STRING)])
    with pytest.raises(ValueError, match="a topic is only appended to"):
        batch_writer(TO, schema, True)
    assert stream_writer(TO, schema, True).options == stream_writer(TO, schema, False).options


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
    monkeypatch.setattr(writer_module, "BatchCommit", lambda *_, **__: Done(at_once=at_once))
    monkeypatch.setattr(writer_module, "_transactions", lambda _options: None)
    monkeypatch.setattr(writer_module, "current_micro_batch", lambda: MicroBatch("query", 3))
    schema = types.StructType([types.StructField("value", STRING)])
    for make, is_read in ((stream_writer, True), (batch_writer, False)):
        batches = (pa.record_batch({"value": [text]}) for text in ("one", "two", "three"))
        message: Any = make({**TO, **ONCE}, schema, False).write(batches)
        assert message.is_done
        assert message.is_decided
        assert not message.written
        assert (next(batches, None) is None) is is_read
