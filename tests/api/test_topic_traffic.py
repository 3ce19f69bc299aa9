"""kproc's operations `topics` and `logs`: traffic and files by topic."""

from __future__ import annotations

import pytest

from kproc.common.clock import SystemClock
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch
from tests.support.status import connect


@pytest.mark.every_transport
def test_traffic_counts_what_was_produced_and_fetched(
    broker: BrokerUnderTest, client: RawClient, three: str
) -> None:
    """The fixture has produced five batches of one record."""
    if broker.pid is None:
        pytest.skip("only a kproc broker answers")
    size = len(batch(b"0"))
    client.produce(three, batch(b"0"), partition=2)
    client.fetch(three, 0)
    with connect(broker.bootstrap) as admin:
        answer = admin.operate("topics")
    assert answer["silent"] == []
    (row,) = [each for each in answer["topics"] if each["name"] == three]
    assert row == {
        "name": three,
        "bytes_in": 6 * size,
        "records_in": 6,
        "bytes_out": 5 * size,
        "fetches": row["fetches"],
    }
    assert row["fetches"] > 0


@pytest.mark.every_transport
def test_survey_has_the_figures_of_every_partition(
    broker: BrokerUnderTest, client: RawClient, three: str
) -> None:
    if broker.pid is None:
        pytest.skip("only a kproc broker answers")
    with connect(broker.bootstrap) as admin:
        answer = admin.operate("logs")
    (row,) = [each for each in answer["topics"] if each["name"] == three]
    (_, size, newest_ms, oldest_ms), *empty = row["partitions"]
    assert size == 5 * len(batch(b"0"))
    assert abs(newest_ms - SystemClock().wall_ms()) < 600_000
    assert oldest_ms >= 0
    assert empty == [[1, 0, -1, -1], [2, 0, -1, -1]]
