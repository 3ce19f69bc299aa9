"""Record batches that the generator sends as they are (`--batch-file`): compressed ones, which C does not make.

The values look like lines of a service's log: words that repeat and numbers that do not, so that a codec finds
about what it finds in practice. The same seed gives the same bytes.
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
    """One whole batch: as many records of `record_bytes` as are about `batch_bytes` before compression."""
    # A benchmark's bytes must repeat, not be secret.
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
