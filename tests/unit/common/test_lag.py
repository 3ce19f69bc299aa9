"""lag_between: the records that a reader of a partition has not read."""

from __future__ import annotations

import pytest

from kproc.common.lag import lag_between


@pytest.mark.parametrize(
    ("offset", "end", "start", "lag"),
    [
        (0, 0, 0, 0),
        (0, 7, 0, 7),
        (3, 7, 0, 4),
        (7, 7, 0, 0),
        (9, 7, 0, 0),
        (3, 7, 5, 2),
        (3, 7, 7, 0),
        (6, 7, 5, 1),
    ],
    ids=[
        "empty log", "nothing read", "some read", "all read", "log lost records",
        "deleted records do not count", "all deleted", "start below the offset",
    ],
)  # fmt: skip
def test_lag_between_counts_records_up_to_the_end(offset: int, end: int, start: int, lag: int) -> None:
    assert lag_between(offset, end, start) == lag
