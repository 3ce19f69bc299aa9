"""Unmodified clients log in by every mechanism, produce and consume in a group. A failed login has a clear error."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support.adapters.secured_round_trip import LIBRARIES, Access
from tests.support.certificates import Certificates
from tests.support.secured import MECHANISMS, SecuredBroker, closes_within_a_handshake, secured
from tests.support.wait import wait_until

pytestmark = pytest.mark.clients

SECONDS = 60.0


# By hand without TLS, too: there is nothing in it that is not behind TLS.
@pytest.fixture(scope="module", params=[pytest.param("SASL_PLAINTEXT", marks=pytest.mark.slow), "SASL_SSL"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    is_encrypted = request.param == "SASL_SSL"
    certificates = Certificates(tmp_path_factory.mktemp("certificates")) if is_encrypted else None
    settings = {"num.network.threads": 2, "num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}
    directory = tmp_path_factory.mktemp("secured")
    with secured(directory, settings=settings, certificates=certificates) as one:
        yield one


@closes_within_a_handshake
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_client_logs_in_produces_and_consumes_in_a_group(
    broker: SecuredBroker, library: str, mechanism: str
) -> None:
    pytest.importorskip(library)
    there = broker.confluent()
    access = Access(
        broker.bootstrap, there["security.protocol"], there.get("ssl.ca.location"), mechanism=mechanism
    )
    topic = f"{library}-{mechanism}"
    assert LIBRARIES[library](access, topic, [b"value"]) == [b"value"]


@pytest.mark.parametrize("mechanism", [each for each in MECHANISMS if each != "OAUTHBEARER"])
def test_wrong_password_is_reported_as_authentication_error(broker: SecuredBroker, mechanism: str) -> None:
    errors: list[str] = []
    settings = broker.confluent(mechanism) | {
        "sasl.password": "wrong",
        "error_cb": lambda error: errors.append(str(error)),
    }
    producer = Producer(settings)

    def is_told() -> bool:
        producer.poll(0.1)
        return any("_AUTHENTICATION" in error and "Authentication failed" in error for error in errors)

    wait_until(is_told, seconds=SECONDS, what="librdkafka hears why")
    assert "wrong" not in broker.log().replace("wrong password, or", "")


def test_plaintext_client_at_sasl_listener_is_rejected(broker: SecuredBroker) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=2)


# Debian 12's, which sends the client's nonce twice; another kcat may have a newer librdkafka.
OLD_LIBRDKAFKA = "librdkafka 2.0.2"


def metadata_by_kcat(broker: SecuredBroker) -> subprocess.CompletedProcess[str]:
    settings = [f"-X{name}={value}" for name, value in broker.confluent("SCRAM-SHA-256").items()]
    return subprocess.run(
        ["kcat", "-L", "-m", "5", "-b", broker.bootstrap, *settings],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("is_lenient", [False, True], ids=["strict", "lenient"])
def test_old_librdkafka_scram_needs_lenient_setting(
    tmp_path: Path, *, is_lenient: bool
) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False)
    if OLD_LIBRDKAFKA not in version.stdout + version.stderr:
        pytest.skip(f"kcat has another librdkafka than {OLD_LIBRDKAFKA}")
    settings = {"kproc.sasl.scram.lenient.nonce": str(is_lenient).lower()}
    with secured(tmp_path / "data", settings=settings) as broker:
        asked = metadata_by_kcat(broker)
        assert (asked.returncode == 0) is is_lenient, asked.stderr
        assert ("kproc.sasl.scram.lenient.nonce=true lets it pass" in broker.log()) is not is_lenient
