"""The digest of a task's rows: the same in any order, another one for other rows."""

from __future__ import annotations

import random

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.spark.digest import DIGEST_COUNT, digest  # noqa: E402
from kproc.spark.encode import RowColumns  # noqa: E402


def rows(values: list[bytes | None], keys: list[bytes | None] | None = None) -> RowColumns:
    column = None if keys is None else pa.array(keys, pa.binary())
    return RowColumns(pa.array(values, pa.binary()), column, None, np.zeros(len(values), np.int64))


def test_order_and_the_cut_into_batches_do_not_matter() -> None:
    source = random.Random(1)
    values = [source.randbytes(source.randrange(300)) for _ in range(500)]
    keys = [source.randbytes(source.randrange(20)) for _ in range(500)]
    whole = digest(rows(values, keys))
    order = source.sample(range(500), 500)
    assert digest(rows([values[at] for at in order], [keys[at] for at in order])) == whole
    parts = (
        digest(rows(values[start : start + 70], keys[start : start + 70])) for start in range(0, 500, 70)
    )
    assert sum(parts) % DIGEST_COUNT == whole
    assert digest(
        RowColumns(*(each.slice(100, 50) for each in rows(values, keys)[:2]), None, np.zeros(50))
    ) == digest(rows(values[100:150], keys[100:150]))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 63, 64, 65, 300])
def test_digest_covers_short_values_and_ends_of_long_ones(length: int) -> None:
    value = bytes(range(1, 256)) * 2
    value = value[:length]
    seen = {digest(rows([value])), digest(rows([None])), digest(rows([value + b"\0"]))}
    places = range(length) if length <= 64 else (0, 7, length - 8, length - 1)
    for at in places:
        changed = bytearray(value)
        changed[at] ^= 0x40
        seen.add(digest(rows([bytes(changed)])))
    assert len(seen) == len(places) + 3


def test_digest_depends_on_key_value_pairs() -> None:
    together = digest(rows([b"one", b"two"], [b"1", b"2"]))
    assert digest(rows([b"one", b"two"], [b"2", b"1"])) != together
    assert digest(rows([b"one", b"two"], [None, b"2"])) != together
    assert digest(rows([b"one", b"two"])) != together
    assert digest(rows([b"one"], [b""])) != digest(rows([b"one"], [None]))


def test_digest_ignores_bytes_behind_a_short_value() -> None:
    assert digest(rows([b"ab", b"cdefghij"])) - digest(rows([b"cdefghij"])) in (
        digest(rows([b"ab"])),
        digest(rows([b"ab"])) - DIGEST_COUNT,
    )
    assert digest(rows([])) == 0
