"""Readers of messages with many rows: generators that pause, so that a long message does not delay other clients.

`step_reader_of` makes such a reader from a Schema, with the readers of fields in schema.py. A RowBudget sets after how
many rows the reader pauses, and how many rows a message may have in total.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final

from kproc.common.errors import ProtocolError
from kproc.wire.schema import (
    FIXED_CODES,
    Field,
    Fields,
    Schema,
    count_reader,
    field_reader,
    fixed_items_reader,
    fixed_runs,
    run_reader,
    single_reader,
    tags_reader,
)

# An array of numbers is unpacked by one struct call, where this many numbers cost as much as one row of another array.
_NUMBERS_OF_ROW: Final = 16

Steps = Generator[None, None, tuple[Any, int]]
StepReader = Callable[[bytes, int, "RowBudget"], Steps]
ReadCount = Callable[[bytes, int], tuple[int, int]]


class RowBudget:
    """Limits for one message: of the rows in all its arrays, and of the rows that are read in one step."""

    __slots__ = ("_rows_left", "_rows_max", "_step_left", "_step_rows")

    def __init__(self, rows_max: int, step_rows: int) -> None:
        self._rows_max = self._rows_left = rows_max
        self._step_rows = self._step_left = step_rows

    def reserve(self, count: int) -> None:
        """Count the rows of an array before they are read. Raises ProtocolError if there are too many."""
        self._rows_left -= count
        # Reject the message before reading the rows, because decoded rows take far more time and memory than their
        # bytes.
        if self._rows_left < 0:
            raise ProtocolError(
                f"the arrays of the request have more than {self._rows_max} rows; send them in several requests"
            )

    def is_step_over(self, rows: int = 1) -> bool:
        """Count `rows` as read. Return True if the reader must pause before it reads on."""
        self._step_left -= rows
        if self._step_left > 0:
            return False
        self._step_left = self._step_rows
        return True


def _has_arrays(schema: Schema) -> bool:
    return any(
        field.tag is None and (field.is_array or (field.struct is not None and _has_arrays(field.struct)))
        for field in schema.fields
    )


def _array_step_reader(field: Field, schema: Schema) -> StepReader:
    read_count = count_reader(field, f"{schema.path}.{field.name}", schema.is_flexible)
    if field.kind in FIXED_CODES:
        return _number_array_reader(field.kind, read_count)
    return _element_array_reader(field, schema, read_count)


def _number_array_reader(kind: str, read_count: ReadCount) -> StepReader:
    read_numbers = fixed_items_reader(kind)

    def read_number_array(data: bytes, position: int, budget: RowBudget) -> Steps:
        count, position = read_count(data, position)
        if count < 0:
            return None, position
        budget.reserve(count)
        # All numbers are read by one call that cannot pause, so pause before it if necessary.
        if budget.is_step_over(count // _NUMBERS_OF_ROW):
            yield
        return read_numbers(data, position, count)

    return read_number_array


def _element_array_reader(field: Field, schema: Schema, read_count: ReadCount) -> StepReader:
    element = replace(field, is_array=False, is_nullable=False)
    # Read an element without nested arrays by a plain function: the element is small, and a generator would cost more.
    if field.struct is not None and _has_arrays(field.struct):
        read_steps: StepReader | None = step_reader_of(field.struct)
    else:
        read_steps = None
    read = field_reader(element, schema)

    def read_array(data: bytes, position: int, budget: RowBudget) -> Steps:
        count, position = read_count(data, position)
        if count < 0:
            return None, position
        budget.reserve(count)
        items = []
        for _ in range(count):
            if read_steps is None:
                item, position = read(data, position)
            else:
                item, position = yield from read_steps(data, position, budget)
            items.append(item)
            if budget.is_step_over():
                yield
        return items, position

    return read_array


def step_reader_of(schema: Schema) -> StepReader:
    """Make a reader as `reader_of` does, but as a generator that pauses when its RowBudget requires it.

    The generator checks the number of rows before it reads them, so rejecting a request of millions of rows is cheap.
    Arrays in tagged fields are read in one step, because no request has large ones.
    """
    steps: list[tuple[str, Callable[..., Any], bool]] = []
    for run in fixed_runs(schema):
        field = run[0]
        if len(run) > 1:
            steps.append(("", run_reader(run), False))
        elif field.is_array:
            steps.append((field.name, _array_step_reader(field, schema), True))
        else:
            steps.append(("", single_reader(field, schema), False))
    if schema.is_flexible:
        steps.append(("", tags_reader(schema), False))

    def read_struct(data: bytes, position: int, budget: RowBudget) -> Steps:
        fields: Fields = {}
        for name, step, is_array in steps:
            if is_array:
                fields[name], position = yield from step(data, position, budget)
            else:
                position = step(data, position, fields)
        return fields, position

    return read_struct
