"""The writers of a batch and of a stream, without Spark and without a broker."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from kproc.spark.writer import batch_writer, stream_writer

pytest.importorskip("pyspark")

pytest.importorskip("pyarrow")
TO = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t"}


def test_batch_writer_rejects_overwrite_and_stream_appends() -> None:
    """Overwriting is the save mode of a batch, and the output mode complete of a stream."""
    schema = types.StructType([types.StructField("value", types.StringType())])
    with pytest.raises(ValueError, match="a topic is only appended to"):
        batch_writer(TO, schema, True)
    assert stream_writer(TO, schema, True).options == stream_writer(TO, schema, False).options
