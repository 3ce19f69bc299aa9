"""The checker finds what it is for: a rig that cannot fail proves nothing."""

from __future__ import annotations

from tests.support.cases import in_one_test
from tests.support.checker import Acknowledged, check_log

GOOD = {0: [(0, b"p:0"), (1, b"q:0"), (2, b"p:2"), (3, b"q:2")], 1: [(0, b"p:1"), (1, b"p:3")]}
ACKNOWLEDGED = [Acknowledged(0, 0, b"p:0"), Acknowledged(1, 0, b"p:1"), Acknowledged(0, 2, b"p:2")]


def test_check_log_allows_unacknowledged_records() -> None:
    assert check_log(GOOD, ACKNOWLEDGED) == []


@in_one_test(
    ("rows", "word"),
    [
        ([(0, b"p:0"), (1, b"p:2"), (2, b"p:2")], "duplicate"),
        ([(0, b"p:0"), (1, b"p:4"), (2, b"p:2")], "inversion"),
        ([(0, b"p:0"), (2, b"p:2")], "gap"),
        ([(0, b"p:0")], "lost"),
        ([(0, b"p:0"), (1, b"q:0"), (2, b"p:4")], "lost"),
    ],
)
def test_each_kind_of_violation_is_named(rows: list[tuple[int, bytes]], word: str) -> None:
    violations = check_log({0: rows}, [Acknowledged(0, 0, b"p:0"), Acknowledged(0, 2, b"p:2")])
    assert any(violation.startswith(word) for violation in violations), violations


def test_check_log_acknowledgement_of_unknown_partition_is_lost() -> None:
    assert check_log(GOOD, [Acknowledged(9, 0, b"p:0")])[0].startswith("lost")
