"""Link: two rings between two agents."""

from __future__ import annotations

import os

import pytest

from kproc.broker.ipc.link import create_link, open_first_end, open_second_end
from kproc.broker.ipc.region import Region, RegionMismatch
from kproc.broker.ipc.ring import RingConsumer
from tests.support.proc import open_descriptors


def take(consumer: RingConsumer, limit: int = 1000) -> list[tuple[int, bytes]]:
    """Poll, copy, release."""
    records = [(kind, bytes(view)) for kind, view in consumer.poll(limit)]
    consumer.release()
    return records


def test_link_carries_both_directions_apart():
    with (
        create_link(1024, 4096, generation=6) as region,
        Region.attach(os.dup(region.fd), generation=6) as other,
    ):
        to_second, from_second = open_first_end(region)
        to_first, from_first = open_second_end(other)
        assert (to_second.capacity, to_first.capacity) == (1024, 4096)
        to_second.try_push(1, b"request")
        to_second.publish()
        to_first.try_push(2, b"response")
        to_first.publish()
        assert take(from_first) == [(1, b"request")]
        assert take(from_second) == [(2, b"response")]
        with pytest.raises(RegionMismatch, match="generation 6, expected 7"):
            Region.attach(other.fd, generation=7)


def test_link_of_a_wrong_capacity_leaks_nothing():
    before = open_descriptors()
    with pytest.raises(ValueError, match="ring capacity"):
        create_link(1024, 1000, generation=1)
    assert open_descriptors() == before
