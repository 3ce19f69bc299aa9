"""Keys and certificates that change on the running broker: no connection breaks, and an invalid file changes
nothing.
"""

from __future__ import annotations

import datetime
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.broker import ServedBroker
from tests.support.certificates import LOCAL_NAMES, Certificates
from tests.support.raw import address_of
from tests.support.status import status
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.faults]
LOCATION = "listener.name.ssl.ssl.keystore.location"


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextmanager
def served(files: Certificates, *arguments: str, **settings: Any) -> Iterator[ServedBroker]:
    """A broker with a listener SSL and one without TLS, and two Processors."""
    given = {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "num.network.threads": 2,
        "ssl.keystore.location": files.server,
    }
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    with ServedBroker(files.directory / "data", settings=given, arguments=arguments) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _close_what_is_open() -> Iterator[None]:
    yield
    for each in Connection.open:
        each.close()
    Connection.open.clear()


class Connection:
    """A TLS connection that stays open until the test's end."""

    open: ClassVar[list[Connection]] = []

    def __init__(self, files: Certificates, broker: ServedBroker, listener: str = "SSL") -> None:
        context = ssl.create_default_context(cafile=str(files.ca))
        raw = socket.create_connection(address_of(broker.listeners[listener]["bound"]), timeout=PATIENCE_SECONDS)
        self._sock = context.wrap_socket(raw, server_hostname="localhost")
        self.open.append(self)

    def is_served(self) -> bool:
        """Return True if an ApiVersions request is answered."""
        body = b"\0\x12\0\0\0\0\0\1\0\4test"
        self._sock.sendall(len(body).to_bytes(4, "big") + body)
        size = int.from_bytes(self._sock.recv(4), "big")
        while size > 0:
            size -= len(self._sock.recv(size))
        return True

    def certificate(self) -> bytes | None:
        return self._sock.getpeercert(binary_form=True)

    def close(self) -> None:
        self._sock.close()


def shown_to_all(files: Certificates, broker: ServedBroker, der: bytes) -> Callable[[], bool]:
    """Return True if as many connections as there are Processors, and more, see this certificate."""

    def is_so() -> bool:
        connections = [Connection(files, broker) for _ in range(4)]
        seen = {each.certificate() for each in connections}
        for each in connections:
            each.close()
        return seen == {der}

    return is_so


def new_server(files: Certificates, name: str, **options: Any) -> tuple[Path, bytes]:
    """Another key of the broker's: its file, and its certificate."""
    issued = files.authority.issue(options.get("subject", "CN=localhost"), hosts=LOCAL_NAMES)
    from cryptography.hazmat.primitives.serialization import Encoding

    return files.write(name, issued.pem()), issued.certificate.public_bytes(Encoding.DER)


def test_sighup_reloads_certificate_and_keeps_connections(files: Certificates) -> None:
    with served(files) as broker:
        old = [Connection(files, broker) for _ in range(4)]
        before = old[0].certificate()
        _, der = new_server(files, files.server.name)
        broker.send_signal(signal.SIGHUP)
        wait_until(shown_to_all(files, broker, der), seconds=15, what="the new certificate")
        assert all(each.is_served() for each in old)
        assert old[0].certificate() == before

        files.write(files.server.name, b"nonsense")
        broker.send_signal(signal.SIGHUP)
        wait_until(
            lambda: "is neither PEM nor PKCS12; the certificates in use stay" in broker.log(),
            what="the refusal",
        )
        assert shown_to_all(files, broker, der)()

        new_server(files, files.server.name, subject="CN=elsewhere")
        broker.send_signal(signal.SIGHUP)
        wait_until(lambda: "to CN=elsewhere (ssl.allow.dn.changes)" in broker.log(), what="the refusal")
        assert shown_to_all(files, broker, der)()
        assert broker.log().count("to CN=elsewhere") == 1, "told once, not by every Processor"
        assert all(each.is_served() for each in old)


def alter(broker: ServedBroker, **settings: str | None) -> None:
    """IncrementalAlterConfigs of this broker, by Kafka's names with underscores."""
    admin = AdminClient({"bootstrap.servers": broker.listeners["PLAINTEXT"]["bound"]})
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_SECONDS)


def described(broker: ServedBroker, name: str) -> Any:
    admin = AdminClient({"bootstrap.servers": broker.listeners["PLAINTEXT"]["bound"]})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    return future.result(PATIENCE_SECONDS)[name]


def test_status_shows_the_end_of_the_certificate_in_use(files: Certificates) -> None:
    """A file that was replaced is not in use before SIGHUP, or before its setting is set again."""
    with served(files) as broker:
        plain = broker.listeners["PLAINTEXT"]["bound"]

        def shown_days() -> int:
            ends_s = status(plain)["certificates"]["SSL"]["expires_ms"] / 1000
            left = datetime.datetime.fromtimestamp(ends_s, datetime.UTC) - datetime.datetime.now(datetime.UTC)
            return left.days

        assert shown_days() in (364, 365)
        files.write(files.server.name, files.authority.issue("CN=localhost", hosts=LOCAL_NAMES, days=20).pem())
        assert shown_days() > 300
        broker.send_signal(signal.SIGHUP)
        wait_until(lambda: shown_days() < 21, what="the certificate is in use")
        problem = "the certificate chain of listener SSL (CN=localhost) ends in 19 days, at "
        assert status(plain)["problem"].startswith(problem)
        wait_until(lambda: problem in broker.log(), what="the controller logs it")
        path = files.write("new.pem", files.authority.issue("CN=localhost", hosts=LOCAL_NAMES, days=60).pem())
        alter(broker, **{LOCATION.replace(".", "_"): str(path)})
        wait_until(lambda: 50 < shown_days() < 61, what="the new file is in use")
        assert status(plain)["problem"] is None


