"""kcat, the command line tool: what people type by hand first."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.adapters.base import FETCH_WAIT_MS, LARGEST_MESSAGE_BYTES, TIMEOUT_SECONDS
from tests.support.records import Received, Sample, by_partition
from tests.support.wait import pause

name = "kcat"
compressions = ("none", "gzip", "snappy", "lz4", "zstd")
# It stamps the records itself, and its -H gives every message of one call the same headers.
sends_timestamps = False
sends_nulls = False

EXECUTABLE = shutil.which("kcat")


def produce(
    bootstrap: str,
    topic: str,
    records: Sequence[Sample],
    *,
    compression: str = "none",
    idempotent: bool = True,
) -> None:
    """One call for each record, a file each: values hold any byte, each with its own key and headers."""
    with tempfile.TemporaryDirectory(prefix="kcat-") as directory:
        for partition, rows in by_partition(records).items():
            for number, record in enumerate(rows):
                path = Path(directory) / f"{partition}-{number}"
                assert record.value is not None
                assert record.key is not None
                path.write_bytes(record.value)
                command = [
                    str(EXECUTABLE),
                    "-b",
                    bootstrap,
                    "-P",
                    "-t",
                    topic,
                    "-p",
                    str(partition),
                    "-z",
                    compression,
                ]
                command += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "acks=all"]
                command += ["-X", f"message.max.bytes={LARGEST_MESSAGE_BYTES}", "-k", record.key.decode()]
                for header, value in record.headers:
                    command += ["-H", f"{header}={value.decode()}"]
                _run([*command, str(path)])


def produce_lines(
    bootstrap: str, topic: str, partition: int, lines: Sequence[tuple[str, str]], *, codec: str
) -> None:
    """Keys and values as lines on stdin, in one call."""
    command = [
        str(EXECUTABLE),
        "-b",
        bootstrap,
        "-P",
        "-t",
        topic,
        "-p",
        str(partition),
        "-K",
        "\t",
        "-z",
        codec,
    ]
    command += ["-X", "enable.idempotence=true"]
    _run(command, "".join(f"{key}\t{value}\n" for key, value in lines).encode())


def consume(bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
    """Read from the start exactly `counts[partition]` records of each partition."""
    received: list[Received] = []
    for partition, count in counts.items():
        # Lengths first: values may hold any byte, so no delimiter is safe.
        form = "%o %T %K %S %h\\n%k%s\\n"
        command = [
            str(EXECUTABLE),
            "-b",
            bootstrap,
            "-C",
            "-t",
            topic,
            "-p",
            str(partition),
            "-o",
            "beginning",
        ]
        output = _run([*command, "-e", "-q", "-c", str(count), "-f", form])
        received += _parse(output, partition)
    return received


def _parse(output: bytes, partition: int) -> list[Received]:
    records: list[Received] = []
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        offset, timestamp, key_length, value_length, *headers = output[position:line_end].split(b" ", 4)
        key_end = line_end + 1 + max(0, int(key_length))
        value_end = key_end + max(0, int(value_length))
        key = None if int(key_length) < 0 else output[line_end + 1 : key_end]
        value = None if int(value_length) < 0 else output[key_end:value_end]
        pairs = tuple(_header(pair) for pair in headers[0].split(b",") if pair) if headers else ()
        records.append(Received(partition, key, value, pairs, int(timestamp), offset=int(offset)))
        position = value_end + 1
    return records


def _header(pair: bytes) -> tuple[str, bytes]:
    key, _, value = pair.partition(b"=")
    return key.decode(), value


def _run(command: Sequence[str], stdin: bytes = b"") -> bytes:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode(errors='replace')}"
    return done.stdout


class _Tail:
    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._command = [
            str(EXECUTABLE),
            "-b",
            bootstrap,
            "-C",
            "-t",
            topic,
            "-p",
            str(partition),
            "-o",
            "end",
            "-u",
        ]
        self._command += ["-X", f"fetch.wait.max.ms={FETCH_WAIT_MS}", "-f", "%s\\n"]

    def __enter__(self) -> _Tail:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        # It says so when it reaches the end; the next long poll starts right after.
        self._await(self._process.stderr.fileno(), b"Reached end", TIMEOUT_SECONDS)
        pause(0.2)
        return self

    def _await(self, descriptor: int, wanted: bytes, seconds: float) -> bytes:
        seen = b""
        deadline = time.monotonic() + seconds
        while wanted not in seen and time.monotonic() < deadline:
            if select.select([descriptor], [], [], 0.05)[0]:
                chunk = os.read(descriptor, 65_536)
                assert chunk, f"kcat ended: {seen!r}"
                seen += chunk
        assert wanted in seen, f"no {wanted!r} within {seconds:g} s: {seen!r}"
        return seen

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT_SECONDS)

    def next_value(self, seconds: float) -> bytes:
        """The next record's value; AssertionError when none comes."""
        assert self._process.stdout is not None
        return self._await(self._process.stdout.fileno(), b"\n", seconds).rstrip(b"\n")


def tail(bootstrap: str, topic: str, partition: int) -> _Tail:
    """A consumer waiting at the partition's end."""
    return _Tail(bootstrap, topic, partition)
