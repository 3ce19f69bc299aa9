"""Power losses on demand: unmodified clients find every record that was synced, and none of the others."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.embedded import Broker, BrokerFailed
from tests.support.broker import forked_broker
from tests.support.faulted_clients import LIBRARIES

pytestmark = [
    pytest.mark.clients, pytest.mark.own_broker, pytest.mark.transports("process"),
    pytest.mark.usefixtures("fork_server"),
]  # fmt: skip


def power_loss(flush: str) -> Broker:
    settings = {"kproc.flush": flush, "num.io.threads": 2, "num.network.threads": 1}
    return forked_broker()(settings, power_loss=True)


def test_acknowledged_records_survive_power_losses() -> None:
    """Among them records that were written after a first loss, and offsets that a group has committed."""
    with power_loss("group") as broker:
        bootstrap = broker.bootstrap
        for name, library in LIBRARIES.items():
            broker.create_topic(name)
            for value in (b"a", b"b"):
                assert library.produce(bootstrap, name, [value], acks="all") == [""]
                broker.lose_power()
            assert broker.bootstrap == bootstrap
            assert library.consume(bootstrap, name, 2, group=f"group-{name}") == [b"a", b"b"]


def test_records_that_were_never_synced_are_lost() -> None:
    with power_loss("none") as broker:
        broker.create_topic("t")
        for library in LIBRARIES.values():
            assert library.produce(broker.bootstrap, "t", [b"lost"]) == [""]
            # The kernel still has it after a crash of the broker, and loses it with the power.
            broker.restart(kill=True)
            assert library.consume(broker.bootstrap, "t", 1) == [b"lost"]
            broker.lose_power()
        assert library.produce(broker.bootstrap, "t", [b"first"]) == [""]
        assert library.consume(broker.bootstrap, "t", 1) == [b"first"]


def test_power_loss_needs_temporary_data_and_a_record() -> None:
    with pytest.raises(ValueError, match="power_loss=True is for temporary data"):
        Broker(data="here", power_loss=True)
    broker = Broker()
    with pytest.raises(BrokerFailed, match=r"start it with Broker\(power_loss=True\)"):
        broker.lose_power()
    assert broker.settings["kproc.flush"] == "none"
    with pytest.raises(BrokerFailed, match="the broker is not running"):
        Broker(power_loss=True).lose_power()
