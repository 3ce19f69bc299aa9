"""A quick part of librdkafka's own test suite, where scripts/librdkafka-tests has built it.

Tests that take a second or two and cover produce, fetch, groups and admin; all of them are run by the script.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import librdkafka, librdkafka_build
from tests.conformance.outcomes import PASSES
from tests.support.broker import ServedBroker

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.transports("process", "thread"),
    pytest.mark.skipif(
        librdkafka_build.missing_reason() is not None, reason=librdkafka_build.missing_reason() or ""
    ),
]

QUICK = (
    "0001_multiobj",
    "0003_msgmaxsize",
    "0005_order",
    "0008_reqacks",
    "0011_produce_batch",
    "0012_produce_consume@PLAINTEXT",
    "0013_null_msgs",
    "0022_consume_batch",
    "0031_get_offsets",
    "0034_offset_reset",
    "0036_partial_fetch",
    "0044_partition_cnt",
    "0048_partitioner",
    "0054_offset_time",
    "0070_null_empty",
    "0073_headers",
    "0081_admin:DeleteGroups",
    "0085_headers",
    "0090_idempotence",
    "0099_commit_metadata",
    "0130_store_offsets",
)


def test_quick_part_of_the_suite(tmp_path: Path, transport: str) -> None:
    settings = {"num.network.threads": 2, "num.io.threads": 2, **librdkafka.SETTINGS[librdkafka.DEFAULT]}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        runner = librdkafka.Runner(broker.bootstrap, librdkafka.DEFAULT, tmp_path)
        ended = [runner.run(test) for test in librdkafka.chosen_tests(QUICK)]
    assert len(ended) == len(QUICK)
    assert [outcome for outcome in ended if outcome.state != PASSES] == []
