"""Security that is easy to try: `kproc.Broker(tls=True, users=[...])`, fixtures for tests, `kproc dev --tls --user`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc import Broker
from kproc.broker.config.values import ConfigError
from kproc.client import AuthenticationFailed
from tests.support.broker import forked_broker
from tests.support.command_line import call_kproc, told
from tests.support.inner_pytest import passed, run_pytest
from tests.support.kafka_jars import missing_reason
from tests.support.secured import closes_within_a_handshake

pytestmark = pytest.mark.long

SECONDS = 120


@pytest.fixture(scope="module")
def broker(fork_server: None) -> Iterator[Broker]:
    with forked_broker()(tls=True, users=["alice", "bob"]) as running:
        running.create_topic("greetings")
        yield running


@pytest.mark.clients
@closes_within_a_handshake
@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python's
def test_client_config_of_every_library_connects(broker: Broker) -> None:
    from aiokafka import AIOKafkaProducer
    from confluent_kafka import Producer
    from kafka import KafkaConsumer, KafkaProducer

    producer = Producer(broker.client_config())
    producer.produce("greetings", b"confluent")
    assert producer.flush(SECONDS) == 0
    del producer
    python = KafkaProducer(**broker.client_config("kafka-python", user="bob"))
    python.send("greetings", b"kafka-python").get(SECONDS)
    python.close()

    async def send() -> None:
        producer = AIOKafkaProducer(**broker.client_config("aiokafka"))
        await producer.start()
        await producer.send_and_wait("greetings", b"aiokafka")
        await producer.stop()

    asyncio.run(send())
    consumer = KafkaConsumer(
        "greetings",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * SECONDS,
        **broker.client_config("kafka-python"),
    )
    found = {next(consumer).value for _ in range(3)}
    consumer.close()
    assert found == {b"confluent", b"kafka-python", b"aiokafka"}


def test_client_list_shows_principals(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("clients", "--bootstrap", broker.bootstrap, "--command-config", str(broker.client_file("bob")))
    # A client id of its own, because the broker can still list the connection that an earlier test has closed.
    rows = json.loads(call_kproc(capsys, *where, "--format", "json", "--client-id", "lister").stdout)
    ours = [row for row in rows if row["client_id"] == "lister"]
    assert [row[name] for row in ours for name in ("software_name", "principal", "mechanism")] == [
        "kproc", "User:bob", "PLAIN",
    ]  # fmt: skip
    table = call_kproc(capsys, *where, "--sort", "principal").stdout.splitlines()
    at = table[0].split().index("PRINCIPAL")
    assert "User:bob" in [row.split()[at] for row in table[1:]]


@pytest.mark.java
@pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or "")
def test_kafka_tools_accept_client_file(broker: Broker) -> None:
    from tests.support.kafka_jars import classpath, short_lived_jvm

    command = ["java", *short_lived_jvm(), "-cp", classpath(), "org.apache.kafka.tools.TopicCommand", "--list"]
    command += ["--bootstrap-server", broker.bootstrap, "--command-config", str(broker.client_file("bob"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS, check=False)
    assert "greetings" in done.stdout.split(), done.stdout + done.stderr


def test_kproc_commands_accept_client_file(
    broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ["--bootstrap", broker.bootstrap, "--command-config", str(broker.client_file())]
    for command in (
        ["topic", "list"],
        ["status"],
        ["clients"],
        ["config", "get"],
        ["ping"],
        ["latency", "--count", "1"],
        ["monitor", "--seconds", "0.1"],
        ["perf", "produce", "load", "--create", "--records", "1"],
        ["perf", "consume", "load", "--once"],
        ["group", "list"],
    ):
        done = call_kproc(capsys, *command, *where)
        assert (done.returncode, done.stderr) == (0, ""), command
    figures = [
        "tune",
        "--from",
        broker.bootstrap,
        "--seconds",
        "1",
        "--config",
        str(tmp_path / "kproc.toml"),
        "--yes",
    ]
    said = call_kproc(capsys, *figures, *where[2:]).stderr
    assert re.search(r"requests in \d+\.\d s", said), said  # Too few, but it has asked.
    alone = call_kproc(capsys, "topic", "list", "--bootstrap", broker.bootstrap)
    assert alone.returncode == 1
    assert "--command-config FILE" in alone.stderr


def test_consume_follow_ends_when_its_login_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker comes back with another password for the same user. A retry would be rejected for ever."""
    with forked_broker()(users=["alice"], transport="inline") as first:
        first.create_topic("greetings")
        address = first.bootstrap
        client_file = tmp_path / "alice.properties"
        client_file.write_bytes(first.client_file().read_bytes())
        client_file.chmod(0o600)
        where = ("--bootstrap", address, "--command-config", str(client_file))
        command = [sys.executable, "-m", "kproc", "consume", "greetings", "--follow", *where]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            told(call_kproc(capsys, "produce", "greetings", *where, stdin="before\n"))
            assert follower.stdout is not None
            assert follower.stdout.readline() == "before\n"
            first.stop()
            with forked_broker()(users=["alice"], transport="inline", port=int(address.rpartition(":")[2])):
                _, errors = follower.communicate(timeout=SECONDS)
        finally:
            follower.kill()
            follower.communicate()
    assert follower.returncode == 1
    away = f"kproc: cannot connect to {address}: connection refused; trying again until it is back\n"
    [rejection] = errors.removeprefix(away).splitlines()
    assert rejection.startswith(f"kproc: {address} refuses the login of alice by PLAIN: Authentication failed: ")


