"""Settings of the running broker. No listener without a login is opened to other hosts, unless it was allowed."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.broker_config import TLS_SETTINGS, check_listeners_change, is_live
from kproc.broker.config import Config
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.settings import SETTINGS
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test
from tests.support.in_memory_controller import InMemoryController, changes, outcome

LOCAL = "PLAINTEXT://127.0.0.1:9092"
SET, DELETE, BROKER = 0, 1, 4
MAP = "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT"


def change(after: str, allowed: str = "") -> None:
    settings = {"listener.security.protocol.map": MAP, "kproc.allow.unauthenticated.network": allowed}
    check_listeners_change(Config.build(settings), LOCAL, after, frozenset())


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.0.2.7", "[::]"])
def test_unauthenticated_listener_beyond_loopback_is_rejected(host: str) -> None:
    with pytest.raises(KafkaError, match=r"EXTERNAL://.* would be open to other hosts"):
        change(f"{LOCAL},EXTERNAL://{host}:9093")
    change(f"{LOCAL},EXTERNAL://{host}:9093", "external")
    change(f"{LOCAL},EXTERNAL://{host}:9093", "*")


def test_listener_on_the_loopback_is_taken() -> None:
    change(f"{LOCAL},EXTERNAL://127.0.0.2:9093")


def test_exposed_listener_must_keep_client_certificates() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://:9093,OWN://127.0.0.1:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:SSL,OWN:SSL",
        "ssl.client.auth": "required",
    }
    cluster = InMemoryController(settings=settings)

    def change(listener: str, value: str) -> str | None:
        named = (f"listener.name.{listener}.ssl.client.auth", SET, value)
        [(_, message)] = outcome(cluster.alter(changes(BROKER, "1", named)))
        return message

    assert "ssl.client.auth=requested: EXTERNAL://:9093 would be open" in str(change("external", "requested"))
    assert change("own", "none") is None
    assert change("external", "required") is None


def test_settings_change_beside_unknown_stored_listeners() -> None:
    cluster = InMemoryController(settings={"listeners": LOCAL})
    cluster.image.broker_configs["1"] = {"listeners": "GONE://127.0.0.1:9099"}
    cluster.state._config_changes._check_tls = lambda *_: None

    def change(name: str, operation: int, value: str | None) -> tuple[int, str | None]:
        [row] = outcome(cluster.alter(changes(BROKER, "1", (name, operation, value))))
        return row

    assert change("log.retention.ms", SET, "5000") == (0, None)
    assert change("listeners", DELETE, None) == (0, None)


@in_one_test(
    ("name", "value"),
    [
        ("log.retention.ms", "0"),
        ("log.retention.ms", "9" * 5000),
        ("log.cleaner.dedupe.buffer.size", "9" * 5000),
        ("log.cleaner.io.max.bytes.per.second", "1e999"),
        ("max.connections.per.ip.overrides", "127.0.0.1:" + "9" * 5000),
        ("listeners", "PLAINTEXT://127.0.0.1:" + "9" * 5000),
    ],
)
def test_number_rejected_in_file_is_rejected_at_run_time(name: str, value: str) -> None:
    """log.retention.ms=0 deleted the sealed segments of all topics without an own retention.ms."""
    cluster = InMemoryController(settings={"listeners": LOCAL})
    [(code, message)] = outcome(cluster.alter(changes(BROKER, "1", (name, SET, value))))
    assert code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG), (code, message)
    assert "1" not in cluster.image.broker_configs


def test_every_dynamic_setting_can_be_changed_at_run_time() -> None:
    names = {f"listener.name.plaintext.{name}" if name in TLS_SETTINGS else name for name in SETTINGS}
    rows = {name: SETTINGS[split_listener_key(name)[1]] for name in names}
    assert [name for name, row in rows.items() if row.is_dynamic and not is_live(name)] == []
