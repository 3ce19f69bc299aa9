"""DescribeCluster: the cluster is one broker."""

from __future__ import annotations

import pytest

import kproc.broker.api.describe_cluster
import kproc.broker.api.find_coordinator
import kproc.broker.api.init_producer_id  # noqa: F401 - the imports register the handlers
from kproc.wire.header import ApiKey
from tests.support.api_broker import HOST, PORT, Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_one_broker(broker, version):
    fields = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert (fields["error_code"], fields["cluster_id"], fields["controller_id"]) == (0, "test-cluster", 1)
    (row,) = fields["brokers"]
    assert (row["broker_id"], row["host"], row["port"], row["rack"]) == (1, HOST, PORT, None)
    assert not row.get("is_fenced", False)
    assert fields["cluster_authorized_operations"] == 8096
    fields = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=False)
    assert fields["cluster_authorized_operations"] == -(2**31)


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (3, 115)])
def test_controllers_are_not_described_here(broker, endpoint_type, code):
    fields = broker.ask(
        ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type
    )
    assert (fields["error_code"], fields["brokers"]) == (code, [])
