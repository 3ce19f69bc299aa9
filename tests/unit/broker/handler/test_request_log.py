"""The request log: valid JSON for every API, secrets hidden as by Kafka, bounded files, nothing while it is off."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kproc.broker.api import load_all
from kproc.broker.handler.request_log import HIDDEN, RequestLog, hide_secrets, loggable
from kproc.broker.request import registry
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.security.principal import ANONYMOUS, Principal
from kproc.broker.transport.envelope import FLAG_PROBE, HEAD, REQUEST
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.cases import in_one_test
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import changes
from tests.support.minimal import MINIMAL
from tests.support.raw import batch, fetch_fields, produce_fields
from tests.support.request_log import BROKER, LOGGER, TOPIC, lines, switch

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)


def alter(resource_type: int, configs: list[tuple[str, str | None]]) -> dict[str, Any]:
    rows = [{"name": name, "value": value} for name, value in configs]
    resource = {"resource_type": resource_type, "resource_name": "1", "configs": rows}
    return {"resources": [resource], "validate_only": False}


def values(fields: Any) -> list[str | None]:
    return [
        config["value"] for config in hide_secrets(ApiKey.ALTER_CONFIGS, fields)["resources"][0]["configs"]
    ]


# -- what Kafka's RequestChannelTest proves ------------------------------------------------------------------


@in_one_test(
    ("resource_type", "name", "is_hidden"),
    [
        (BROKER, "ssl.keystore.password", True),
        (BROKER, "listener.name.plaintext.ssl.key.password", True),
        (BROKER, "sasl.jaas.config", True),
        (BROKER, "my.own.config", True),
        (BROKER, "num.io.threads", False),
        (BROKER, "listener.name.external.max.connections", False),
        (TOPIC, "retention.ms", False),
        (TOPIC, "nobody.knows.this", True),
        (LOGGER, "kproc", True),
    ],
)
def test_values_that_may_be_secret_are_hidden(resource_type: int, name: str, is_hidden: bool) -> None:
    fields = alter(resource_type, [(name, "told"), (name, None)])
    assert values(fields) == [HIDDEN if is_hidden else "told", None]
    assert fields["resources"][0]["configs"][0]["value"] == "told", "the request itself is not touched"


@pytest.mark.parametrize("operation", [0, 1, 2, 3])
def test_incremental_changes_are_hidden_whatever_they_do(operation: int) -> None:
    resource = changes(
        BROKER, "1", ("ssl.key.password", operation, "s3cret"), ("num.io.threads", operation, "3")
    )
    body = _body(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    shown = orjson.dumps(loggable(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body))
    assert b"s3cret" not in shown
    assert b'"3"' in shown


@pytest.mark.parametrize("key", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_empty_requests_are_fine(key: ApiKey) -> None:
    assert hide_secrets(key, {"resources": [], "validate_only": False})["resources"] == []


def test_other_requests_are_logged_as_they_are() -> None:
    fields = {"topics": []}
    assert hide_secrets(ApiKey.METADATA, fields) is fields


def _body(key: ApiKey, version: int, fields: dict[str, Any]) -> memoryview:
    frame = memoryview(codec.encode_request(key, version, 7, "test", fields))[4:]
    body_at = 8 + 2 + len(b"test")
    assert parse_request_header(frame)[1] >= body_at
    return frame[body_at:]


def test_every_api_gives_valid_json() -> None:
    load_all()
    checked = 0
    for key, make in MINIMAL.items():
        api = registry.lookup(key)
        if api is None:
            continue
        for version in range(api.lo, api.hi + 1):
            shown = loggable(key, version, _body(key, version, make("t", NO_ID)))
            assert isinstance(shown, dict), (key, version)
            assert orjson.loads(orjson.dumps(shown)) == shown, (key, version)
            checked += 1
    assert checked > 100


def test_bytes_that_are_no_request_are_logged_without_fields() -> None:
    assert loggable(ApiKey.METADATA, 9, memoryview(b"\0\xff\xff")) is None
    assert loggable(12345, 0, memoryview(b"")) is None


def test_readiness_probe_has_no_line(start: Start) -> None:
    """It bypasses the listeners and logins, so that its line would name an anonymous client."""
    rig = start()
    switch(rig, "all")
    frame = codec.encode_request(ApiKey.METADATA, 1, 7, "probe", {"topics": []})
    processor = rig.processors[0]
    for flags in (0, FLAG_PROBE):
        processor.outbox.push(REQUEST, HEAD.pack(77, flags, 0, flags), frame)
        processor.outbox.flush()
        assert len(processor.answers()) == 1
    assert len([line for line in lines(rig) if line["requestHeader"]["clientId"] == "probe"]) == 1


def test_request_log_can_be_switched_on_at_run_time(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    processor = rig.processors[0]
    fields = produce_fields([("t", NO_ID, [(0, batch(b"x" * 100))])])
    processor.introduce("10.1.2.3")
    processor.ask(ApiKey.PRODUCE, 9, fields)
    assert lines(rig) == []
    switch(rig, "all")
    processor.ask(ApiKey.PRODUCE, 9, fields)
    processor.ask(ApiKey.PRODUCE, 9, fields)
    processor.send(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 3)])], max_wait_ms=500), connection=2)
    rig.settle()
    rig.advance_ms(500)
    assert len(processor.answers()) == 1
    first, second, third = lines(rig)
    assert first["requestHeader"] == {
        "requestApiKey": 0,
        "requestApiKeyName": "PRODUCE",
        "requestApiVersion": 9,
        "correlationId": 7,
        "clientId": "test",
    }
    partition = first["request"]["topic_data"][0]["partition_data"][0]
    assert partition["records"] == {"sizeInBytes": len(batch(b"x" * 100))}
    assert (first["response"], first["listener"], first["connection"]) == ("Send", "PLAINTEXT", "1")
    assert [each["clientAddress"] for each in (first, third)] == ["/10.1.2.3", "/unknown"]
    assert (first["principal"], first["securityProtocol"]) == ("User:ANONYMOUS", "PLAINTEXT")
    assert second["requestHeader"]["requestApiKeyName"] == "PRODUCE", "the short way is not taken"
    assert third["requestHeader"]["requestApiKeyName"] == "FETCH"
    assert third["totalTimeMs"] == pytest.approx(500, abs=1)
    switch(rig, "off")
    processor.ask(ApiKey.PRODUCE, 9, fields)
    processor.ask(ApiKey.PRODUCE, 9, fields)
    assert len(lines(rig)) == 3
    assert rig.fast_paths(), "and the fast path again"


def test_only_slow_requests(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    switch(rig, "slow", kproc_slow_request_log_ms="100")
    processor = rig.processors[0]
    processor.ask(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"v"))])]))
    for wait_ms in (50, 200):
        fields = fetch_fields([("t", NO_ID, [(0, 1)])], max_wait_ms=wait_ms)
        processor.send(ApiKey.FETCH, 12, fields)
        rig.settle()
        rig.advance_ms(wait_ms)
    assert [line["request"]["max_wait"] for line in lines(rig)] == [200]


def test_requests_that_close_their_connection_are_logged(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    switch(rig, "all")
    processor = rig.processors[0]
    processor.send_frames([b"\0\0\0\x05\0\x03\0\x09x"])
    processor.send(
        ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(7, batch(b"v"))])], acks=0), connection=2
    )
    processor.send(
        ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"v"))])], acks=0), connection=3
    )
    assert len(processor.answers()) == 3
    assert [line["response"] for line in lines(rig)] == ["CloseConnection", "CloseConnection", "NoOp"]


def test_every_handler_has_its_file(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    switch(rig, "all")
    for index in (0, 1):
        rig.processors[index].ask(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"v"))])]))
    assert [len(lines(rig, index)) for index in (0, 1)] == [1, 1]


class _Request:
    api_key, api_version, correlation_id = 3, 9, 1
    client_id_bytes, connection_id, throttle_ms = b"c", 5, 0
    principal = ANONYMOUS
    endpoint = ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092)
    client_address = "/127.0.0.1"
    begun_ns, shown = 0, {"text": "x" * 200}


def test_file_never_takes_more_than_twice_its_size(tmp_path: Path) -> None:
    path = tmp_path / "requests-handler-0.log"
    log = RequestLog(path, bytes_max=4096, slow_ms=0, now_ns=lambda: 1, wall_ms=lambda: 1)
    for _ in range(100):
        log.add(_Request(), "Send", 10)  # type: ignore[arg-type]
        log.flush()
    log.close()
    assert path.stat().st_size <= 4096
    assert (tmp_path / (path.name + ".1")).stat().st_size <= 4096
    assert len(list(tmp_path.iterdir())) == 2
    for line in path.read_bytes().splitlines():
        orjson.loads(line)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_file_that_is_not_regular_is_rejected(tmp_path: Path, kind: str) -> None:
    """open(2) of a FIFO without a reader blocked the start, and a switch of the log the Handler, for ever."""
    path = tmp_path / "requests-handler-0.log"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match="Not a regular file"):
        RequestLog(path, bytes_max=4096, slow_ms=0, now_ns=lambda: 1, wall_ms=lambda: 1)


def test_disk_that_refuses_costs_lines_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(tmp_path / "r.log", bytes_max=4096, slow_ms=0, now_ns=lambda: 1, wall_ms=lambda: 1)
    with open("/dev/full", "wb") as full:
        real, log._fd = log._fd, full.fileno()
        for _ in range(3):
            log.add(_Request(), "Send", 10)  # type: ignore[arg-type]
            log.flush()
        log._fd = real
    log.close()
    assert len([r for r in caplog.records if "lines are lost" in r.message]) == 1


def test_request_log_hides_passwords_and_tokens() -> None:
    token = {"auth_bytes": b"word"}
    assert hide_secrets(ApiKey.SASL_AUTHENTICATE, token) == {"auth_bytes": HIDDEN}
    row = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"word"}
    shown = hide_secrets(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, {"deletions": [], "upsertions": [row]})
    assert shown == {"deletions": [], "upsertions": [{**row, "salted_password": HIDDEN}]}


def test_request_log_names_principal_protocol_and_listener(start: Start) -> None:
    """A parked request is logged with the identity that it came with, although its client has left meanwhile."""
    rig = start(
        settings={
            "listeners": "INSIDE://127.0.0.1:9092",
            "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        }
    )
    rig.create_topic("t")
    switch(rig, "all")
    processor = rig.processors[0]
    processor.introduce("10.1.2.3", principal=Principal("User", "al"), mechanism="SCRAM-SHA-256")
    processor.send(ApiKey.API_VERSIONS, 0, {})
    processor.send(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=500))
    rig.settle()
    processor.disconnect()
    rig.settle()
    for line in lines(rig):
        assert (line["principal"], line["clientAddress"]) == ("User:al", "/10.1.2.3")
        assert (line["securityProtocol"], line["listener"]) == ("SASL_PLAINTEXT", "INSIDE")
    assert [line["response"] for line in lines(rig)] == ["Send", "NoOp"]


def test_request_above_16_kib_is_logged_as_its_size() -> None:
    """It is decoded in one step, while all other clients wait."""
    for count, is_shown in ((1_000, True), (10_000, False)):
        fields = {"groups": ["g"] * count}
        frame = codec.encode_request(ApiKey.DESCRIBE_GROUPS, 0, 1, "", fields)
        body = memoryview(frame)[4:]
        body = body[parse_request_header(body)[1] :]
        shown = loggable(ApiKey.DESCRIBE_GROUPS, 0, body)
        assert shown == (fields if is_shown else {"sizeInBytes": len(body)})


@pytest.mark.parametrize(
    ("version", "topic"), [(7, {"name": "t"}), (12, {"name": "t"}), (13, {"topic_id": "07" * 16})]
)
def test_large_produce_is_logged_with_its_topics(version: int, topic: dict[str, str]) -> None:
    fields = produce_fields([("t", b"\x07" * 16, [(0, batch(b"x" * 20_000))])])
    body = _body(ApiKey.PRODUCE, version, fields)
    assert loggable(ApiKey.PRODUCE, version, body) == {"sizeInBytes": len(body), "topic_data": [topic]}
    assert loggable(ApiKey.PRODUCE, version, body[:20]) is None
    assert loggable(ApiKey.PRODUCE, 99, body) == {"sizeInBytes": len(body)}
