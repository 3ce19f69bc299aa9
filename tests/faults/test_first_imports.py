"""Nothing is imported for the first time while a broker serves: an import fails when no descriptor is free."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from kproc.wire import codec
from tests.fuzz.attack import SETTINGS, Attack
from tests.support.broker import ServedBroker
from tests.support.certificates import Certificates
from tests.support.raw import RawClient
from tests.support.secured import MECHANISMS, secured
from tests.support.status import health, scraped, status
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.usefixtures("real_start"),
]

MARK = "import time:"


def imported(broker: ServedBroker, since: int) -> list[str]:
    """The modules that any role has imported since that place of the log."""
    lines = broker.log()[since:].splitlines()
    return sorted({line.rpartition("|")[2].strip() for line in lines if line.startswith(MARK)})


def test_every_api_imports_no_module(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPROFILEIMPORTTIME has every role write a line for each import. Before, there were 510 of them."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    settings = {**SETTINGS, "kproc.metrics.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        assert MARK in broker.log(), "imports are shown"
        since = len(broker.log())
        attack = Attack(broker, 5)
        try:
            attack.run(800)
        finally:
            attack.close()
        wait_until(lambda: scraped(broker.metrics), what="a scrape")
        health(broker.metrics, "live")
        status(broker.bootstrap)
        assert imported(broker, since) == []
        assert len(attack.answered) > 40


def test_requests_of_every_version_import_no_module(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version of each API once, with the values that its schema has by default."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        since = len(broker.log())
        with RawClient(broker.bootstrap) as client:
            software = {"client_software_name": "t", "client_software_version": "1"}
            served = client.call(18, 3, software)["api_keys"]
        asked = 0
        for row in served:
            for version in range(row["min_version"], row["max_version"] + 1):
                if version not in codec.supported_versions(row["api_key"]):
                    continue
                with RawClient(broker.bootstrap, timeout=0.5) as client:
                    client.send(row["api_key"], version, {})
                    # An answer, the end of the connection, or nothing, because it waits: it was decoded.
                    with suppress(TimeoutError, ConnectionResetError):
                        client.socket.recv(4)
                asked += 1
        with RawClient(broker.bootstrap) as client:
            client.call(18, 0, {})
        assert imported(broker, since) == []
        assert asked > 200


def test_logins_over_tls_import_no_module(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first client of a listener with TLS once had its Processor import ssl and all of ours that needs it."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with secured(tmp_path / "data", certificates=Certificates(tmp_path)) as broker:
        since = broker.log().index("kproc ready")  # Before the first login, which makes the users.
        for mechanism in MECHANISMS:
            consumer = confluent_kafka.Consumer({**broker.confluent(mechanism), "group.id": "g"})
            consumer.list_topics(timeout=PATIENCE_SECONDS)
        assert imported(broker, since) == []
