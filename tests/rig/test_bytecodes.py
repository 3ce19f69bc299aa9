"""Both ways of counting bytecodes count the same, also where frames end by an exception or are resumed."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.support.bytecodes import compiled_counter, count_bytecodes, count_in_python


def work() -> None:
    """Call functions of other files, generators and class bodies among them, and one that raises."""
    with pytest.raises(json.JSONDecodeError):
        json.loads('{"a": ')
    json.dumps({"a": [1, {"b": None}]}, indent=1)
    textwrap.wrap("some words of some length " * 20, 30)


@pytest.mark.skipif(compiled_counter() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("unless_in", [__file__, "textwrap.py"])
def test_compiled_counter_equals_the_one_in_python(unless_in: str) -> None:
    work()  # Regular expressions are compiled once.
    count = count_bytecodes(work, unless_in=unless_in)
    assert count == count_in_python(work, unless_in=unless_in) > 500


def test_functions_of_the_excluded_file_do_not_count() -> None:
    assert count_bytecodes(lambda: [2 * each for each in range(100)], unless_in=__file__) == 0


def test_exception_of_counted_work_ends_the_counting() -> None:
    with pytest.raises(ZeroDivisionError):
        count_bytecodes(lambda: 1 // 0, unless_in=__file__)
    assert count_bytecodes(lambda: None, unless_in=__file__) == 0
