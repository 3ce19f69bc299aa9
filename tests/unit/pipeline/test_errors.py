"""Spark's errors in one line."""

from __future__ import annotations

from kproc.pipeline.errors import reason_of
from tests.support.cases import in_one_test

STREAM_FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage: \
Task 0 in stage 1.0 failed 4 times: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 9, in main
    process()
  File "/work/steps.py", line 12, in clean
    raise ValueError("no such thing")
ValueError: no such thing

	at org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
SQLSTATE: XXKST"""


@in_one_test(
    ("text", "line"),
    [
        (STREAM_FAILED, "ValueError: no such thing (steps.py:12)"),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`. SQLSTATE: 42703; line 1 pos 7;\\n'Project",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
            "[DIVIDE_BY_ZERO] Division by zero",
        ),
        (
            "Job aborted due to stage: 0\nCaused by: java.io.IOException: outer\nCaused by: a.b.DiskFull: no space",
            "DiskFull: no space",
        ),
        (
            'Traceback (most recent call last):\n  File "/site-packages/kproc/spark/brokers.py", line 358, in ask\n'
            "kproc.spark.brokers.Unreachable: cannot connect to h:1",
            "Unreachable: cannot connect to h:1",
        ),
        ("", "Exception"),
    ],
)
def test_spark_error_becomes_one_line(text: str, line: str) -> None:
    assert reason_of(Exception(text)) == line
