"""Compressed batches of the load generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kproc.tools.load.batches import compressed_batch
from kproc.tools.load.build import compiler
from kproc.tools.load.run import LoadFailed, run_load
from tests.support.broker import BrokerUnderTest
from tests.support.short_load import run_short_load
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH to build it with"),
]

on_processes = pytest.mark.transports("process")


@on_processes
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_load_generator_sends_given_batches_unchanged(
    broker: BrokerUnderTest, codec: str, tmp_path: Path
) -> None:
    batch = compressed_batch(codec, 1000, 100_000, 1_700_000_000_000)
    (tmp_path / "batch").write_bytes(batch)
    options: dict[str, Any] = {"topic": fresh_name("load"), "batch_file": tmp_path / "batch"}
    result = run_short_load("produce", broker.bootstrap, **options)
    assert result["bytes"] == result["requests"] * len(batch) > 0
    assert result["records"] == result["requests"] * (100_000 // 1010)


def test_batch_file_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(compressed_batch("none", 100, 1000, 0)[:-1])
    with pytest.raises(LoadFailed, match="not one whole record batch"):
        run_load("produce", "127.0.0.1:9", batch_file=tmp_path / "batch")
