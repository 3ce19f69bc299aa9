"""ProduceNodes: connections to brokers, and what is ready on them."""

from __future__ import annotations

import pytest

from kproc.client import ClientError
from kproc.spark.broker_clients import parse_bootstrap
from kproc.spark.produce_nodes import ProduceNode, ProduceNodes
from kproc.spark.sink_options import ProducerSettings
from tests.support.scripted_broker import ScriptedBroker

pytest.importorskip("pyspark")


def test_node_keeps_its_connection_until_it_is_unlinked() -> None:
    with ScriptedBroker("t", 1, lambda *_: None) as broker:
        nodes = ProduceNodes(ProducerSettings())
        node = nodes.by_number[0] = ProduceNode(parse_bootstrap(broker.bootstrap)[0])
        assert nodes.connected() == []
        assert nodes.connect(node)
        link = node.link
        assert nodes.connect(node)
        assert node.link is link
        assert nodes.connected() == [node]
        assert not nodes.has_unsent_bytes()
        assert nodes.select(0) == []
        nodes.unlink(node)
        assert nodes.connected() == []
        assert nodes.select(0) == []
        nodes.close()


def test_broker_that_closes_a_connection_makes_it_readable() -> None:
    nodes = ProduceNodes(ProducerSettings())
    with ScriptedBroker("t", 1, lambda *_: None) as broker:
        node = nodes.by_number[0] = ProduceNode(parse_bootstrap(broker.bootstrap)[0])
        assert nodes.connect(node)
    assert nodes.select(10_000) == [(node, True)]
    nodes.unlink(node)
    with pytest.raises(ClientError):
        nodes.connect(node)
    assert node.link is None
    nodes.close()
