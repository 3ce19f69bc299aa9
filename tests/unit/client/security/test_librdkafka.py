"""librdkafka's names of security settings."""

from __future__ import annotations

from kproc.client.security.settings import ClientLogin, Store, parse_client_security

SECRET = "s3cret-marker"


def test_file_of_librdkafka_is_read() -> None:
    security = parse_client_security(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": SECRET,
            "ssl.ca.location": "/etc/ca.pem",
            "ssl.key.location": "/etc/key.pem",
            "ssl.certificate.location": "/etc/certificate.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert security.login == ClientLogin("PLAIN", "alice", SECRET)
    assert security.tls is not None
    assert security.tls.trust.location == "/etc/ca.pem"
    assert (security.tls.key.location, security.tls.chain.location) == (
        "/etc/key.pem",
        "/etc/certificate.pem",
    )
    assert not security.tls.checks_host


def test_librdkafka_password_keeps_surrounding_blanks() -> None:
    security = parse_client_security(
        {
            "security.protocol": " SASL_SSL ",
            "sasl.mechanism": "PLAIN ",
            "sasl.username": " alice ",
            "sasl.password": f" {SECRET} ",
            "ssl.truststore.location": "/etc/ca.p12 ",
            "ssl.truststore.password": f"{SECRET} ",
        }
    )
    assert security.login == ClientLogin("PLAIN", "alice", f" {SECRET} ")
    assert security.tls is not None
    assert security.tls.trust == Store("/etc/ca.p12", "", SECRET)
