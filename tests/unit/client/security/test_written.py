"""Settings as other clients write them: they are read back alike, and missing equivalents are errors."""

from __future__ import annotations

import pytest

from kproc.broker.config.sources import parse_properties
from kproc.broker.config.values import ConfigError
from kproc.client.security.librdkafka import librdkafka_settings
from kproc.client.security.settings import ClientLogin, ClientSecurity, Store, Tls, parse_client_security
from kproc.client.security.written import (
    aiokafka_arguments,
    as_properties,
    client_configuration,
    java_properties,
    kafka_python_arguments,
)
from tests.support.certificates import Certificates

STRANGE = 'pa"ss\\w,o=rd; $#'


@pytest.mark.parametrize(
    "login",
    [
        None,
        ClientLogin("PLAIN", "alice", STRANGE),
        ClientLogin("SCRAM-SHA-512", "al\\ice", STRANGE, is_delegation_token=True),
        ClientLogin("OAUTHBEARER", "alice", extensions=(("team", "red"),)),
        ClientLogin("OAUTHBEARER", token_file="/run/token"),
    ],
)
def test_javas_properties_are_read_back_alike(certificates: Certificates, login: ClientLogin | None) -> None:
    alice = certificates.authority.issue("CN=alice")
    store = str(certificates.write("alice.p12", alice.pkcs12(STRANGE)))
    tls = Tls(
        trust=Store(str(certificates.ca), "PEM"), key=Store(store, "PKCS12", STRANGE), checks_host=False
    )
    security = ClientSecurity(tls, login)
    text = as_properties(java_properties(security))
    assert parse_client_security(parse_properties(text)) == security


def test_type_of_a_store_is_found_for_java(certificates: Certificates) -> None:
    trust = certificates.write("trust.p12", certificates.authority.trust_store(STRANGE))
    pkcs12 = ClientSecurity(Tls(trust=Store(str(trust), password=STRANGE)))
    assert java_properties(pkcs12)["ssl.truststore.type"] == "PKCS12"
    pem = ClientSecurity(Tls(trust=Store(str(certificates.ca))))
    assert java_properties(pem)["ssl.truststore.type"] == "PEM"


def test_clients_in_python_get_their_arguments(certificates: Certificates) -> None:
    tls = Tls(trust=Store(str(certificates.ca)), key=Store(str(certificates.client)))
    security = ClientSecurity(tls, ClientLogin("SCRAM-SHA-256", "alice", STRANGE))
    login = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": STRANGE,
    }
    client = str(certificates.client)
    files = {"ssl_cafile": str(certificates.ca), "ssl_keyfile": client, "ssl_certfile": client}
    assert kafka_python_arguments(security) == login | files | {"ssl_check_hostname": True}
    found = aiokafka_arguments(security)
    assert found.pop("ssl_context").check_hostname
    assert found == login


def test_librdkafka_gets_certificates_of_every_store_as_pem(certificates: Certificates) -> None:
    trust = certificates.write("trust2.p12", certificates.authority.trust_store(STRANGE))
    key = certificates.write("key2.p12", certificates.authority.issue("CN=alice").pkcs12(STRANGE))
    tls = Tls(trust=Store(str(trust), password=STRANGE), key=Store(str(key), password=STRANGE))
    settings = librdkafka_settings(ClientSecurity(tls, ClientLogin("PLAIN", "alice", STRANGE)))
    assert settings["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE-----")
    assert "PRIVATE KEY" in settings["ssl.key.pem"]
    assert (settings["security.protocol"], settings["sasl.password"]) == ("SASL_SSL", STRANGE)
    assert librdkafka_settings(ClientSecurity()) == {}


def test_login_without_equivalent_setting_is_rejected(certificates: Certificates) -> None:
    token = ClientSecurity(None, ClientLogin("OAUTHBEARER", token="a.b.c"))
    with pytest.raises(ConfigError, match="from a file"):
        java_properties(token)
    with pytest.raises(ConfigError, match="cannot translate a login with a token"):
        kafka_python_arguments(token)
    trust = certificates.write("trust3.p12", certificates.authority.trust_store(STRANGE))
    with pytest.raises(ConfigError, match="PEM files"):
        kafka_python_arguments(ClientSecurity(Tls(trust=Store(str(trust), password=STRANGE))))
    delegated = ClientLogin("SCRAM-SHA-256", "alice", STRANGE, is_delegation_token=True)
    with pytest.raises(ConfigError, match="delegation tokens"):
        librdkafka_settings(ClientSecurity(None, delegated))


def test_client_configuration_of_each_kind_has_its_bootstrap() -> None:
    security = ClientSecurity(None, ClientLogin("PLAIN", "alice", "wonder"))
    names = {
        "confluent": ("bootstrap.servers", "sasl.username"),
        "java": ("bootstrap.servers", "sasl.jaas.config"),
        "spark": ("kafka.bootstrap.servers", "kafka.sasl.jaas.config"),
        "kafka-python": ("bootstrap_servers", "sasl_plain_username"),
        "aiokafka": ("bootstrap_servers", "sasl_plain_username"),
    }
    for kind, (bootstrap, login) in names.items():
        settings = client_configuration(kind, "127.0.0.1:9092", security)
        assert settings[bootstrap] == "127.0.0.1:9092", kind
        assert "alice" in settings[login], kind
    with pytest.raises(ValueError, match="'kcat' is none of confluent, java"):
        client_configuration("kcat", "127.0.0.1:9092", security)
