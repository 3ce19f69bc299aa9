"""Slices of a few rows: ordinary requests of the simulation are then divided as only large ones are elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from kproc.broker.request import division
from kproc.broker.request.registry import APIS


@contextlib.contextmanager
def slices_of(rows: int) -> Iterator[None]:
    """Divide requests with more rows than that, and answers into pages of as many. 0: leave them as they are."""
    page = division.SLICE_ROWS
    before = [(api, api.rows, api.direct_bytes_max) for api in APIS.values()]
    for api in APIS.values() if rows else ():
        api.rows = tuple(replace(each, size=rows) for each in api.rows)
        api.direct_bytes_max = 0
    if rows:
        division.SLICE_ROWS = rows  # type: ignore[misc]
    try:
        yield
    finally:
        division.SLICE_ROWS = page  # type: ignore[misc]
        for api, declared, direct_bytes_max in before:
            api.rows, api.direct_bytes_max = declared, direct_bytes_max
