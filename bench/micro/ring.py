"""The ring between two roles, both ends in one process.

    try_push x 32, publish --> [ ring in a memfd ] --> poll(32), release

The question: what does a record cost each side, alone and by 32, small and as large as a read?
"""

from __future__ import annotations

import time

from bench.timing import Benchmark, main
from kproc.broker.ipc.layout import ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer, format_ring

RING_BYTES = 1 << 20
SIDES = ("push", "poll", "both")


def passing(record_bytes: int, batch: int, side: str) -> Benchmark:
    """A benchmark: one loop is one batch; the time of one side of it, or of both."""

    def run(loops: int) -> float:
        with Region.create(RegionKind.LINK, ring_bytes(RING_BYTES), 1) as region:
            format_ring(region, 0, RING_BYTES)
            producer, consumer = RingProducer(region), RingConsumer(region)
            record = bytes(range(256)) * (record_bytes // 256 + 1)
            record = record[:record_bytes]
            push_ns = poll_ns = taken = 0
            clock = time.perf_counter_ns
            for _ in range(loops):
                begun = clock()
                for _ in range(batch):
                    producer.try_push(1, record)
                producer.publish()
                middle = clock()
                got = consumer.poll(batch)
                taken += len(got)
                assert got[-1][1] == record, "not what was pushed"
                consumer.release()
                push_ns += middle - begun
                poll_ns += clock() - middle
            assert taken == loops * batch, f"{taken} of {loops * batch} records came"
            del got
        return {"push": push_ns, "poll": poll_ns, "both": push_ns + poll_ns}[side] / 1e9

    return run


BENCHMARKS = {
    f"{side}, {size} B x {batch}": passing(size, batch, side)
    for size, batch in ((100, 1), (100, 32), (8000, 8))
    for side in SIDES
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.ring", __doc__, BENCHMARKS))
