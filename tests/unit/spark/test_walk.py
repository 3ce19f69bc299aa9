"""The chain of lengths: in Python, in strides, and compiled where `scripts/build-compiled` was run."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

from kproc.spark import chain, walk  # noqa: E402
from kproc.wire.batch_header import HEADER_BYTES  # noqa: E402
from kproc.wire.record_batch import encode_batch  # noqa: E402
from kproc.wire.records import Record  # noqa: E402

Starts = Callable[[bytes, Any, Any, Any], "list[int] | None"]


def in_python() -> ModuleType:
    """chain.py as it is written, also where the compiled one hides it."""
    path = Path(walk.__file__).with_name("chain.py")
    spec = importlib.util.spec_from_file_location("chain_in_python", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.IS_COMPILED
    return module


def by(module: ModuleType) -> Starts:
    def starts(raw: bytes, begins: Any, ends: Any, counts: Any) -> list[int] | None:
        found = np.empty(int(counts.sum()), np.int64)
        return found.tolist() if module.record_starts(raw, begins, ends, counts, found) else None

    return starts


def by_runs(raw: bytes, begins: Any, ends: Any, counts: Any) -> list[int] | None:
    try:
        found = walk._starts_by_runs(raw, begins.tolist(), ends.tolist(), counts.tolist())
    except IndexError:
        return None
    return None if found is None else found.tolist()


@pytest.fixture(params=["runs", "compiled"])
def starts(request: pytest.FixtureRequest) -> Starts:
    if request.param == "runs":
        return by_runs
    if not chain.IS_COMPILED:
        pytest.skip("scripts/build-compiled was not run")
    return by(chain)


def payloads(chance: random.Random) -> list[tuple[bytes, int]]:
    """Batches of records whose sizes stay the same for a while, around the limits of one, two and three bytes."""
    found = []
    for _ in range(chance.randint(1, 4)):
        records: list[Record] = []
        for _ in range(chance.randint(1, 4)):
            size = chance.choice([0, 1, 54, 55, 56, 57, 120, 8180, 8183, 8190, 20000])
            count = chance.choice([1, 2, 11, 12, 13, 40]) if size < 1000 else chance.choice([1, 14])
            records += [Record(None, bytes(size), chance.randrange(3))] * count
        found.append((bytes(encode_batch(records)[HEADER_BYTES:]), len(records)))
    return found


def joined(batches: list[tuple[bytes, int]]) -> tuple[bytes, Any, Any, Any]:
    ends = np.cumsum([len(payload) for payload, _ in batches], dtype=np.int64)
    begins = ends - np.array([len(payload) for payload, _ in batches], np.int64)
    counts = np.array([count for _, count in batches], np.int64)
    return b"".join([payload for payload, _ in batches]) + walk.PADDING, begins, ends, counts


@pytest.mark.parametrize("seed", range(12))
def test_every_way_finds_the_same_records(starts: Starts, seed: int) -> None:
    arguments = joined(payloads(random.Random(seed)))
    expected = by(in_python())(*arguments)
    assert expected is not None
    assert starts(*arguments) == expected


@pytest.mark.parametrize("seed", range(8))
def test_every_way_refuses_the_same_damage(starts: Starts, seed: int) -> None:
    chance = random.Random(100 + seed)
    reference = by(in_python())
    refused = 0
    for _ in range(30):
        raw, begins, ends, counts = joined(payloads(chance))
        damaged = bytearray(raw)
        places = reference(raw, begins, ends, counts)
        assert places is not None
        damaged[chance.choice(places)] = chance.randrange(256)
        arguments = (bytes(damaged), begins, ends, counts)
        expected = reference(*arguments)
        refused += expected is None
        assert starts(*arguments) == expected
    assert refused > 5


def test_run_beyond_longest_examined_one_matches_python(starts: Starts) -> None:
    count = 3 * walk._RUN_MAX + 5
    batch = encode_batch([Record(None, b"x")] * 60 + [Record(None, b"yy")] * 60)
    payload = bytes(batch[HEADER_BYTES:])
    one = bytes(encode_batch([Record(None, b"z" * 70)])[HEADER_BYTES:])
    arguments = joined([(payload, 120), (one * count, count), (payload, 120)])
    assert starts(*arguments) == by(in_python())(*arguments)
