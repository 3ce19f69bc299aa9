"""Constants of Kafka's protocol: the special timestamps of ListOffsets, and the isolation levels."""

from __future__ import annotations

from typing import Final

# Timestamps of ListOffsets that stand for the ends of a log, and for the record with the largest timestamp (KIP-734).
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
# Isolation levels of Fetch and ListOffsets.
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
