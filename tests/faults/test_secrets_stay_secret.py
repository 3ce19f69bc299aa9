"""A broker with marked secrets, used in every way: the marks are in nothing that it writes, shows or is started with.

What has to hold a secret is named in `KEEPERS`; everything else is searched, as text, as base64 and as hex.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kproc.broker.config.authorizer_settings import STANDARD_AUTHORIZER
from kproc.client import AuthenticationFailed, Client
from kproc.client.security.settings import parse_client_security
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker, run_kproc
from tests.support.certificates import Certificates
from tests.support.command_line import call_kproc
from tests.support.secured_kafka import write_properties
from tests.support.status import connect
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.transports("process")]
PLAIN_PASSWORD = "mark-of-plain-Zq81"
SCRAM_PASSWORD = "mark-of-scram-Xv52"
STORE_PASSWORD = "mark-of-store-Lw93"
NEXT_STORE_PASSWORD = "mark-of-next-store-Pd27"
TOKEN_KEY = "mark-of-token-key-Bn64"
WRONG_PASSWORD = "mark-of-wrong-Hk35"
MARKS = (PLAIN_PASSWORD, SCRAM_PASSWORD, STORE_PASSWORD, NEXT_STORE_PASSWORD, TOKEN_KEY, WRONG_PASSWORD)
# A password that was changed at run time is a record of the metadata, as in Kafka; nobody else reads that directory.
KEEPERS = ("__cluster_metadata-0",)
LISTENER = "listener.name.sasl_ssl"
SECONDS = 60


def forms_of(mark: str) -> Iterator[bytes]:
    """What a mark looks like where somebody thought that it is hidden."""
    data = mark.encode()
    yield data
    yield data.hex().encode()
    for shift in range(
        3
    ):  # Inside a longer text base64 has three forms; the ends depend on what is beside it.
        yield base64.b64encode(b"\0" * shift + data)[4 if shift else 0 : -4]


@dataclass
class Scene:
    """The broker, and everything that was heard of it."""

    broker: ServedBroker
    client_file: Path
    certificates: Certificates
    capsys: pytest.CaptureFixture[str]
    heard: dict[str, bytes] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """A command whose words are kept."""
        where = ["--bootstrap", self.broker.bootstrap, "--command-config", str(self.client_file)]
        done = call_kproc(self.capsys, *arguments, *where, stdin=stdin)
        self.heard[" ".join(arguments)] = (done.stdout + done.stderr).encode()
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def keep(self, what: str, text: object) -> None:
        self.heard[what] = text if isinstance(text, bytes) else str(text).encode()

    def found(self) -> list[str]:
        """Where a mark is."""
        return [
            f"{mark} in {what}"
            for what, data in self.heard.items()
            for mark in MARKS
            if any(form in data for form in forms_of(mark))
        ]

    def librdkafka(self, **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PLAIN_PASSWORD,
            **self.certificates.librdkafka(),
            **more,
        }


@pytest.fixture
def scene(tmp_path: Path, capsys: pytest.CaptureFixture[str], real_start: None) -> Iterator[Scene]:
    certificates = Certificates(tmp_path)
    store = certificates.write("server.p12", certificates.issue_server().pkcs12(STORE_PASSWORD))
    settings = write_properties(
        tmp_path / "server.properties",
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": STORE_PASSWORD,
            f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"{LISTENER}.plain.sasl.jaas.config": f'x.PlainLoginModule required user_alice="{PLAIN_PASSWORD}";',
            "delegation.token.secret.key": TOKEN_KEY,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:alice",
            "kproc.request.log": "all",
            "kproc.metrics.listener": "127.0.0.1:0",
        },
    )
    client_file = write_properties(
        tmp_path / "client.properties",
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(certificates.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.PlainLoginModule required username="alice" password="{PLAIN_PASSWORD}";',
        },
    )
    broker = ServedBroker(
        tmp_path / "data",
        settings={"listeners": "SASL_SSL://127.0.0.1:0"},
        arguments=["--config", str(settings)],
    )
    with broker:
        yield Scene(broker, client_file, certificates, capsys)


def use(scene: Scene) -> None:
    """Records, groups, settings, users, tokens, quotas, by commands and clients; the loggers say all they can."""
    scene.run("config", "set", "kproc=DEBUG", "--loggers")
    scene.run("topic", "create", "t", "--partitions", "2")
    scene.run("produce", "t", stdin="hello\n")
    scene.run("consume", "t", "--group", "g")
    for command in (
        "topic list",
        "topic describe t",
        "config get",
        "config get --all",
        "status --format json",
        "status --apis",
        "clients",
        "group list",
        "group describe g",
        "txn list",
        "ping",
        "acl list",
        "scale --processors 2",
        "rebalance",
    ):
        scene.run(*command.split())
    admin = AdminClient(scene.librdkafka())
    make_scram_user(admin)
    producer = Producer(
        scene.librdkafka(**{"sasl.mechanism": "SCRAM-SHA-256", "sasl.password": SCRAM_PASSWORD})
    )
    producer.list_topics(timeout=SECONDS)
    del producer
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(scene.certificates.ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
    }
    wrong = parse_client_security({**login, "sasl.password": WRONG_PASSWORD})
    with pytest.raises(AuthenticationFailed) as refused:
        connect(scene.broker.bootstrap, security=wrong)
    scene.keep("a client with a wrong password", refused.value)
    security = parse_client_security({**login, "sasl.password": PLAIN_PASSWORD})
    with connect(scene.broker.bootstrap, security=security) as client:
        change_key_store(scene, client)
        fields = {"owner_principal_type": None, "owner_principal_name": None, "renewers": []}
        token = client.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**fields, "max_lifetime": -1})
        assert token["error_code"] == 0, token


def make_scram_user(admin: AdminClient) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wish = UserScramCredentialUpsertion("alice", info, SCRAM_PASSWORD.encode())
    for result in admin.alter_user_scram_credentials([wish]).values():
        result.result(SECONDS)
    for result in admin.describe_user_scram_credentials(["alice"]).values():
        result.result(SECONDS)


def change_key_store(scene: Scene, client: Client) -> None:
    """Another key store with another password, at run time; then a password that opens nothing. Taken or refused, both
    are secrets."""
    issued = scene.certificates.issue_server()
    store = scene.certificates.write("next.p12", issued.pkcs12(NEXT_STORE_PASSWORD))
    for password in (NEXT_STORE_PASSWORD, WRONG_PASSWORD):
        values = {"ssl.keystore.location": str(store), "ssl.keystore.password": password}
        configs = [
            {"name": f"{LISTENER}.{name}", "config_operation": 0, "value": value}
            for name, value in values.items()
        ]
        resource = {"resource_type": 4, "resource_name": "1", "configs": configs}
        fields = {"resources": [resource], "validate_only": False}
        [answer] = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"]
        assert password == NEXT_STORE_PASSWORD or answer["error_code"]
        scene.keep(f"the answer to a change of the key store to {MARKS.index(password)}", answer)
    asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    fields = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
    scene.keep("DescribeConfigs", json.dumps(client.call(ApiKey.DESCRIBE_CONFIGS, 4, fields)))


def listen(scene: Scene, tmp_path: Path) -> None:
    """All that the broker has written and shows."""
    broker = scene.broker
    archive = tmp_path / "doctor.tar.gz"
    scene.run("doctor", "--output", str(archive))
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            extracted = packed.extractfile(member)
            assert extracted is not None
            scene.keep(f"doctor: {member.name}", extracted.read())
    for pid in [broker.pid, *(int(row["pid"]) for row in broker.processes)]:
        for name in ("cmdline", "environ"):
            scene.keep(f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_bytes())
    dumped = call_kproc(scene.capsys, "dump-log", "--records", broker.data)
    scene.keep("dump-log", dumped.stdout + dumped.stderr)
    scene.keep("the broker's log", broker.log())
    for path in Path(broker.data).rglob("*"):
        if path.is_file() and not any(keeper in path.parts for keeper in KEEPERS):
            scene.keep(f"file {path.name} of {path.parent.name}", path.read_bytes())


def test_no_secret_is_written_or_shown_and_files_are_private(scene: Scene, tmp_path: Path) -> None:
    use(scene)
    settings = tmp_path / "server.properties"
    settings.write_text(settings.read_text().replace(PLAIN_PASSWORD, WRONG_PASSWORD))
    os.kill(scene.broker.pid, signal.SIGHUP)
    wait_until(lambda: "reload: " in scene.broker.log(), seconds=SECONDS)
    listen(scene, tmp_path)
    assert len(scene.heard["the broker's log"]) > 1000
    assert b"ApiVersions" in scene.heard["dump-log"] or b"hello" in scene.heard["dump-log"]
    assert scene.found() == []
    metadata = b"".join(path.read_bytes() for path in Path(scene.broker.data).glob("__cluster_metadata-0/*"))
    assert SCRAM_PASSWORD.encode() not in metadata
    # The files that may hold a secret are the broker's alone.
    files = [Path(scene.broker.data), *Path(scene.broker.data).rglob("*")]
    assert [path for path in files if path.stat().st_mode & 0o007] == []


@pytest.mark.parametrize("shift", range(3))
def test_search_finds_a_mark_in_each_form(shift: int) -> None:
    data = b"#" * shift + f"{PLAIN_PASSWORD}##".encode()
    for text in (data, base64.b64encode(data), data.hex().encode()):
        assert any(form in text for form in forms_of(PLAIN_PASSWORD))
    assert not any(form in base64.b64encode(b"another text") for form in forms_of(PLAIN_PASSWORD))


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.keystore.password", STORE_PASSWORD),
        (f"{LISTENER}.plain.sasl.jaas.config", f"x.PlainLoginModule required user_alice={STORE_PASSWORD}"),
        (
            f"{LISTENER}.plain.sasl.jaas.config",
            f'x.PlainLoginModule required user_alice="{STORE_PASSWORD}" "',
        ),
        ("listener.name.sasl_ssl.ssl.keystore.key", STORE_PASSWORD),
    ],
)
def test_failed_start_does_not_print_the_secret(tmp_path: Path, name: str, value: str) -> None:
    certificates = Certificates(tmp_path)
    store = certificates.write("server.p12", certificates.issue_server().pkcs12("another"))
    lines = {
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PKCS12",
        f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN",
        f"{LISTENER}.plain.sasl.jaas.config": 'x.PlainLoginModule required user_alice="x";',
        name: value,
    }
    settings = write_properties(tmp_path / "server.properties", lines)
    arguments = ["--config", str(settings), "--data", str(tmp_path / "data")]
    done = run_kproc("serve", "--listeners", "SASL_SSL://127.0.0.1:0", *arguments, seconds=SECONDS)
    assert done.returncode in (1, 2)
    assert done.stderr
    assert STORE_PASSWORD not in done.stdout + done.stderr


def test_clients_errors_do_not_show_a_secret(scene: Scene) -> None:
    producer = Producer(scene.librdkafka(**{"transactional.id": "x", "sasl.password": WRONG_PASSWORD}))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(5)
    del producer
    assert WRONG_PASSWORD not in str(caught.value)
    assert WRONG_PASSWORD not in scene.broker.log()
