"""InitProducerId gives out each producer id once."""

from __future__ import annotations

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.idempotence import new_producer
from tests.support.raw import RawClient


@pytest.mark.parametrize("version", range(5))
def test_init_producer_id_returns_new_id_in_every_version(client: RawClient, version: int) -> None:
    given = [new_producer(client, version) for _ in range(5)]
    assert len({producer_id for producer_id, _ in given}) == 5
    assert {epoch for _, epoch in given} == {0}


def test_producer_ids_are_unique_over_connections(broker: BrokerUnderTest) -> None:
    given = []
    for _ in range(8):
        with RawClient(broker.bootstrap) as other:
            given += [new_producer(other)[0] for _ in range(5)]
    assert len(set(given)) == 40
