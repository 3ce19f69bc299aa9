"""lag_between: the end of a log minus a reader's offset, for every command and metric."""

from __future__ import annotations

from kproc.common.lag import lag_between
from tests.support.cases import in_one_test


@in_one_test(
    ("offset", "end", "lag"),
    [(0, 0, 0), (0, 7, 7), (3, 7, 4), (7, 7, 0), (9, 7, 0)],
)
def test_lag_between_counts_offsets_up_to_the_end(offset: int, end: int, lag: int) -> None:
    assert lag_between(offset, end) == lag
