"""A client's security settings: Kafka's names and librdkafka's, what is refused, and that no message shows a secret."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kproc.broker.config.values import ConfigError
from kproc.client.security.settings import (
    PLAINTEXT,
    ClientLogin,
    ClientSecurity,
    Store,
    parse_client_security,
    read_client_config,
)
from tests.support.cases import in_one_test

SECRET = "s3cret-marker"
SCRAM_LINE = (
    f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'
)


def test_nothing_said_is_plaintext() -> None:
    assert parse_client_security({}) == PLAINTEXT
    assert parse_client_security({"bootstrap.servers": "h:1", "acks": "all"}) == PLAINTEXT
    assert PLAINTEXT.protocol == "PLAINTEXT"


def test_file_of_kafkas_tools_is_read() -> None:
    security = parse_client_security(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM_LINE,
            "ssl.truststore.location": "/etc/ca.p12",
            "ssl.truststore.password": SECRET,
            "ssl.truststore.type": "PKCS12",
        }
    )
    assert security.protocol == "SASL_SSL"
    assert security.login == ClientLogin("SCRAM-SHA-512", "alice", SECRET)
    assert security.tls is not None
    assert security.tls.trust == Store("/etc/ca.p12", "PKCS12", SECRET)
    assert security.tls.checks_host


def test_tokens_come_as_text_from_a_file_or_unsigned() -> None:
    common = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    given = parse_client_security(common | {"sasl.oauthbearer.token": SECRET})
    assert given.login == ClientLogin("OAUTHBEARER", token=SECRET)
    url = "file:///run/secrets/token"
    filed = parse_client_security(common | {"sasl.oauthbearer.token.endpoint.url": url})
    assert filed.login is not None
    assert filed.login.token_file == "/run/secrets/token"
    line = 'x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice" extension_team="red";'
    unsigned = parse_client_security(common | {"sasl.jaas.config": line})
    assert unsigned.login == ClientLogin("OAUTHBEARER", "alice", extensions=(("team", "red"),))


def test_tokenauth_in_jaas_line_means_delegation_token() -> None:
    line = SCRAM_LINE.replace(";", ' tokenauth="true";')
    security = parse_client_security(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}
    )
    assert security.login is not None
    assert security.login.is_delegation_token


@in_one_test(
    ("given", "words"),
    [
        ({"security.protocol": "TLS"}, "TLS is none of PLAINTEXT, SSL"),
        ({"security.protocl": "SSL"}, "did you mean security.protocol?"),
        ({"sasl.username": "alice"}, "PLAINTEXT has no login"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "is none of PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "no username and password"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "BKS"}, "none of PEM, PKCS12"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldap"}, "neither https"),
        ({"security.protocol": "SSL", "ssl.engine.factory.class": "x.Y"}, "Java class"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://h/token",
            },
            "kproc does not fetch tokens from a server",
        ),
    ],
)
def test_invalid_client_security_settings_are_rejected(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_client_security(given)
    assert words in str(caught.value)


def test_setting_error_has_the_callers_prefix() -> None:
    with pytest.raises(ConfigError, match=r"^kafka\.security\.protocol: "):
        parse_client_security({"security.protocol": "TLS"}, "kafka.")


@in_one_test(
    "line",
    [
        f'x.ScramLoginModule required username="alice" password="{SECRET}"',
        f'x.ScramLoginModule required username="alice" password="{SECRET};',
        f'x.ScramLoginModule username="alice" password="{SECRET}";',
        f"x.ScramLoginModule required username alice password {SECRET};",
        f'x.ScramLoginModule required username="alice" password=the {SECRET};',
        f'x.A required password="{SECRET}"; x.B required password="{SECRET}";',
    ],
)
def test_wrong_line_of_jaas_is_refused_without_its_secret(line: str) -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}
    with pytest.raises(ConfigError, match=r"^sasl\.jaas\.config: ") as caught:
        parse_client_security(given)
    assert SECRET not in str(caught.value)


def test_no_form_of_the_settings_shows_a_secret() -> None:
    security = parse_client_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": SCRAM_LINE,
            "ssl.truststore.password": SECRET,
            "ssl.keystore.location": "/k",
            "ssl.keystore.password": SECRET,
            "ssl.key.password": SECRET,
        }
    )
    assert SECRET not in repr(security) + str(security) + f"{security}"


def test_settings_travel_to_other_processes_and_are_compared() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} | {"sasl.jaas.config": SCRAM_LINE}
    security = parse_client_security(given)
    copy: ClientSecurity = pickle.loads(pickle.dumps(security))
    assert copy == security
    assert hash(copy) == hash(security)


def test_variables_of_a_file_stand_for_environment_and_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "more.properties").write_text("user=alice\n")
    path = tmp_path / "client.properties"
    path.write_text(
        "sasl.password=${dir:" + str(tmp_path) + ":password}\n"
        "sasl.username=${file:" + str(tmp_path / "more.properties") + ":user}\n"
        "security.protocol=${env:PROTOCOL}\n"
    )
    found = read_client_config(path, {"PROTOCOL": "SASL_SSL"}.get)
    assert found == {
        "sasl.password": SECRET,
        "sasl.username": "alice",
        "security.protocol": "SASL_SSL",
    }
    with pytest.raises(ConfigError, match="no such environment variable"):
        read_client_config(path, {}.get)
    with pytest.raises(ConfigError, match="cannot read"):
        read_client_config(tmp_path / "absent")
    path.write_text("sasl.password=${dir:/nowhere\0:password}\n")
    with pytest.raises(ConfigError, match=r"sasl.password: .* has no NUL"):
        read_client_config(path)


def test_secret_that_is_not_utf8_is_rejected_and_not_shown(tmp_path: Path) -> None:
    """The error of the login's encode() printed the password."""
    path, secret = tmp_path / "client.properties", tmp_path / "secret"
    secret.write_bytes(f"{SECRET}=".encode() + b"\xff")
    for value, problem in (
        (f"${{dir:{tmp_path}:secret}}", "the file is not UTF-8"),
        (f"${{file:{secret}:key}}", "the file is not UTF-8"),
        ("${env:SECRET}", "the value is not UTF-8"),
        (f"{SECRET}\\udcff", "the value is not UTF-8"),
    ):
        path.write_text(f"sasl.password={value}\n")
        with pytest.raises(ConfigError, match=f"^sasl.password: .*{problem}$") as raised:
            read_client_config(path, {"SECRET": f"{SECRET}\udcff"}.get)
        assert SECRET not in str(raised.value), value


def test_pem_of_one_line_gets_its_lines_back() -> None:
    line = "-----BEGIN CERTIFICATE----- QUJD REVG -----END CERTIFICATE-----"
    security = parse_client_security({"security.protocol": "SSL", "ssl.truststore.certificates": line})
    assert security.tls is not None
    assert security.tls.trust.pem == "-----BEGIN CERTIFICATE-----\nQUJD\nREVG\n-----END CERTIFICATE-----\n"
