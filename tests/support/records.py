"""Records to send and to compare byte for byte, the same for every client: seeded, so a failure repeats."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

# From a fixed instant, so that two runs send the same bytes. Milliseconds, as on the wire.
FIRST_TIMESTAMP_MS = 1_700_000_000_000
SMALL_SIZES = (1, 2, 10, 100, 127, 128, 1_000, 16_383, 16_384, 100_000)
LARGE_SIZES = (1_000_000, 5_000_000, 20_000_000)


@dataclass(frozen=True)
class Sample:
    """One record as the application sees it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int

    def __repr__(self) -> str:
        size = "null" if self.value is None else len(self.value)
        shown = f"{self.key!r:.40}, {size} B, {self.headers!r:.60}, {self.timestamp_ms}"
        return f"Sample(partition {self.partition}: {shown})"


@dataclass(frozen=True)
class Received(Sample):
    """One record as a consumer saw it."""

    offset: int = field(default=-1, kw_only=True)

    def sample(self) -> Sample:
        """Without the offset: what was sent."""
        return Sample(self.partition, self.key, self.value, self.headers, self.timestamp_ms)


def payload(size: int, seed: int) -> bytes:
    """`size` bytes, half of them compressible, so that a codec has both kinds of work."""
    source = random.Random(seed)
    noise = source.randbytes(size // 2)
    word = source.randbytes(24)
    rest = size - len(noise)
    return noise + (word * (rest // len(word) + 1))[:rest]


def samples(
    sizes: Iterable[int], *, partitions: int, seed: int, headers: bool = True, nulls: bool = True
) -> list[Sample]:
    """One record of each size, spread over the partitions, with keys, headers and rising timestamps.

    With `nulls`, a null key and a tombstone are among them; every record's timestamp is its own.
    """
    made: list[Sample] = []
    for number, size in enumerate(sizes):
        key = None if nulls and number % 5 == 4 else f"key-{seed}-{number}".encode()
        value: bytes | None = payload(size, seed * 1_000 + number)
        if nulls and number % 7 == 6:
            value = None
        some = (
            (("trace", f"{seed}/{number}".encode()), ("binary", bytes(range(number % 256))))
            if headers
            else ()
        )
        made.append(Sample(number % partitions, key, value, some, FIRST_TIMESTAMP_MS + number * 17))
    return made


def by_partition(records: Iterable[Sample]) -> dict[int, list[Sample]]:
    """The records of each partition, in the order given."""
    split: dict[int, list[Sample]] = {}
    for record in records:
        split.setdefault(record.partition, []).append(record)
    return split


def assert_same(sent: Iterable[Sample], received: Iterable[Received]) -> None:
    """Every sent record came back, in order per partition, byte for byte, at dense offsets."""
    wanted = by_partition(sent)
    got: dict[int, list[Received]] = {}
    for record in received:
        got.setdefault(record.partition, []).append(record)
    assert {p: len(rows) for p, rows in got.items()} == {p: len(rows) for p, rows in wanted.items()}
    for partition, rows in wanted.items():
        offsets = [record.offset for record in got[partition]]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), (
            f"offsets of {partition}: {offsets}"
        )
        for ours, theirs in zip(rows, got[partition], strict=True):
            # Not `assert a == b` on the whole: pytest would print 20 MB of difference.
            same = ours == theirs.sample()
            assert same, f"sent {ours!r}, received {theirs!r}"
