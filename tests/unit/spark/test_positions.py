"""Positions of a query: where it begins and ends by the precedence of options, and which partitions `assign` names."""

from __future__ import annotations

import pytest

from kproc.common.reading import EARLIEST, LATEST
from kproc.spark.offsets import TopicPartition
from kproc.spark.option_values import OptionError
from kproc.spark.positions import (
    Position,
    SubscriptionKind,
    read_position,
    read_subscription,
    reject_position,
)

PART = TopicPartition("t", 0)


def test_subscription_needs_exactly_one_option() -> None:
    found = read_subscription({"assign": '{"t": [1, 0, 1]}'})
    assert (found.kind, found.partitions) == (SubscriptionKind.PARTITIONS, (PART, TopicPartition("t", 1)))
    with pytest.raises(OptionError, match="no topic to read"):
        read_subscription({})
    with pytest.raises(OptionError, match="not subscribe and assign"):
        read_subscription({"assign": '{"t": [0]}', "subscribe": "t"})


@pytest.mark.parametrize("value", ["[]", "{}", '{"t": []}', '{"t": [true]}', '{"t": [-1]}'])
def test_assign_rejects_what_is_no_partition(value: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        read_subscription({"assign": value})


def test_timestamp_precedes_timestamps_and_offsets() -> None:
    options = {
        "startingoffsets": '{"t": {"0": 5}}',
        "startingoffsetsbytimestamp": '{"t": {"0": 7}}',
        "startingtimestamp": "9",
    }
    by_time = Position("startingTimestamp", everywhere=9, by_time=True)
    assert read_position(options, "starting", EARLIEST) == by_time
    del options["startingtimestamp"]
    each = Position("startingOffsetsByTimestamp", each=((PART, 7),), by_time=True)
    assert read_position(options, "starting", EARLIEST) == each
    del options["startingoffsetsbytimestamp"]
    assert read_position(options, "starting", EARLIEST) == Position("startingOffsets", each=((PART, 5),))
    assert read_position(options, "ending", LATEST) == Position("endingOffsets", everywhere=LATEST)


def test_rejected_offset_is_named_with_its_option() -> None:
    with pytest.raises(OptionError, match="endingOffsets of t-0: no records"):
        reject_position(Position("endingOffsets", each=((PART, EARLIEST),)), EARLIEST, "no records")
    # A timestamp that equals the number of a special offset is a time.
    reject_position(Position("startingTimestamp", everywhere=EARLIEST, by_time=True), EARLIEST, "no records")
