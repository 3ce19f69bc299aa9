"""A link: two rings in one region, one for each direction between two processes.

    payload:  | ring 0: first end -> second end | ring 1: second end -> first end |

The maker of the region decides which agent is the first end. Each end calls its own function below once.
"""

from __future__ import annotations

from kproc.broker.ipc.layout import ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer, format_ring


def create_link(first_capacity: int, second_capacity: int, generation: int) -> Region:
    """Make a link. The capacities, in bytes, are those of the rings that the first and the second end send on."""
    first_bytes = ring_bytes(first_capacity)
    region = Region.create(RegionKind.LINK, first_bytes + ring_bytes(second_capacity), generation)
    try:
        format_ring(region, 0, first_capacity)
        format_ring(region, first_bytes, second_capacity)
    except ValueError:
        # Close the memfd, because nobody else knows of the region yet.
        region.close()
        raise
    return region


def open_first_end(region: Region) -> tuple[RingProducer, RingConsumer]:
    """Return the rings of the first end: it sends on ring 0 and receives from ring 1."""
    producer = RingProducer(region, 0)
    return producer, RingConsumer(region, ring_bytes(producer.capacity))


def open_second_end(region: Region) -> tuple[RingProducer, RingConsumer]:
    """Return the rings of the second end: it sends on ring 1 and receives from ring 0."""
    consumer = RingConsumer(region, 0)
    return RingProducer(region, ring_bytes(consumer.capacity)), consumer
