"""Slices of a few rows: ordinary requests of the simulation are then divided as only large ones are elsewhere.

The steps of coordinators become as small, so that their work on a few groups takes several duty cycles, and so does the
target assignment of one group. A duty cycle reads the records of a few batches only and deletes and transfers a few
partitions only. A Fetch of a few partitions is slow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from msgspec.structs import replace

from kproc.broker.coordinator import steps, target_computation
from kproc.broker.fetch import delayed_fetch
from kproc.broker.handler import deletions, partition_transfer
from kproc.broker.request import division
from kproc.broker.request.divided_request import DividedRequest, SliceRequest
from kproc.broker.request.division import Slice
from kproc.broker.request.registry import APIS
from kproc.broker.storage import inspection
from tests.simulation import doubles
from tests.simulation.processes import Process


@contextlib.contextmanager
def slices_of(rows: int) -> Iterator[None]:
    """Divide requests with more rows than that, and answers into pages of as many. 0: leave them as they are."""
    page, step_cost, first_cost = division.SLICE_ROWS, steps.STEP_COST, target_computation.FIRST_COST
    inspected, slow_parts = inspection.INSPECTED_MAX, delayed_fetch.SLOW_PARTS
    deleted, retired = deletions.STEP_PARTITIONS, partition_transfer.RETIRED_TOGETHER
    before = [(api, api.rows, api.direct_bytes_max) for api in APIS.values()]
    for api in APIS.values() if rows else ():
        api.rows = tuple(replace(each, size=rows) for each in api.rows)
        api.direct_bytes_max = 0
    if rows:
        division.SLICE_ROWS = rows  # type: ignore[misc]
        steps.STEP_COST = rows  # type: ignore[misc]
        target_computation.FIRST_COST = rows  # type: ignore[misc]
        inspection.INSPECTED_MAX = rows  # type: ignore[misc]
        delayed_fetch.SLOW_PARTS = rows  # type: ignore[misc]
        deletions.STEP_PARTITIONS = rows  # type: ignore[misc]
        partition_transfer.RETIRED_TOGETHER = rows  # type: ignore[misc]
    try:
        yield
    finally:
        division.SLICE_ROWS = page  # type: ignore[misc]
        steps.STEP_COST = step_cost  # type: ignore[misc]
        target_computation.FIRST_COST = first_cost  # type: ignore[misc]
        inspection.INSPECTED_MAX = inspected  # type: ignore[misc]
        delayed_fetch.SLOW_PARTS = slow_parts  # type: ignore[misc]
        deletions.STEP_PARTITIONS = deleted  # type: ignore[misc]
        partition_transfer.RETIRED_TOGETHER = retired  # type: ignore[misc]
        for api, declared, direct_bytes_max in before:
            api.rows, api.direct_bytes_max = declared, direct_bytes_max


class JudgedSlice(SliceRequest):
    """A slice. Its role must have had no other one in this turn, because other clients would wait for both."""

    __slots__ = ()

    def __init__(self, divided: DividedRequest, part: Slice) -> None:
        super().__init__(divided, part)
        process: Process = doubles.host.kernel.current
        if process.last_slice_turn == process.turns and divided._failure is None:
            process.world.violate(f"{process.name} handled two slices in one turn")
        process.last_slice_turn = process.turns
