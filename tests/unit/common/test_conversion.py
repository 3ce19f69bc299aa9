"""Converters are complete before a second thread uses them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

import msgspec
import pytest

from kproc.common.conversion import converter

ROUNDS, THREADS = 30, 4


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former)


def fresh_types() -> list[tuple[type, object]]:
    """Return classes that msgspec has not seen yet, each with a plain value of it."""

    class Pair(NamedTuple):
        name: str
        offsets: list[int]
        by_topic: dict[str, int] | None = None

    class Row(TypedDict):
        name: str
        offsets: list[int]

    class Shape(msgspec.Struct):
        name: str
        pairs: list[Pair]
        rows: list[Row]

    # The annotations of this module are strings. msgspec evaluates them in the module's names.
    globals().update(Pair=Pair, Row=Row)
    pair, row = ["a", [1], {"t": 1}], {"name": "a", "offsets": [1]}
    return [(Pair, pair), (Row, row), (Shape, {"name": "a", "pairs": [pair], "rows": [row]})]


def test_threads_convert_to_a_new_class_at_once(frequent_switches: None) -> None:
    problems: list[msgspec.ValidationError] = []
    for _ in range(ROUNDS):
        converters = [(converter(kind), value) for _ in range(10) for kind, value in fresh_types()]
        barrier = threading.Barrier(THREADS)

        def run(converters=converters, barrier=barrier) -> None:
            barrier.wait()
            for convert, value in converters:
                try:
                    convert(value)
                except msgspec.ValidationError as problem:
                    problems.append(problem)

        threads = [threading.Thread(target=run) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


def test_converter_reports_the_place_of_a_wrong_value() -> None:
    convert = converter(dict[str, list[int]])
    assert convert({"a": [1]}) == {"a": [1]}
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\[...\]\[0\]`"):
        convert({"a": ["x"]})
