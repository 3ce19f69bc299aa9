# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Where each record begins. The one thing about records that is sequential, so the one loop that is worth compiling.

`scripts/build-compiled` compiles this file as it is, with the types of chain.pxd; without it, it runs in Python. Both
are tested. Compiled, the loop takes about 2 ns for a record, in Python about 100.
"""

from __future__ import annotations

IS_COMPILED = not __file__.endswith(".py")


def record_starts(raw, begins, ends, counts, starts):  # type: ignore[no-untyped-def]
    """Fill `starts` with the position of each of `counts` records in begins..ends; False if they do not fit exactly.

    `raw` has bytes behind the last end: a length that runs over it is read there, and is too long.
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
