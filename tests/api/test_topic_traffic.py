"""kproc's operation `topics`: traffic by topic, summed over all Handlers."""

from __future__ import annotations

import pytest

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
