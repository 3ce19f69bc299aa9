"""wait_until returns what it waited for, and says what it saw last when it gives up."""

from __future__ import annotations

import pytest

from tests.support.wait import wait_until


def test_first_truthy_value_is_returned() -> None:
    values = iter((0, "", "found"))
    assert wait_until(lambda: next(values)) == "found"


def test_assertion_inside_the_condition_means_not_yet() -> None:
    attempts = iter(range(3))

    def third_time() -> bool:
        assert next(attempts) == 2, "too early"
        return True

    assert wait_until(third_time)


def test_deadline_names_what_was_awaited_and_seen() -> None:
    with pytest.raises(AssertionError, match=r"the moon.*last seen: 0"):
        wait_until(lambda: 0, seconds=0.02, what="the moon")
