"""Our own client, and the commands that use it, against Apache Kafka with TLS and every mechanism of SASL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.client import AuthenticationFailed, Client, ClientError, ConnectionLost
from kproc.client.security.settings import parse_client_security
from kproc.wire.header import ApiKey
from tests.support.certificates import Certificates
from tests.support.command_line import call_kproc
from tests.support.kafka_jars import missing_reason
from tests.support.secured_kafka import SecuredKafka, login_lines, write_properties
from tests.support.status import connect
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Long enough for a login on a busy host, short enough to see the end of.
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with SecuredKafka(certificates, reauthentication_ms=SESSION_MS) as peer:
        yield peer


def connected(kafka: SecuredKafka, listener: str, properties: dict[str, str]) -> Client:
    return connect(kafka.at(listener), timeout_ms=20_000, security=parse_client_security(properties))


def cluster_id(client: Client) -> str:
    fields = {"include_cluster_authorized_operations": False}
    return str(client.call_latest(ApiKey.DESCRIBE_CLUSTER, fields)["cluster_id"])


def tls_lines(kafka: SecuredKafka, *, with_client: bool = False) -> dict[str, str]:
    return {"security.protocol": "SSL", **kafka.certificates.java(with_client=with_client)}


def sasl_lines(kafka: SecuredKafka, protocol: str, mechanism: str) -> dict[str, str]:
    return {**tls_lines(kafka), "security.protocol": protocol, **login_lines(mechanism)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_client_logs_in_by_every_mechanism(kafka: SecuredKafka, protocol: str, mechanism: str) -> None:
    with connected(kafka, protocol, sasl_lines(kafka, protocol, mechanism)) as client:
        assert cluster_id(client)


def test_client_encrypts_and_shows_its_certificate(kafka: SecuredKafka) -> None:
    with connected(kafka, "SSL", tls_lines(kafka)) as client:
        assert cluster_id(client)
    with connected(kafka, "MUTUAL", tls_lines(kafka, with_client=True)) as client:
        assert cluster_id(client)


def test_client_reauthenticates_before_session_end(kafka: SecuredKafka) -> None:
    with connected(kafka, "SASL_SSL", sasl_lines(kafka, "SASL_SSL", "SCRAM-SHA-256")) as client:
        for _ in range(2):
            wait_until(lambda: client.must_log_in_again, seconds=20, what="most of the session is over")
            assert cluster_id(client)
            assert not client.must_log_in_again


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_wrong_password_error_hides_the_password(kafka: SecuredKafka, mechanism: str) -> None:
    lines = sasl_lines(kafka, "SASL_SSL", mechanism) | login_lines(mechanism, "s3cret-marker")
    with pytest.raises(AuthenticationFailed, match=f"login of alice by {mechanism}") as caught:
        connected(kafka, "SASL_SSL", lines)
    assert "s3cret-marker" not in str(caught.value)


def test_protocol_mismatch_error_names_the_setting(kafka: SecuredKafka) -> None:
    with (
        pytest.raises(AuthenticationFailed, match=r"speaks TLS: security\.protocol is SSL or SASL_SSL"),
        connected(kafka, "SSL", {}) as client,
    ):
        client.api_versions()
    with (
        pytest.raises(ConnectionLost, match=r"wants TLS or a login, give --command-config"),
        connected(kafka, "SASL_PLAINTEXT", {}) as client,
    ):
        cluster_id(client)
    with pytest.raises(ClientError, match=r"TLS handshake|does not speak TLS"):
        connected(kafka, "SASL_PLAINTEXT", tls_lines(kafka))
    with pytest.raises(AuthenticationFailed, match=r"refuses to begin a SASL login: .*security\.protocol"):
        connected(kafka, "SSL", sasl_lines(kafka, "SASL_SSL", "PLAIN"))


def test_untrusted_certificate_is_reported(kafka: SecuredKafka) -> None:
    stranger = {"ssl.truststore.location": str(kafka.certificates.stranger_ca)}
    with pytest.raises(AuthenticationFailed, match=r"not trusted .*ssl\.truststore\.location"):
        connected(kafka, "SSL", tls_lines(kafka) | stranger)
    alone = {"ssl.keystore.location": str(kafka.certificates.stranger)}
    with (
        pytest.raises(AuthenticationFailed, match=r"wants another certificate .*ssl\.keystore\.location"),
        connected(kafka, "MUTUAL", tls_lines(kafka) | alone) as client,
    ):
        client.api_versions()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_commands_read_kafkas_command_config_file(
    kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], mechanism: str
) -> None:
    def run(*arguments: str, stdin: str = "") -> str:
        done = call_kproc(capsys, *arguments, *where, stdin=stdin)
        assert done.returncode == 0, done.stderr
        # Another broker does not count what consumers fetch.
        assert done.stderr in ("", "kproc: not shown: traffic out: only a kproc broker on this host counts it\n")
        return done.stdout

    config = write_properties(tmp_path / "client.properties", sasl_lines(kafka, "SASL_SSL", mechanism))
    where = ["--bootstrap", kafka.at("SASL_SSL"), "--command-config", str(config)]
    topic = f"secured-{mechanism.lower()}"
    run("topic", "create", topic)
    run("produce", topic, stdin="hello\n")
    assert run("consume", topic) == "hello\n"
    assert topic in run("topic", "list")


def test_command_without_security_file_prints_a_hint(
    kafka: SecuredKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = call_kproc(capsys, "topic", "list", "--bootstrap", kafka.at("SASL_SSL"))
    assert failed.returncode == 1
    assert "security.protocol" in failed.stderr
    assert failed.stderr.count("\n") == 1
