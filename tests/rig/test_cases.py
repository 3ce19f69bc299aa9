"""A test that takes all of its cases takes each of them, fails when one fails, and names it."""

from __future__ import annotations

import inspect

import pytest

from tests.support.cases import in_one_test


def test_in_one_test_runs_the_product_of_cases_with_fixtures():
    taken = []

    @in_one_test("letter", "ab")
    @in_one_test(("low", "high"), [(1, 2), (3, 4)])
    def each(seen, letter, low, high):
        seen.append((letter, low, high))

    assert list(inspect.signature(each).parameters) == ["seen"], "which pytest takes for names of fixtures"
    each(seen=taken)
    assert taken == [("a", 1, 2), ("a", 3, 4), ("b", 1, 2), ("b", 3, 4)]


def test_the_case_that_fails_is_named():
    @in_one_test("letter", "ab")
    @in_one_test("number", range(3))
    def each(letter, number):
        assert (letter, number) != ("b", 1)

    with pytest.raises(AssertionError) as caught:
        each()
    assert caught.value.__notes__ == ["in the case number=1", "in the case letter='b'"]


@pytest.mark.parametrize(("names", "cases"), [("letter", []), ("other", "ab")])
def test_in_one_test_rejects_no_cases_and_unknown_names(names, cases):
    def each(letter):
        """Any test."""

    with pytest.raises(AssertionError):
        in_one_test(names, cases)(each)
