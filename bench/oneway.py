"""One process sends, another receives: the frame around everything that could carry requests between roles.

    this process --records, in batches--> [ what is compared ] --> forked child, checks each number --> "done"

Time runs from the first record to the child's word that it has seen the last one. The child checks that the numbers in
the records are dense, so a channel that loses or mixes up records fails instead of being fast.
"""

from __future__ import annotations

import os
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Final, Protocol

RECORD_BYTES: Final = 100
BATCH: Final = 32
CHILD_SECONDS_MAX: Final = 120
_NUMBER: Final = struct.Struct("=Q")
_PADDING: Final = bytes(RECORD_BYTES - _NUMBER.size)

Buffer = bytes | bytearray | memoryview


class Channel(Protocol):
    """A carrier of records: `send` in one process, `receive` in the other."""

    def send(self, records: list[bytes]) -> None: ...
    def receive(self) -> Iterable[Buffer]: ...
    def done(self) -> None:
        """The records of the last `receive` are used no more."""

    def close(self) -> None: ...


def make_records(count: int) -> list[list[bytes]]:
    """Numbered records, in batches."""
    records = [_NUMBER.pack(number) + _PADDING for number in range(count)]
    return [records[at : at + BATCH] for at in range(0, count, BATCH)]


def receive_all(channel: Channel, count: int) -> None:
    """The receiving side: every record once, in order, of the right length."""
    expected = 0
    while expected < count:
        for record in channel.receive():
            (number,) = _NUMBER.unpack_from(record)
            assert number == expected, f"record {number} where {expected} was due"
            assert len(record) == RECORD_BYTES, len(record)
            expected += 1
        channel.done()


def one_way(make: Callable[[], Channel]) -> Callable[[int], float]:
    """A benchmark (timing.py): one loop is one record."""

    def run(count: int) -> float:
        batches = make_records(count)
        channel = make()
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_receiver(channel, count, theirs)
        os.close(theirs)
        try:
            assert os.read(ours, 1) == b"r", "the receiver did not start"
            started = time.perf_counter()
            for batch in batches:
                channel.send(batch)
            answer = os.read(ours, 1)
            took = time.perf_counter() - started
        finally:
            os.close(ours)
            _, status = os.waitpid(pid, 0)
            channel.close()
        assert answer == b"d", f"the receiver failed, status {status}"
        return took

    return run


def _be_receiver(channel: Channel, count: int, fd: int) -> None:
    status = 1
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD_SECONDS_MAX)  # A sender that failed never comes to end us.
    try:
        os.write(fd, b"r")
        receive_all(channel, count)
        os.write(fd, b"d")
        status = 0
    except BaseException:  # noqa: BLE001 - the child must never return into the parent's code
        traceback.print_exc()
    finally:
        os._exit(status)