def test_alter_configs_sets_keystore_and_hides_its_password(files: Certificates) -> None:
    issued = files.issue_server()
    store = files.write("new.p12", issued.pkcs12("pass-word-1"))
    from cryptography.hazmat.primitives.serialization import Encoding

    der = issued.certificate.public_bytes(Encoding.DER)
    with served(files) as broker:
        old = Connection(files, broker)
        password = "listener_name_ssl_ssl_keystore_password"
        with pytest.raises(KafkaException, match="its password is wrong"):
            alter(broker, **{LOCATION.replace(".", "_"): str(store), password: "no"})
        alter(broker, **{LOCATION.replace(".", "_"): str(store), password: "pass-word-1"})
        wait_until(shown_to_all(files, broker, der), seconds=15, what="the new certificate")
        assert old.is_served()
        row = described(broker, "listener.name.ssl.ssl.keystore.password")
        assert (row.is_sensitive, row.value) == (True, None)
        assert described(broker, LOCATION).value == str(store)

        again = files.issue_server()
        files.write("new.p12", again.pkcs12("pass-word-1"))
        alter(broker, **{LOCATION.replace(".", "_"): str(store)})  # As in Kafka: read again.
        der = again.certificate.public_bytes(Encoding.DER)
        wait_until(shown_to_all(files, broker, der), seconds=15, what="the file's new content")
        path, _ = new_server(files, "elsewhere.pem", subject="CN=elsewhere")
        with pytest.raises(KafkaException, match=r"CN=elsewhere \(ssl.allow.dn.changes\)"):
            alter(broker, **{LOCATION.replace(".", "_"): str(path), password: None})
        with pytest.raises(KafkaException, match="only per-listener using the listener prefix"):
            alter(broker, ssl_keystore_location=str(store))
        assert shown_to_all(files, broker, der)()
        assert "pass-word-1" not in broker.log()
    with ServedBroker(files.directory / "data", settings=_same(files)) as broker:
        assert shown_to_all(files, broker, der)(), "what was set on the running broker holds after a restart"


def _same(files: Certificates) -> dict[str, Any]:
    return {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": files.server}


def test_tls_listener_is_added_and_removed_at_run_time(files: Certificates) -> None:
    with served(files, listener_security_protocol_map="SSL:SSL,PLAINTEXT:PLAINTEXT,NEW:SSL") as broker:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        others = ",".join(f"{name}://{broker.listeners[name]['bound']}" for name in ("SSL", "PLAINTEXT"))
        missing = files.directory / "missing.pem"
        with pytest.raises(KafkaException, match="No such file"):
            alter(
                broker,
                listeners=f"{others},NEW://127.0.0.1:{port}",
                listener_name_new_ssl_keystore_location=str(missing),
            )
        path, der = new_server(files, "new.pem")
        alter(
            broker,
            listeners=f"{others},NEW://127.0.0.1:{port}",
            listener_name_new_ssl_keystore_location=str(path),
        )
        context = ssl.create_default_context(cafile=str(files.ca))

        def is_open() -> bool:
            try:
                raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
            except ConnectionRefusedError:
                return False
            with context.wrap_socket(raw, server_hostname="localhost") as sock:
                return sock.getpeercert(binary_form=True) == der

        wait_until(is_open, seconds=20, what="the new listener")
        alter(broker, listeners=others)
        assert Connection(files, broker).is_served()


@pytest.mark.transports("thread")
def test_sighup_in_one_process_shows_new_certificate(files: Certificates, transport: str) -> None:
    given = {"listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", "ssl.keystore.location": files.server}
    with ServedBroker(files.directory / "data", settings=given, transport=transport) as broker:
        broker.send_signal(signal.SIGHUP)
        wait_until(lambda: status(broker.listeners["PLAINTEXT"]["bound"])["last_reload"], what="the first reload")
        assert status(broker.listeners["PLAINTEXT"]["bound"])["last_reload"]["problem"] is None
        new_server(files, files.server.name, subject="CN=renewed")
        broker.send_signal(signal.SIGHUP)
        problem = "with kproc.transport=thread, new certificates need a restart"
        wait_until(
            lambda: status(broker.listeners["PLAINTEXT"]["bound"])["last_reload"]["problem"] == problem,
            what="the status shows the new certificate",
        )


def test_sighup_loads_keystore_and_password_from_file(files: Certificates, tmp_path: Path) -> None:
    issued = files.issue_server()
    store = files.write("new.p12", issued.pkcs12("pass-word-2"))
    from cryptography.hazmat.primitives.serialization import Encoding

    config = tmp_path / "server.properties"
    config.write_text("")
    with served(files, "--config", str(config)) as broker:
        config.write_text(f"{LOCATION}={store}\nlistener.name.ssl.ssl.keystore.password=pass-word-2\n")
        broker.send_signal(signal.SIGHUP)
        der = issued.certificate.public_bytes(Encoding.DER)
        wait_until(shown_to_all(files, broker, der), seconds=15, what="the new certificate")
        # The Processors have the certificate before the supervisor logs what it applied.
        applied = "listener.name.ssl.ssl.keystore.password=[hidden]"
        wait_until(lambda: applied in broker.log(), what="the log says what was applied")
        assert "pass-word-2" not in broker.log()
