"""Key stores and trust stores: every form that works, and one line for each error."""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.values import Secret
from kproc.broker.security.tls import make_context, settings_of
from tests.support.cases import in_one_test
from tests.support.certificates import Certificates, Issued
from tests.support.tls_handshakes import shake_hands

JKS = bytes.fromhex("feedfeed") + bytes(20)


@pytest.fixture(scope="module")
def issued(certificates: Certificates) -> Issued:
    return certificates.issue_server()


def values(**settings: Any) -> Callable[[str], Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return settings_of(Config.build(given), DynamicSettings(), "SSL")


def context_of(secret: bytes = bytes(32), **settings: Any) -> ssl.SSLContext:
    return make_context("SSL", values(**settings), ticket_secret=secret).context


def client_of(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


# -- stores ----------------------------------------------------------------------------------------------------


def stores(certificates: Certificates, issued: Issued) -> dict[str, dict[str, Any]]:
    """Every form in which a key and a chain may be given."""
    write = certificates.write
    return {
        "PEM file": {"ssl_keystore_type": "PEM", "ssl_keystore_location": write("k.pem", issued.pem())},
        "PEM file of no type": {"ssl_keystore_location": write("k.pem", issued.pem())},
        "encrypted PEM": {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": write("e.pem", issued.pem("word")),
            "ssl_key_password": "word",
        },
        "PEM inline": {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_key": issued.key_pem().decode(),
            "ssl_keystore_certificate_chain": issued.chain_pem.decode(),
        },
        "PKCS12": {
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_location": write("k.p12", issued.pkcs12("word")),
            "ssl_keystore_password": "word",
        },
        "PKCS12 of no type": {
            "ssl_keystore_location": write("k.p12", issued.pkcs12("word")),
            "ssl_keystore_password": "word",
        },
    }


STORES = ("PEM file", "PEM file of no type", "encrypted PEM", "PEM inline", "PKCS12", "PKCS12 of no type")


@pytest.mark.parametrize("form", STORES)
def test_a_key_in_any_form_serves(certificates: Certificates, issued: Issued, form: str) -> None:
    settings = {name: str(value) for name, value in stores(certificates, issued)[form].items()}
    end = shake_hands(context_of(**settings), client_of(certificates))
    assert end.getpeercert(binary_form=True) == issued.certificate.public_bytes(_der())


def _der() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


def test_descriptors_of_memory_are_closed(certificates: Certificates) -> None:
    before = len(os.listdir("/proc/self/fd"))
    context_of(ssl_keystore_location=str(certificates.server))
    assert len(os.listdir("/proc/self/fd")) == before


def _without_a_letter(pem: bytes) -> bytes:
    """As an editor may leave it: what follows is no base64."""
    at = pem.index(b"CERTIFICATE-----") + 40
    return pem[:at] + pem[at + 1 :]


def _trusting(issued: Issued) -> bytes:
    """A PKCS#12 store of a certificate alone."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    trusted = [pkcs12.PKCS12Certificate(issued.certificate, b"trusted")]
    return pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(b"word"))


def wrong(certificates: Certificates, issued: Issued) -> dict[str, tuple[dict[str, Any], str]]:
    """What is wrong, with which settings, and what is said of it."""
    write, location = certificates.write, "ssl_keystore_location"
    pem, word = {"ssl_keystore_type": "PEM"}, {"ssl_keystore_password": "word"}
    other = certificates.issue_server()
    store = write("w.p12", issued.pkcs12("word"))
    trusting = {location: certificates.server, "ssl_client_auth": "required"}
    return {
        "nothing": ({}, "TLS needs a key and a certificate: set ssl.keystore.location or listener.name.ssl.ssl"),
        "no file": ({location: "/nowhere/k.pem"}, "location=/nowhere/k.pem: No such file or directory"),
        "no name": ({location: "/a\0b"}, r"location=/a\\x00b: .*embedded null"),
        "half a letter": (
            {location: write("h.pem", issued.key_pem() + _without_a_letter(issued.chain_pem))},
            "not a certificate: ",
        ),
        "PKCS12 without a key": ({location: write("t.p12", _trusting(issued)), **word}, "has no private key"),
        "a directory": ({location: "/"}, "location=/: Is a directory"),
        # A client that may alter the broker's settings stopped the controller with a FIFO, and filled memory with this.
        "a device": ({location: "/dev/zero"}, "location=/dev/zero: Not a regular file"),
        "neither": ({location: write("n", b"hello")}, "is neither PEM nor PKCS12"),
        "JKS": (
            {location: write("k.jks", JKS)},
            "keytool -importkeystore -srckeystore .*/k.jks -destkeystore k.p12",
        ),
        "other type": ({location: store, **pem}, "is PKCS12, but ssl.keystore.type is PEM"),
        "no password": ({location: store}, "cannot be opened without a password"),
        "wrong password": ({location: store, "ssl_keystore_password": "no"}, "its password is wrong"),
        "damaged": ({location: write("d.p12", issued.pkcs12("word")[:-50]), **word}, "or it is damaged"),
        "PEM with a password": (
            {location: certificates.server, **pem, **word},
            "a PEM store has no password",
        ),
        "no key": ({location: write("c.pem", issued.chain_pem)}, "has no private key"),
        "no certificate": ({location: write("o.pem", issued.key_pem())}, "has no certificate"),
        "another key": (
            {location: write("m.pem", other.key_pem() + issued.chain_pem)},
            "the private key does not fit the certificate",
        ),
        "encrypted": (
            {location: write("x.pem", issued.pem("word"))},
            "is encrypted, and ssl.key.password is not set",
        ),
        "wrong key password": (
            {location: write("x.pem", issued.pem("word")), "ssl_key_password": "no"},
            "cannot be decrypted: ssl.key.password is wrong",
        ),
        "half inline": (
            {**pem, "ssl_keystore_key": issued.key_pem().decode()},
            "certificate.chain must be set together",
        ),
        "inline of no type": (
            {"ssl_keystore_key": issued.key_pem().decode()},
            "ssl.keystore.type=JKS: for PEM text in the settings",
        ),
        "inline and file": (
            {**pem, location: certificates.server, "ssl_keystore_key": issued.key_pem().decode()},
            "both a location and PEM text in the settings",
        ),
        "no trust": (trusting, "kproc trusts no authority by itself"),
        "empty trust": (
            {**trusting, "ssl_truststore_location": write("t.pem", issued.key_pem())},
            "has no certificate",
        ),
        "rules": (
            {location: certificates.server, "ssl_principal_mapping_rules": "RULE:(/x/"},
            "ssl.principal.mapping.rules: 'RULE:",
        ),
        "suites": (
            {location: certificates.server, "ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_X_SHA,AES128-SHA256"},
            "ssl.cipher.suites: OpenSSL does not offer ECDHE-RSA-X-SHA$",
        ),
        "suites of no version": (
            {
                location: certificates.server,
                "ssl_cipher_suites": "ECDHE-ECDSA-AES128-GCM-SHA256",
                "ssl_enabled_protocols": "TLSv1.3",
            },
            "none of these suites belongs to a version",
        ),
    }


WRONG = (
    "nothing", "no file", "no name", "half a letter", "PKCS12 without a key", "a directory", "neither", "JKS",
    "other type", "no password", "wrong password", "damaged", "PEM with a password", "no key", "no certificate",
    "another key", "encrypted", "wrong key password", "half inline", "inline of no type", "inline and file",
    "a device", "no trust", "empty trust", "rules", "suites", "suites of no version",
)  # fmt: skip


@pytest.fixture(scope="module")
def wrong_stores(certificates: Certificates, issued: Issued) -> dict[str, tuple[dict[str, Any], str]]:
    """All that is wrong, made once."""
    return wrong(certificates, issued)


@in_one_test("what", WRONG)
def test_unusable_store_is_rejected_in_one_line(
    wrong_stores: dict[str, tuple[dict[str, Any], str]], what: str
) -> None:
    settings, said = wrong_stores[what]
    with pytest.raises(ConfigError, match=said) as refused:
        context_of(**{name: str(value) for name, value in settings.items()})
    assert "\n" not in str(refused.value)
    assert "word" not in str(refused.value).replace("password", "")


def test_all_that_can_be_wrong_is_tried(certificates: Certificates, issued: Issued) -> None:
    assert set(WRONG) == set(wrong(certificates, issued))
    assert set(STORES) == set(stores(certificates, issued))


def test_fifo_as_a_store_is_rejected(tmp_path: Path) -> None:
    """Its open blocked the controller, which reads the file when a client changes the setting."""
    path = tmp_path / "k.pem"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"location={path}: Not a regular file"):
        context_of(ssl_keystore_location=str(path))


def test_trust_stores_of_both_types_define_trusted_clients(certificates: Certificates) -> None:
    store = certificates.write("trust.p12", certificates.authority.trust_store("word"))
    for location, password in ((certificates.ca, None), (store, "word")):
        settings = {"ssl_truststore_location": str(location), "ssl_client_auth": "required"}
        if password is not None:
            settings["ssl_truststore_password"] = password
        client = client_of(certificates)
        client.load_cert_chain(certificates.client)
        assert shake_hands(
            context_of(ssl_keystore_location=str(certificates.server), **settings), client
        ).version()
        with pytest.raises(ssl.SSLError, match="did not return a certificate"):
            shake_hands(
                context_of(ssl_keystore_location=str(certificates.server), **settings),
                client_of(certificates),
            )


def test_readable_key_is_logged(certificates: Certificates) -> None:
    path = certificates.write("open.pem", certificates.expired.read_bytes())
    path.chmod(0o644)
    value = values(ssl_keystore_location=str(path))
    made = make_context("SSL", value, ticket_secret=b"")
    (readable,) = made.warnings
    assert f"chmod 600 {path}" in readable
    assert made.server.ends < datetime.datetime.now(datetime.UTC)
    assert (
        make_context(
            "SSL", values(ssl_keystore_location=str(certificates.server)), ticket_secret=b""
        ).warnings
        == ()
    )


def test_a_key_shows_in_no_form_of_a_store(issued: Issued) -> None:
    from kproc.broker.security.key_stores import PEM, StoreSettings, load_key_store

    key, chain = Secret(issued.key_pem().decode()), Secret(issued.chain_pem.decode())
    settings = StoreSettings("ssl.keystore", PEM, "", None, (key, chain))
    for shown in (repr(settings), repr(load_key_store(settings))):
        assert "BEGIN" not in shown


def test_a_path_of_memory_is_ours_alone(tmp_path: Path) -> None:
    from kproc.broker.security.key_stores import as_path

    with as_path(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not Path(path).exists() or Path(path).resolve() != Path(path)
