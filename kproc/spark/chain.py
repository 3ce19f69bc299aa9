# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The loop that finds where each record begins.

Each record's length says where the next one begins. This is the only sequential step of decoding, and therefore the
only loop that is worth compiling. `scripts/build-compiled` compiles this file unchanged, with the types of chain.pxd.
Otherwise Python runs it. Tests cover both. The compiled loop takes about 2 ns per record, in Python about 100 ns.
"""

from __future__ import annotations

IS_COMPILED = not __file__.endswith(".py")


def record_starts(raw, begins, ends, counts, starts):  # type: ignore[no-untyped-def]
    """Fill `starts` with the positions of the records of each batch.

    begins, ends, counts: one entry per batch: begin and end of its bytes in `raw`, and its number of records.

    Returns False if the records of a batch do not fill it exactly. `raw` must have PADDING (walk.py) after the last
    batch, because the length of a damaged record can be read beyond the end of its batch. The position after that
    record is then not the batch's end, so the batch is rejected.
    """
    row = 0
    for number in range(len(counts)):
        position = begins[number]
        end = ends[number]
        for _ in range(counts[number]):
            if position >= end:
                return False
            starts[row] = position
            row += 1
            byte = raw[position]
            position += 1
            length = byte & 127
            shift = 7
            while byte > 127:
                if shift > 28:
                    return False
                byte = raw[position]
                position += 1
                length |= (byte & 127) << shift
                shift += 7
            if length & 1:
                return False
            position += length >> 1
        if position != end:
            return False
    return True
