"""Whatever Produce accepts, a consumer can read: hostile batches against another client's decoder."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.wire.batch_header import HEADER
from kproc.wire.record_batch import decode_records
from tests.fuzz.hostile_batches import bombs, hostile_batch
from tests.support.logs import LogRig, append_one
from tests.support.other_decoder import decode_as_a_consumer

CONFIGS = {
    "full": LogConfig(validate_records="full"),
    "compacted": LogConfig(cleanup_policy=frozenset({"compact"})),
    "coded": LogConfig(compression_type="zstd"),
    "bounded": LogConfig(timestamp_before_max_ms=10**12, timestamp_after_max_ms=2**63 - 1),
    "append time": LogConfig(validate_records="full", timestamp_type="LogAppendTime"),
}


@pytest.mark.parametrize("story", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_accepted_batch_is_read_by_a_consumer(tmp_path: Path, story: str, seed: int) -> None:
    source = random.Random(seed)
    log = LogRig(tmp_path / "t-0", config=CONFIGS[story]).open()
    accepted = 0
    for number in range(200):
        batch = hostile_batch(source)
        views = [memoryview(bytearray(batch))]
        (result,) = log.append(views)
        if result.error_code:
            continue
        accepted += 1
        stored = bytes(views[0])
        where = f"seed {seed}, batch {number}: {batch.hex()[:600]}"
        try:
            theirs = decode_as_a_consumer(stored)
        except Exception as error:
            raise AssertionError(f"kafka-python: {error!r}; {where}") from error
        ours = [(each.offset, each.key, each.value) for each in decode_records(stored)]
        assert theirs in (ours, []), where
        header = HEADER.unpack_from(stored)
        assert [offset for offset, _, _ in ours] == list(range(result.base_offset, result.last_offset + 1)), (
            where
        )
        assert header[12] == len(ours)
    assert 10 < accepted < 195, "too many of one kind prove little"
    log.close(clean=False)


@pytest.mark.parametrize("seed", range(2))
def test_accepted_batch_has_as_many_records_as_it_claims(tmp_path: Path, seed: int) -> None:
    """The default looks at lengths only. What it accepts of small batches has as many records as it claims."""
    source = random.Random(1000 + seed)
    log = LogRig(tmp_path / "t-0").open()
    for _ in range(400):
        batch = hostile_batch(source)
        result = append_one(log, memoryview(bytearray(batch)))
        if result.error_code == 0:
            assert result.last_offset - result.base_offset < max(70, len(batch))
    log.close(clean=False)


@cache
def made_bombs() -> list[bytes]:
    """To make them takes longer than to refuse them."""
    return list(bombs())


@pytest.mark.long
@pytest.mark.parametrize("story", CONFIGS)
def test_bombs_are_refused_or_read(tmp_path: Path, story: str) -> None:
    log = LogRig(tmp_path / "t-0", config=CONFIGS[story]).open()
    for batch in made_bombs():
        views = [memoryview(bytearray(batch))]
        (result,) = log.append(views)
        if result.error_code == 0:
            assert len(decode_as_a_consumer(bytes(views[0]))) == 1
    log.close(clean=False)
