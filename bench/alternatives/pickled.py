"""Python objects instead of bytes, over the same ring.

    sender --encode--> ring --> receiver --decode-->      envelope: struct and bytes, as kproc does; pickle; msgpack

The question: what would it cost to send requests between roles as objects and not as an envelope with bytes behind it?
Encoding, the ring in one process, and decoding; no second process, so that nothing but the form differs.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.channels import RING_BYTES
from bench.timing import Benchmark, main
from kproc.broker.ipc.layout import ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, RingProducer, format_ring
from kproc.broker.transport.envelope import HEAD, HEAD_BYTES, REQUEST

Row = tuple[int, int, int, int, bytes]
_BODY = bytes(range(100))


def _as_envelope(row: Row) -> tuple[bytes, bytes]:
    return HEAD.pack(*row[:4]), row[4]


def _from_envelope(view: memoryview) -> Row:
    return (*HEAD.unpack_from(view), bytes(view[HEAD_BYTES:]))


def through(encode: Callable[[Row], tuple[bytes, ...]], decode: Callable[[memoryview], Any]) -> Benchmark:
    """A benchmark: one loop is one request."""

    def run(loops: int) -> float:
        with Region.create(RegionKind.LINK, ring_bytes(RING_BYTES), 1) as region:
            format_ring(region, 0, RING_BYTES)
            producer, consumer = RingProducer(region), RingConsumer(region)
            row: Row = (12_345_678_901, 0, 1, 0, _BODY)
            total = 0
            started = time.perf_counter()
            for number in range(loops):
                assert producer.try_push(REQUEST, *encode((row[0], number, row[2], row[3], row[4])))
                producer.publish()
                ((_, view),) = consumer.poll(1)
                got = decode(view)
                total += got[1]
                consumer.release()
            took = time.perf_counter() - started
            assert (got[0], got[2:]) == (row[0], row[2:]) or list(got[2:]) == list(row[2:]), got
            assert total == loops * (loops - 1) // 2, "a request was lost or mixed up"
            del view
        return took

    return run


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()
BENCHMARKS = {
    "envelope": through(_as_envelope, _from_envelope),
    "pickle": through(lambda row: (pickle.dumps(row, pickle.HIGHEST_PROTOCOL),), pickle.loads),
    "msgpack": through(lambda row: (_encoder.encode(row),), _decoder.decode),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.alternatives.pickled", __doc__, BENCHMARKS))
