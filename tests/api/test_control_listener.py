"""The control listener: administration apart from the clients, straight to the controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.peers.base import free_ports
from kproc.client import ClientError
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, EmbeddedBroker
from tests.support.configs import read_configs, set_config
from tests.support.raw import RawClient, batch, create_topics_fields
from tests.support.status import connect, status
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

pytestmark = pytest.mark.own_broker

SETTINGS = {"num.io.threads": 2, "num.network.threads": 2, "kproc.control.listener": "127.0.0.1:0"}
BROKER, TOPIC, LOGGERS, SET = 4, 2, 8, 0


@pytest.fixture(scope="module")
def managed(transport: str) -> Iterator[BrokerUnderTest]:
    """One broker with a control listener, for all tests of a transport."""
    with EmbeddedBroker(transport=transport, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def control(managed: BrokerUnderTest) -> str:
    """Where the control listener is."""
    return str(status(managed.bootstrap)["control"])


@pytest.mark.every_transport
def test_control_listener_changes_topics_and_configs(
    managed: BrokerUnderTest, control: str
) -> None:
    name = fresh_name("managed")
    with RawClient(control) as admin, RawClient(managed.bootstrap) as client:
        (made,) = admin.call(ApiKey.CREATE_TOPICS, 7, create_topics_fields(name, partitions=2))["topics"]
        assert made["error_code"] == 0
        wait_until(lambda: client.describe_topic(name)["error_code"] == 0, what="every Handler knows it")
        assert client.produce(name, batch(b"x"), partition=1)["error_code"] == 0
        row = {"name": name, "count": 3, "assignments": None}
        fields = {"topics": [row], "timeout": 1000, "validate_only": False}
        (grown,) = admin.call(ApiKey.CREATE_PARTITIONS, 3, fields)["results"]
        assert grown["error_code"] == 0
        assert set_config(admin, "retention.ms", "12345", kind=TOPIC, resource=name) == (0, None)
        shown = read_configs(admin, "retention.ms", kind=TOPIC, resource=name)
        assert shown["retention.ms"]["value"] == "12345"
        admin.delete_topic(name)
        wait_until(lambda: client.describe_topic(name)["error_code"] != 0, what="it is gone")


def test_control_listener_changes_log_levels(managed: BrokerUnderTest, control: str) -> None:
    name = "kproc.broker.cleaner.strays"

    def shown(address: str) -> str:
        with RawClient(address) as client:
            return str(read_configs(client, name, kind=LOGGERS)[name]["value"])

    with RawClient(control) as admin:
        level = set_config(admin, "kproc.broker.cleaner.strays", "TRACE", kind=LOGGERS)
        assert (level, shown(control), shown(managed.bootstrap)) == ((0, None), "TRACE", "TRACE")
        assert set_config(admin, "kproc.broker.cleaner.strays", None, kind=LOGGERS) == (0, None)
    assert shown(managed.bootstrap) != "TRACE"


def test_control_listener_advertises_its_own_address(control: str) -> None:
    with RawClient(control) as admin:
        (node,) = admin.call(ApiKey.METADATA, 9, {"topics": []})["brokers"]
        assert f"{node['host']}:{node['port']}" == control
        (described,) = admin.call(ApiKey.DESCRIBE_CLUSTER, 0, {})["brokers"]
        assert f"{described['host']}:{described['port']}" == control


def test_control_listener_serves_only_advertised_apis(control: str) -> None:
    with RawClient(control) as admin:
        fields = {"client_software_name": "test", "client_software_version": "1"}
        keys = {row["api_key"] for row in admin.call(ApiKey.API_VERSIONS, 3, fields)["api_keys"]}
        assert {ApiKey.CREATE_TOPICS, ApiKey.METADATA, ApiKey.INCREMENTAL_ALTER_CONFIGS} <= keys
        assert not keys & {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP}
        admin.send(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": []})
        assert admin.is_closed_by_broker()


@pytest.mark.every_transport
def test_control_listener_handles_request_through_arena(control: str) -> None:
    names = [fresh_name("many") for _ in range(500)]
    with RawClient(control) as admin:
        fields = create_topics_fields(names[0], validate_only=True)
        fields["topics"] = [{**fields["topics"][0], "name": name} for name in names]
        rows = admin.call(ApiKey.CREATE_TOPICS, 7, fields)["topics"]
        assert [row["error_code"] for row in rows] == [0] * len(names)


@pytest.mark.every_transport
def test_control_listener_answers_in_order_beyond_its_queue(control: str) -> None:
    with RawClient(control) as admin:
        sent = [admin.send(ApiKey.METADATA, 9, {"topics": []}) for _ in range(60)]
        assert [admin.receive(ApiKey.METADATA, 9)[0] for _ in sent] == sent


def test_control_listener_handles_kproc_operations(control: str) -> None:
    with connect(control) as admin:
        assert admin.operate("status")["control"] == control
        roles = {(row["role"], row["pool"]) for row in admin.operate("status")["processes"]}
        assert ("processor", "control") in roles
        assert admin.operate("clients")["clients"] is not None
        assert admin.operate("topics")["silent"] == []
        with pytest.raises(ClientError, match="unknown operation 'dance'"):
            admin.operate("dance")


@pytest.mark.every_transport
def test_control_listener_shows_requests_of_all_handlers(managed: BrokerUnderTest, control: str) -> None:
    """The controller calls both Handlers, each of which has some of these clients."""
    name = fresh_name()
    with connect(control) as admin, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(managed.bootstrap)) for _ in range(8)]
        assert admin.operate("monitor", watch="w", topic=name) == {"lines": [], "lost": 0, "silent": []}
        for client in clients:
            client.call(ApiKey.METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
        answer = admin.operate("monitor", watch="w", topic=name)
    assert [(line["api"], line["topics"]) for line in answer["lines"]] == [("Metadata", [name])] * len(clients)
    assert answer["silent"] == []


def test_control_listener_lists_and_closes_client_connection(managed: BrokerUnderTest, control: str) -> None:
    with RawClient(managed.bootstrap) as client, connect(control) as admin:
        client.call(ApiKey.METADATA, 9, {"topics": []})
        port = client.socket.getsockname()[1]
        (row,) = [each for each in admin.operate("clients")["clients"] if each["port"] == port]
        assert admin.operate("kill-client", id=row["id"]) == {"is_killed": True}
        assert client.is_closed_by_broker()
        assert admin.operate("kill-client", id=row["id"]) == {"is_killed": False}
        with pytest.raises(ClientError, match=r"the request is invalid: .*`id`"):
            admin.operate("kill-client")


@pytest.mark.transports("thread", "inline")
def test_scale_of_single_process_transport_is_rejected(control: str) -> None:
    with connect(control) as admin, pytest.raises(ClientError, match="at the next start only"):
        admin.scale(processors=3)


def test_control_listener_lifts_connection_limit_of_0(managed: BrokerUnderTest, control: str) -> None:
    """Limits by address do not hold for it; stored as they are, not even a restart would help."""
    key = "max.connections.per.ip.overrides"
    operations = {"SET": 0, "DELETE": 1}

    def alter(admin: RawClient, operation: str) -> int:
        config = {"name": key, "config_operation": operations[operation], "value": "127.0.0.1:0"}
        resource = {"resource_type": BROKER, "resource_name": "1", "configs": [config]}
        fields = {"resources": [resource], "validate_only": False}
        code = admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"][0]["error_code"]
        return int(code)

    def is_served() -> bool:
        try:
            with connect(managed.bootstrap) as client:
                client.operate("ping")
        except (ClientError, OSError):
            return False
        return True

    with RawClient(control) as admin:
        assert alter(admin, "SET") == 0
    try:
        wait_until(lambda: not is_served(), what="clients are locked out")
    finally:
        with RawClient(control) as admin:
            assert alter(admin, "DELETE") == 0
    wait_until(is_served, what="clients are back")


def test_control_listener_requires_acls_with_authorizer(transport: str) -> None:
    (port,) = free_ports(1)
    settings = {
        **SETTINGS,
        "kproc.control.listener": f"127.0.0.1:{port}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    address = f"127.0.0.1:{port}"
    with EmbeddedBroker(transport=transport, settings=settings), RawClient(address) as nobody:
        (made,) = nobody.call(ApiKey.CREATE_TOPICS, 7, create_topics_fields("x"))["topics"]
        assert made["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        resource = {"resource_type": BROKER, "resource_name": "", "configs": []}
        fields = {"resources": [resource], "validate_only": False}
        (altered,) = nobody.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"]
        assert altered["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with connect(address) as client, pytest.raises(ClientError, match="needs the right DESCRIBE"):
            client.operate("status")


def test_control_listener_divides_large_requests_in_order(control: str) -> None:
    """The controller handles them in slices, and reads nothing else meanwhile."""
    names = [f"absent-{at}" for at in range(1_000)]
    fields = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    with RawClient(control) as admin:
        large = admin.send(ApiKey.METADATA, 9, fields)
        small = admin.send(ApiKey.API_VERSIONS, 0, {})
        correlation_id, answer = admin.receive(ApiKey.METADATA, 9)
        assert correlation_id == large
        assert [row["name"] for row in answer["topics"]] == names
        assert admin.receive(ApiKey.API_VERSIONS, 0)[0] == small
