"""Parts of an answer on their way to the socket: bytes, and ranges of open files.

Bytes are sent by send(2). A range is sent by sendfile(2): the kernel sends it from the page cache, so its bytes never
come into this process. `Connection` sends them in order, files.py opens the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from kproc.broker.processor.files import OpenFile

# Up to this size an answer leaves as one TCP segment (loopback's MSS, and the most that a network card is given at
# once), so its header waits for its records (MSG_MORE). A longer answer needs several segments. Its header leaves at
# once, so that the client wakes up meanwhile. Measured on loopback, without MSG_MORE relative to with it: 1 consumer of
# 64 KB has 1.14 times the rate at 0.83 of the CPU, 16 consumers of 64 KB have 1.50 at 0.69, and 1 consumer of 48 KB has
# 0.88 at 1.08.
SEGMENT_BYTES_MAX: Final = 65_400


@final
class FileSend:
    """A range of a file that is being sent as part of an answer. Each send updates `position` and `remaining`."""

    __slots__ = ("file", "position", "remaining")

    def __init__(self, file: OpenFile, position: int, remaining: int) -> None:
        self.file = file
        self.position = position
        self.remaining = remaining

    def __len__(self) -> int:
        return self.remaining


Part = bytes | memoryview | FileSend


def detached(part: Part) -> Part:
    """Return a part of an answer that stays valid after this duty cycle: a copy, if the part lies in a ring."""
    return part if isinstance(part, FileSend) else unsent(part, 0)


def unsent(frame: bytes | memoryview, sent: int) -> bytes | memoryview:
    """Return the rest of an answer behind the bytes that were sent. Copy it if it lies in a ring.

    An answer that the Handler sent in several records lies in memory of its own (outbox.py). It is not copied, because
    copying 20 MB takes 20 ms.
    """
    rest = memoryview(frame)[sent:]
    return rest if isinstance(rest.obj, (bytes, bytearray)) else bytes(rest)
