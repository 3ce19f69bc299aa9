"""Slices of a few rows: ordinary requests of the simulation are then divided as only large ones are elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from kproc.broker.request.registry import APIS


@contextlib.contextmanager
def slices_of(rows: int) -> Iterator[None]:
    """Divide requests with more rows than that. 0: leave the slices as they are."""
    before = [(api, api.rows, api.direct_bytes_max) for api in APIS.values()]
    for api in APIS.values() if rows else ():
        api.rows = tuple(replace(each, size=rows) for each in api.rows)
        api.direct_bytes_max = 0
    try:
        yield
    finally:
        for api, declared, direct_bytes_max in before:
            api.rows, api.direct_bytes_max = declared, direct_bytes_max
