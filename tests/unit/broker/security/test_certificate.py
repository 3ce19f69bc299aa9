"""Fields of certificates: names as Java prints them, alternative names, the end of validity."""

from __future__ import annotations

import datetime
from contextlib import suppress

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from kproc.broker.security.certificate import MalformedCertificate, certificates_in, facts_of
from tests.support.cases import in_one_test
from tests.support.certificates import Authority

AUTHORITY = Authority()


def subject(*parts: x509.NameAttribute | list[x509.NameAttribute]) -> str:
    """The name that is read in a certificate with this subject."""
    relative = [x509.RelativeDistinguishedName(part if isinstance(part, list) else [part]) for part in parts]
    issued = AUTHORITY.issue(x509.Name(relative))
    return facts_of(issued.certificate.public_bytes(Encoding.DER)).subject


def attribute(oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute:
    return x509.NameAttribute(oid, value)


CN, OU, O = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME  # noqa: E741


@in_one_test(
    ("parts", "name"),
    [
        (
            [attribute(O, "Example"), attribute(OU, "music"), attribute(CN, "alice")],
            "CN=alice,OU=music,O=Example",
        ),
        (
            [attribute(NameOID.COUNTRY_NAME, "DE"), attribute(NameOID.STATE_OR_PROVINCE_NAME, "B")],
            "ST=B,C=DE",
        ),
        ([attribute(NameOID.DOMAIN_COMPONENT, "org"), attribute(NameOID.USER_ID, "u1")], "UID=u1,DC=org"),
        (
            [attribute(NameOID.STREET_ADDRESS, "Way 1"), attribute(NameOID.LOCALITY_NAME, "X")],
            "L=X,STREET=Way 1",
        ),
        ([attribute(CN, 'a,b=c+d<e>f#g;h"i\\j')], r"CN=a\,b\=c\+d\<e\>f\#g\;h\"i\\j"),
        ([attribute(CN, "  both ends ")], r"CN=\ \ both ends\ "),
        ([attribute(CN, "Jürgen Müller")], "CN=Jürgen Müller"),
        ([[attribute(CN, "a"), attribute(OU, "b")]], "CN=a+OU=b"),
        (
            [attribute(CN, "a"), x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b", _type=_ASN1Type.IA5String)],
            "1.2.840.113549.1.9.1=#1603614062,CN=a",
        ),
        ([attribute(NameOID.SERIAL_NUMBER, "12")], "2.5.4.5=#13023132"),
    ],
)
def test_subjects_read_as_java_prints_them(
    parts: list[x509.NameAttribute | list[x509.NameAttribute]], name: str
) -> None:
    assert subject(*parts) == name


def test_end_and_alternative_names() -> None:
    issued = AUTHORITY.issue("CN=x", hosts=("localhost", "127.0.0.1"), days=100)
    facts = facts_of(issued.certificate.public_bytes(Encoding.DER))
    assert facts.ends == issued.certificate.not_valid_after_utc
    extension = issued.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert facts.alternative_names == extension.value.public_bytes()
    plain = AUTHORITY.issue("CN=x", days=365 * 40)  # Beyond 2049 times are written otherwise.
    facts = facts_of(plain.certificate.public_bytes(Encoding.DER))
    assert facts.alternative_names == b""
    assert facts.ends == plain.certificate.not_valid_after_utc
    assert facts.ends > datetime.datetime(2050, 1, 1, tzinfo=datetime.UTC)


def test_every_certificate_of_a_file_is_found() -> None:
    issued = AUTHORITY.issue("CN=x")
    ders = certificates_in(b"a comment\n" + issued.pem())
    assert ders == [each.public_bytes(Encoding.DER) for each in (issued.certificate, issued.authority)]


@given(st.data())
def test_a_damaged_certificate_is_read_or_refused(data: st.DataObject) -> None:
    der = bytearray(AUTHORITY.certificate.public_bytes(Encoding.DER))
    for _ in range(data.draw(st.integers(1, 3))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(der[: data.draw(st.integers(0, len(der)))])
    with suppress(MalformedCertificate):
        assert facts_of(damaged).ends.tzinfo is datetime.UTC
