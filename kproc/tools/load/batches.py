"""Compressed record batches for the generator's option `--batch-file`, because the generator cannot compress.

The values resemble lines of a service's log, with repeated words and random numbers, so that the compression ratio is
realistic. Equal seeds give equal bytes.
"""

from __future__ import annotations

import random
from typing import Final

from kproc.wire.compression import Compression
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

CODECS: Final = {"none": Compression.NONE, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}
_LEVELS: Final = ("INFO", "WARN", "DEBUG")
_PATHS: Final = ("/orders", "/orders/items", "/login", "/search", "/health", "/basket/checkout")


def compressed_batch(codec: str, record_bytes: int, batch_bytes: int, now_ms: int, seed: int = 1) -> bytes:
    """Return one batch with records of `record_bytes` bytes, of about `batch_bytes` before compression."""
    # Not a cryptographic generator (S311), because a benchmark needs reproducible bytes.
    chance = random.Random(seed)  # noqa: S311
    count = max(1, batch_bytes // (record_bytes + 10))
    records = [Record(None, _value(chance, record_bytes), now_ms) for _ in range(count)]
    return bytes(encode_batch(records, codec=CODECS[codec]))


def _value(chance: random.Random, size: int) -> bytes:
    parts: list[str] = []
    length = 0
    while length < size:
        line = (
            f'{{"level":"{chance.choice(_LEVELS)}","path":"{chance.choice(_PATHS)}",'
            f'"user":{chance.randrange(10**9)},"took_us":{chance.randrange(20_000)},"id":"{chance.getrandbits(64):016x}"}}'
        )
        parts.append(line)
        length += len(line)
    return "".join(parts).encode()[:size]
