"""Fields by which an append recognizes a plain batch, and checks the most frequent kind without calling a function.

A plain batch is a client's, without a transactional id, in a log whose records need not be decoded. LogAppender checks
it inline. If it is one small uncompressed record, as with producers that send one record at a time, the constants of
this module replace the check of its records (record_check.check_small). Other batches go to validate.py.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final

from kproc.wire.batch_header import CRC_FROM, HEADER, HEADER_BYTES
from kproc.wire.records import RECORD_BYTES_MIN

StartFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields that `unpack_start` returns: those of a header, then the first two bytes of the records."""

_START: Final = Struct(HEADER.format + "H")
START_BYTES: Final = _START.size
unpack_start = _START.unpack_from
# Placeholder for a header that was not read. Its length matches no batch, so that the inline checks fail.
NOT_PLAIN: Final[StartFields] = (0, -1, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0)
# The bytes of a batch that its CRC covers.
CHECKED: Final = slice(CRC_FROM, None)


def _leads() -> array[int]:
    """Return the first two bytes behind the header of a valid one-record batch, for each size of a batch.

    The two bytes are a length of one byte and the unused attributes, or a length of two bytes. Comparing these two
    bytes checks the record's length in 50 ns. Batches whose record has a longer length field are checked by
    check_small().
    """
    leads = array("H", bytes(2 * START_BYTES))
    # The two-byte varints in ascending order. Encoding each of them by a function would take 4 ms of every start.
    leads.extend([low << 8 | high for high in range(128) for low in range(0x80, 0x100, 2)])
    for length in range(64):
        leads[HEADER_BYTES + 1 + length] = length << 9
    for total in range(HEADER_BYTES + RECORD_BYTES_MIN):
        leads[total] = 0
    return leads


LEADS: Final = _leads()
LEADS_END: Final = len(LEADS)
