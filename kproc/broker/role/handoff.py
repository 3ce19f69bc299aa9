"""The messages between an Acceptor and a Processor: sockets one way, acknowledgements and counts the other.

    Acceptor -> Processor   | serial u64 | listener u16 | flags u16 | address 16 | port u16 |  + one descriptor
                            | EVICT u64  | listener u16 | count u16 | ...                  |  no descriptor
    Processor -> Acceptor   | answers u16 | changes u16 | has more u16 |
                            | serial u64, with REFUSED set if the socket was not kept |...
                            | address 16 | listener u16 | change i32 |...

They travel over one AF_UNIX SOCK_SEQPACKET pair per (Acceptor, Processor). The Acceptor keeps its own descriptor until
the serial comes back, so that it can pass on a socket that a dying Processor never registered. Counts are sent as
changes since the pair was created, so both sides of a new pair begin at zero (count_reporter.py). An acknowledgement
travels in one message with the change of the counts that it causes. In two messages the connection would be counted
twice, or not at all, in between.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

HANDOFF: Final = struct.Struct("=QHH16sH")
# This value in the field of the serial, which otherwise counts from 1, means a request to close some connections of the
# Acceptor's listener, the longest idle ones first. The field of the flags has their number.
EVICT: Final = 0

# Flag in an acknowledged serial: the Processor has no descriptor left, or wants no more sockets; the Acceptor tries
# another one.
REFUSED: Final = 1 << 63

# Sockets that an Acceptor may have sent to one Processor without acknowledgement. The limit is the capacity of Kafka's
# queue newConnections. A kernel socket queue has no such limit.
CREDITS: Final = 20

_REPORT: Final = struct.Struct("=HHH")
_ANSWER: Final = struct.Struct("=Q")
_CHANGE: Final = struct.Struct("=16sHi")
CHANGES_MAX: Final = 180  # Limit of the changes in one report.
REPORT_BYTES_MAX: Final = _REPORT.size + CREDITS * _ANSWER.size + CHANGES_MAX * _CHANGE.size

_V4_MAPPED: Final = bytes(10) + b"\xff\xff"
ADDRESS_BYTES: Final = 16
_NETWORK_BYTES: Final = 8  # Bytes of an IPv6 address that identify a network (/64).
NO_ADDRESS: Final = bytes(ADDRESS_BYTES)


def pack_address(host: str) -> bytes:
    """Return a literal address in 16 bytes, IPv4 as ::ffff:a.b.c.d, so that both forms of one host are one key.

    A scope (`fe80::1%eth0`) is dropped. Raises ValueError if `host` is not an address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    return _V4_MAPPED + address.packed if address.version == 4 else address.packed


def is_v4_mapped(packed: bytes) -> bool:
    """Return True if `pack_address` packed an IPv4 address."""
    return packed.startswith(_V4_MAPPED)


def share_key(packed: bytes) -> bytes:
    """Return the part of a packed address that identifies one IPv4 host or one IPv6 network.

    A host with IPv6 can choose addresses from a whole /64 network.
    """
    return packed if is_v4_mapped(packed) else packed[:_NETWORK_BYTES]


def address_text(packed: bytes) -> str:
    """Return the address that `pack_address` packed, as people write it."""
    if is_v4_mapped(packed):
        return str(ipaddress.IPv4Address(packed[12:]))
    return str(ipaddress.IPv6Address(packed))


Key = tuple[bytes, int]
"""Address in 16 bytes and listener: what connections are counted by."""


class Report(NamedTuple):
    """One message of a Processor: acknowledged serials, perhaps with REFUSED, and changes of counts.

    `has_more` says that further changes of the same flush follow in another message.
    """

    answers: Sequence[int]
    changes: Sequence[tuple[Key, int]]
    has_more: bool = False

    def pack(self) -> bytes:
        head = _REPORT.pack(len(self.answers), len(self.changes), self.has_more)
        answers = b"".join(map(_ANSWER.pack, self.answers))
        return head + answers + b"".join(_CHANGE.pack(*key, change) for key, change in self.changes)

    @classmethod
    def unpack(cls, message: bytes) -> Report:
        answer_count, change_count, has_more = _REPORT.unpack_from(message)
        middle = _REPORT.size + answer_count * _ANSWER.size
        answers = [each[0] for each in _ANSWER.iter_unpack(message[_REPORT.size : middle])]
        changes = [
            ((address, listener), change)
            for address, listener, change in _CHANGE.iter_unpack(message[middle:])
        ]
        assert len(changes) == change_count, message
        return cls(answers, changes, bool(has_more))
