"""Walking records: what compaction, `kproc consume` and Spark do, and what Produce and Fetch avoid.

    batch --check: length, magic, CRC--> header            what Produce does
    batch --decompress, walk varints--> records            what decoding does

The question: what does a record cost to decode, by codec, and what a batch only to check?
"""

from __future__ import annotations

import time

from bench.timing import Benchmark, main
from kproc.tools.load.batches import CODECS, compressed_batch
from kproc.wire.record_batch import check_batch, decode_records

RECORD_BYTES = 200
BATCH_BYTES = 16_384
NOW_MS = 1_700_000_000_000


def walking(codec: str, *, decodes: bool) -> Benchmark:
    """A benchmark: one loop is one batch of about 16 KB."""

    def run(loops: int) -> float:
        batch = memoryview(compressed_batch(codec, RECORD_BYTES, BATCH_BYTES, NOW_MS))
        expected = check_batch(batch).record_count
        seen = 0
        started = time.perf_counter()
        if decodes:
            for _ in range(loops):
                seen += len(decode_records(batch))
        else:
            for _ in range(loops):
                seen += check_batch(batch).record_count
        took = time.perf_counter() - started
        assert seen == loops * expected, f"{seen} records, not {loops * expected}"
        return took

    return run


BENCHMARKS = {
    "check a batch": walking("none", decodes=False),
    **{f"decode a batch, {codec}": walking(codec, decodes=True) for codec in CODECS},
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.records", __doc__, BENCHMARKS))
