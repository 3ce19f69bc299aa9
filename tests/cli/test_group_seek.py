"""`kproc group seek` against a running broker."""

from __future__ import annotations

import pytest

from tests.support.command_line import Kproc, described, told

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def offsets(kproc: Kproc, group: str) -> dict[int, int]:
    [row] = described(kproc(f"group describe {group} --format json"))
    return {each["partition"]: each["committed"] for each in row["partitions"]}


def test_group_seek_without_execute_changes_nothing(kproc, filled, group):
    shown = told(kproc(f"group seek {group} --to beginning"))
    assert "nothing was changed" in shown
    assert offsets(kproc, group) == {0: 7, 1: 3}
    told(kproc(f"group seek {group} --to beginning --execute"))
    assert offsets(kproc, group) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("--to end", {0: 10, 1: 10}),
        ("--to 5", {0: 5, 1: 5}),
        ("--to=-4", {0: 6, 1: 6}),
        ("--to 99", {0: 10, 1: 10}),
        ("--to @0", {0: 0, 1: 0}),
        ("--to 2999-01-01", {0: 10, 1: 10}),
        ("--shift=-2", {0: 5, 1: 1}),
        ("--shift=-9", {0: 0, 1: 0}),
        ("--shift 2 --topic {topic}:1", {0: 7, 1: 5}),
        ("--shift 2 --topic {topic}:1 --topic {topic}:0", {0: 9, 1: 5}),
    ],
)
def test_group_seek_targets_stay_within_the_log(kproc, filled, group, where, expected):
    told(kproc(f"group seek {group} {where.format(topic=filled)} --execute"))
    assert offsets(kproc, group) == expected
