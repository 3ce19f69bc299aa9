"""Errors of pipelines, and the reduction of Spark's errors to one line. --verbose shows the JVM's stack."""

from __future__ import annotations

import re
from typing import Final

_SQLSTATE: Final = re.compile(r"[.;]? ?SQLSTATE: \w+.*", re.DOTALL)
_POSITION: Final = re.compile(r"; line \d+,? pos \d+;?.*", re.DOTALL)
_TRACE: Final = "Traceback (most recent call last):"
_PYTHON_ERROR: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|[A-Z]\w+)): ?(.*)$")
_JAVA_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+), in ')


class PipelineError(Exception):
    """A pipeline cannot run or continue. The message is one line for the user; `detail` is the full text."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.detail = detail


class AlreadyRunning(PipelineError):
    """Another process runs the same checkpoint and holds its lock."""


def reason_of(error: BaseException) -> str:
    """Return one line with the reason: the last error of Python code that Spark ran, or Spark's first sentence."""
    text = str(getattr(error, "desc", None) or error)
    python = _python_reason(text)
    if python is not None:
        return python
    return _spark_reason(text) or type(error).__name__


def _python_reason(text: str) -> str | None:
    """Return `ValueError: no such thing (steps.py:12)` for a Python traceback in Spark's message, or None."""
    start = text.rfind(_TRACE)
    if start < 0:
        return None
    place = ""
    for line in text[start:].splitlines()[1:]:
        frame = _FRAME.match(line)
        if frame is not None:
            file = frame[1].rpartition("/")[2]
            is_own = any(each in frame[1] for each in ("/pyspark/", "pyspark.zip", "/kproc/spark/"))
            place = place if is_own else f" ({file}:{frame[2]})"
            continue
        found = _PYTHON_ERROR.match(line.strip()) if not line.startswith((" ", "\t")) else None
        if found is not None:
            name = found[1].rpartition(".")[2]
            return " ".join(f"{name}: {_SQLSTATE.sub('', found[2])}{place}".split())
    return None


def _spark_reason(text: str) -> str:
    """Return Spark's first line. For a failed query or job, return the message of its cause."""
    wrapped = re.search(r"terminated with exception: (.*)", text, re.DOTALL)
    body = wrapped[1] if wrapped else text
    causes: list[tuple[str, str]] = _JAVA_CAUSE.findall(text)
    first = body.strip().splitlines()[0] if body.strip() else ""
    if first.startswith("Job aborted") and causes:
        name, words = causes[-1]
        first = f"{name.rpartition('.')[2]}: {words}" if words else name
    return sentence(first)


def sentence(text: str) -> str:
    """Shorten a message of Spark to what users need: without its SQLSTATE and without the position in the SQL text."""
    return " ".join(_POSITION.sub("", _SQLSTATE.sub("", text)).split()).rstrip(";")
