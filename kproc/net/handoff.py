"""The messages between an Acceptor and a Processor: sockets one way, acknowledgements and counts the other.

    Acceptor -> Processor   | serial u64 | listener u16 | flags u16 | address 16 | port u16 |  + one descriptor
                            | EVICT u64  | listener u16 | count u16 | ...                  |  no descriptor
    Processor -> Acceptor   | serial u64 |   with REFUSED set when only the bytes arrived
                            | COUNTS u64 | (address 16 | listener u16 | change i32) ... |

Over one AF_UNIX SOCK_SEQPACKET pair per (Acceptor, Processor). The Acceptor keeps its own descriptor until
the serial comes back, so that a socket that a dying Processor never registered can go elsewhere. Counts are
changes since the pair was made, so a new pair starts from nothing on both sides: see count_reporter.py.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

HANDOFF: Final = struct.Struct("=QHH16sH")
# In the place of a serial, which counts from 1: close so many connections of the lowest priority that came by the
# listener named, the Acceptor's own. The flags' place holds the count.
EVICT: Final = 0

ACK: Final = struct.Struct("=Q")
# In an acknowledgement: no descriptor arrived (the Processor is at its nofile limit); the socket goes
# elsewhere.
REFUSED: Final = 1 << 63

# Begins a message of count changes; an acknowledgement is never longer than ACK.
COUNTS: Final = 1 << 62
COUNT: Final = struct.Struct("=16sHi")
COUNTS_MAX: Final = 180  # Changes in one message.
ANSWER_BYTES_MAX: Final = ACK.size + COUNTS_MAX * COUNT.size

# Kafka's capacity of a Processor's newConnections queue. A kernel socket queue has no such limit, hence credits.
CREDITS: Final = 20

_V4_MAPPED: Final = bytes(10) + b"\xff\xff"
NO_ADDRESS: Final = bytes(16)


def pack_address(host: str) -> bytes:
    """A literal address in 16 bytes, IPv4 as ::ffff:a.b.c.d, so that both forms of one host are one key.

    A scope (`fe80::1%eth0`) is dropped. ValueError for what is no address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    return _V4_MAPPED + address.packed if address.version == 4 else address.packed


def address_text(packed: bytes) -> str:
    """The literal of `pack_address`, as people write it."""
    if packed.startswith(_V4_MAPPED):
        return str(ipaddress.IPv4Address(packed[12:]))
    return str(ipaddress.IPv6Address(packed))
