"""The message by which an Acceptor gives an accepted socket to a Processor, and its acknowledgement.

    Acceptor -> Processor   | serial u64 | listener u16 | flags u16 |  + one descriptor
    Processor -> Acceptor   | serial u64 |   with REFUSED set when only the bytes arrived

Over one AF_UNIX SOCK_SEQPACKET pair per (Acceptor, Processor). The Acceptor keeps its own descriptor until
the serial comes back, so that a socket that a dying Processor never registered can go elsewhere.
"""

from __future__ import annotations

import struct
from typing import Final

HANDOFF: Final = struct.Struct("=QHH")
ACK: Final = struct.Struct("=Q")
# In an acknowledgement: no descriptor arrived (the Processor is at its nofile limit); the socket goes
# elsewhere.
REFUSED: Final = 1 << 63

# Kafka's capacity of a Processor's newConnections queue. A kernel socket queue has no such limit, hence credits.
CREDITS: Final = 20