def test_client_file_can_be_a_pipe(
    broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As by `--command-config <(vault read ...)`. A pipe is empty, or hangs, when it is read again."""
    for command in (["topic", "list"], ["consume", "greetings"], ["produce", "greetings"]):
        reading, writing = os.pipe()
        os.write(writing, broker.client_file("bob").read_bytes())
        os.close(writing)
        try:
            where = ("--bootstrap", broker.bootstrap, "--command-config", f"/dev/fd/{reading}")
            done = call_kproc(capsys, *command, *where)
        finally:
            os.close(reading)
        assert (done.returncode, done.stderr) == (0, ""), command


def test_environment_names_the_file_too(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KPROC_COMMAND_CONFIG", str(broker.client_file("bob")))
    done = call_kproc(capsys, "topic", "list", "--bootstrap", broker.bootstrap)
    assert "greetings" in done.stdout


def test_embedded_users_have_own_passwords_in_private_files(broker: Broker) -> None:
    alice, bob = (broker.client_config("java", user=name) for name in ("alice", "bob"))
    assert alice["sasl.jaas.config"] != bob["sasl.jaas.config"]
    directory = broker.client_file().parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    with pytest.raises(ConfigError, match="there is no user carol; there are: alice, bob"):
        broker.client_config(user="carol")


def test_passwords_are_on_no_process_command_line(broker: Broker) -> None:
    passwords = [broker.client_config(user=name)["sasl.password"] for name in ("alice", "bob")]
    pids = [broker.pid, *(int(row["pid"]) for row in broker.processes)]
    lines = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    environments = b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in pids)
    assert not [word for word in passwords if word.encode() in lines + environments]


def test_external_secured_broker_with_client_settings(fork_server: None) -> None:
    line = 'x.PlainLoginModule required username="carol" password="s3cret-marker";'
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'x.PlainLoginModule required user_carol="s3cret-marker";'
        ),
    }
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": line}
    with forked_broker()(settings, client=client) as broker:
        broker.create_topic("mine")
        assert b"s3cret-marker" not in Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        assert broker.client_config()["sasl.username"] == "carol"
    wrong = {**client, "sasl.jaas.config": line.replace("s3cret-marker", "wrong")}
    with (
        forked_broker()(settings, client=wrong) as broker,
        pytest.raises(AuthenticationFailed, match="login of carol"),
    ):
        broker.create_topic("mine")


def test_pytest_plugin_starts_broker_with_users(tmp_path: Path) -> None:
    source = """
    import pytest
    from confluent_kafka import Producer

    @pytest.fixture(scope="session")
    def kproc_security():
        return {"tls": True, "users": ["alice"]}

    def test_it(kproc_broker, kproc_topic):
        settings = kproc_broker.client_config()
        assert settings["security.protocol"] == "SASL_SSL"
        producer = Producer(settings)
        producer.produce(kproc_topic, b"hello")
        assert producer.flush(10) == 0
        del producer
    """
    passed(run_pytest(tmp_path, source), 1)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a=b"])
def test_user_name_that_needs_quotes_is_rejected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = call_kproc(capsys, "dev", "--user", name, "--port", "0")
    assert done.returncode == 2
    assert "use only letters" in done.stderr


def test_users_are_a_list_of_different_names() -> None:
    with pytest.raises(TypeError, match=r"use users=\['alice'\]"):
        Broker(users="alice")
    with Broker(transport="inline", users=["alice", "alice"]) as broker:
        assert broker.client_file("alice").is_file()
