"""Imports of Spark's Python processes: pandas, 0.4 s of CPU and 40 MB in each of them, is not among them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("pyspark")
pytestmark = pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")

# Encodes two records as a sink does and decodes them as a source does, with every column but headers.
ROUND = """
import sys
import numpy as np
import pyarrow as pa
import kproc.spark.source, kproc.spark.reader, kproc.spark.writer
from kproc.spark.decode import Decoder
from kproc.spark.encode import RecordEncoder, RowColumns
from kproc.spark.partitioner import partitions_by_key
from kproc.wire.compression import Compression

def column(*values):
    lengths = np.cumsum([0, *map(len, values)], dtype=np.int32)
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(lengths), data])

rows = RowColumns(column(b"a", b"b"), column(b"k", b"l"), None, np.array([1, 2], np.int64))
encoder = RecordEncoder(batch_bytes=1 << 14, bytes_max=1 << 20, codec=Compression.NONE, level=None)
partitions_by_key(rows.keys, 3)
[draft] = encoder.encode(rows, np.zeros(2, np.int32))
raw = b"".join(draft.stamp(-1, -1, -1))
columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
decoder = Decoder(columns, "t", 3, 0, 2)
[batch] = [*decoder.feed(raw, []), *decoder.flush()]
assert "pandas" not in sys.modules, "pandas was imported"
assert batch.to_pylist()[1]["value"] == b"b"
assert batch.to_pylist()[1]["topic"] == "t"
assert [row["partition"] for row in batch.to_pylist()] == [3, 3]
"""


@pytest.mark.long
def test_records_go_to_arrow_and_back_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", ROUND], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
