"""Kafka's own clients and tools log in: every mechanism, users by `kafka-configs`, sessions that are prolonged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.java_tools import (
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    PRODUCER_PERFORMANCE,
    TOPIC_COMMAND,
    ToolResult,
    run_tool,
)
from tests.support.kafka_jars import missing_reason
from tests.support.secured import MECHANISMS, SecuredBroker, java_login, secured
from tests.support.wait import stretched

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

SETTINGS = {"num.network.threads": 2, "num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}


# By hand without TLS, too: the session that is prolonged below is without.
@pytest.fixture(scope="module", params=[pytest.param("SASL_PLAINTEXT", marks=pytest.mark.slow), "SASL_SSL"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    is_encrypted = request.param == "SASL_SSL"
    certificates = Certificates(tmp_path_factory.mktemp("certificates")) if is_encrypted else None
    directory = tmp_path_factory.mktemp("secured")
    with secured(directory, settings=SETTINGS, certificates=certificates) as one:
        yield one


def write(path: Path, properties: Mapping[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def configs(broker: SecuredBroker, file: str, *arguments: str) -> ToolResult:
    server = ("--bootstrap-server", broker.bootstrap, "--command-config", file, "--entity-type", "users")
    return run_tool(CONFIG_COMMAND, *server, *arguments)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_sasl_login_produces_consumes_and_administers(
    broker: SecuredBroker, tmp_path: Path, mechanism: str
) -> None:
    file = write(tmp_path / "client", broker.java(mechanism))
    server = ("--bootstrap-server", broker.bootstrap)
    topic = f"java-{mechanism}"
    run_tool(TOPIC_COMMAND, *server, "--command-config", file, "--create", "--topic", topic)
    run_tool(
        PRODUCER_PERFORMANCE, *server, "--command-config", file,
        "--topic", topic, "--num-records", "100", "--record-size", "20", "--throughput", "-1",
    )  # fmt: skip
    consumed = run_tool(
        CONSOLE_CONSUMER, *server, "--command-config", file,
        "--topic", topic, "--group", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000",
    )  # fmt: skip
    assert len(consumed.lines) == 100


def test_kafka_configs_manages_scram_users(broker: SecuredBroker, tmp_path: Path) -> None:
    file = write(tmp_path / "alice", broker.java())
    word = "SCRAM-SHA-256=[iterations=8192,password=carols-word],SCRAM-SHA-512=[password=carols-word]"
    name = ("--entity-name", "carol")
    for change in word.split(",SCRAM-SHA-512"):  # A user once in a request, as Kafka's own broker demands.
        added = change if change.startswith("SCRAM") else f"SCRAM-SHA-512{change}"
        configs(broker, file, "--alter", *name, "--add-config", added)
    shown = configs(broker, file, "--describe", *name).stdout
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "SCRAM-SHA-512=iterations=4096" in shown
    own = {
        **broker.java("SCRAM-SHA-256"),
        "sasl.jaas.config": java_login("SCRAM-SHA-256", "carol", "carols-word"),
    }
    server = ("--bootstrap-server", broker.bootstrap)
    carol = write(tmp_path / "carol", own)
    run_tool(TOPIC_COMMAND, *server, "--command-config", carol, "--list")
    configs(broker, file, "--alter", *name, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in configs(broker, file, "--describe", *name).stdout
    refused = run_tool(TOPIC_COMMAND, *server, "--command-config", carol, "--list", check=False)
    assert (
        "Authentication failed during authentication due to invalid credentials"
        in refused.stdout + refused.stderr
    )


@pytest.mark.parametrize("mechanism", [pytest.param("PLAIN", marks=pytest.mark.slow), "SCRAM-SHA-256"])
def test_java_producer_reauthenticates(tmp_path: Path, mechanism: str) -> None:
    """Sessions of 2 s, a producer that goes on for 7 s, or longer ones on a busy machine: nothing is lost or fails."""
    session_ms = stretched(2_000)
    count = str(round(3.5 * session_ms / 1000 * 20))
    settings = {**SETTINGS, "connections.max.reauth.ms": session_ms}
    with secured(tmp_path / "data", settings=settings) as broker:
        file = write(tmp_path / "client", broker.java(mechanism))
        done = run_tool(
            PRODUCER_PERFORMANCE, "--bootstrap-server", broker.bootstrap, "--command-config", file,
            "--topic", "t", "--num-records", count, "--record-size", "20", "--throughput", "20",
        )  # fmt: skip
        assert f"{count} records sent" in done.stdout
        assert "Exception" not in done.stdout + done.stderr
        assert broker.counted("sessions_prolonged") >= 2
        assert broker.counted("sessions_killed") == 0
