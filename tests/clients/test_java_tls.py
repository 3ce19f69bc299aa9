"""Java over TLS: Kafka's console tools with a PEM trust store, and its names for the subjects of certificates."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kproc.broker.security.certificate import facts_of
from kproc.broker.security.principal_mapping import NoMatchingRule, PrincipalMapper
from tests.support.broker import ServedBroker
from tests.support.certificates import Authority, Certificates
from tests.support.java_programs import program_command
from tests.support.java_tools import CONSOLE_CONSUMER, CONSOLE_PRODUCER, TOPIC_COMMAND, run_tool
from tests.support.kafka_jars import classpath, missing_reason
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
RULES = (
    "DEFAULT",
    "RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L,DEFAULT",
    "RULE:.*/x/",
    r"RULE:^CN=(\w+).*$/\$1 is $1$9/U",
    "RULE:^.*?CN=(?<who>[^,+]+).*$/${who}$12/",
    "RULE:^nothing$/x/",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(files: Certificates) -> Iterator[ServedBroker]:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "num.network.threads": 2,
        **files.broker_settings(client_auth="required"),
    }
    with ServedBroker(files.directory / "data", settings=settings) as served:
        yield served


@pytest.mark.parametrize("version", [pytest.param("TLSv1.2", marks=pytest.mark.slow), "TLSv1.3"])
def test_console_tools_create_write_and_read(broker: ServedBroker, files: Certificates, version: str) -> None:
    options = {"security.protocol": "SSL", "ssl.enabled.protocols": version, **files.java(with_client=True)}
    text = "".join(f"{name}={value}\n" for name, value in options.items())
    config = files.write(f"{version}.properties", text.encode())
    topic = fresh_name("java-tls")
    server = ("--bootstrap-server", broker.bootstrap)
    run_tool(TOPIC_COMMAND, *server, "--command-config", str(config), "--create", "--topic", topic)
    lines = [f"line {number} " + "x" * (number * 37 % 2000) for number in range(400)]
    run_tool(
        CONSOLE_PRODUCER,
        *(*server, "--topic", topic, "--command-config", str(config)),
        stdin="".join(f"{line}\n" for line in lines),
    )
    read = run_tool(
        CONSOLE_CONSUMER,
        *(*server, "--topic", topic, "--command-config", str(config), "--from-beginning"),
        *("--max-messages", str(len(lines)), "--timeout-ms", "30000"),
    )
    assert read.lines == lines


def test_ssl_principal_mapping_equals_java(tmp_path: Path) -> None:
    """What kproc reads in a certificate by itself, beside what Java and Kafka make of the same bytes."""
    authority = Authority()
    printable = _ASN1Type.PrintableString

    def name(oid: x509.ObjectIdentifier, value: str, kind: _ASN1Type | None = None) -> x509.NameAttribute:
        return x509.NameAttribute(oid, value, **({} if kind is None else {"_type": kind}))

    cn, ou = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
    subjects = [
        [[name(NameOID.COUNTRY_NAME, "DE")], [name(ou, "music")], [name(cn, "alice")]],
        [[name(cn, 'a,b=c+d<e>f#g;h"i\\j')]],
        [[name(cn, "  both ends  ")]],
        [[name(cn, "#first")], [name(ou, "Jürgen ÄÖ 漢字")]],
        [[name(cn, "a"), name(ou, "b")], [name(NameOID.DOMAIN_COMPONENT, "org")]],
        [[name(cn, "a")], [name(NameOID.EMAIL_ADDRESS, "a@b", _ASN1Type.IA5String)]],
        [
            [name(NameOID.SERIAL_NUMBER, "12")],
            [name(NameOID.USER_ID, "u")],
            [name(NameOID.TITLE, "Dr", printable)],
        ],
        [[name(NameOID.STREET_ADDRESS, "Way 1")], [name(NameOID.LOCALITY_NAME, "X")]],
        [[name(NameOID.STATE_OR_PROVINCE_NAME, "B")], [name(NameOID.ORGANIZATION_NAME, "O", printable)]],
        [[name(x509.ObjectIdentifier("2.999.1234567.3"), "odd")], [name(cn, "x")]],
        [[name(NameOID.GIVEN_NAME, "g")], [name(NameOID.SURNAME, "s")], [name(cn, "tab\tand\x01control")]],
    ]
    issued = [
        authority.issue(x509.Name([x509.RelativeDistinguishedName(part) for part in parts])).certificate
        for parts in subjects
    ]
    pem = tmp_path / "all.pem"
    pem.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in issued))
    done = subprocess.run(
        program_command("PrincipalNames", classpath(), str(pem), *RULES),
        capture_output=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    ours: list[str] = []
    for each in issued:
        subject = facts_of(each.public_bytes(Encoding.DER)).subject
        ours.append(subject)
        ours += [mapped(rules, subject) for rules in RULES]
    assert ours == done.stdout.decode().removesuffix("\n").split("\n")


def mapped(rules: str, subject: str) -> str:
    try:
        return PrincipalMapper(rules).name_of(subject)
    except NoMatchingRule:
        return "none"
