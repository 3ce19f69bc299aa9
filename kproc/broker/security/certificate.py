"""A small DER parser for certificates: the subject as Java prints it, the alternative names, the expiry.

Principals must be equal to Kafka's. Java prints an attribute without a name in RFC 2253 as hexadecimal DER, which no
library returns. A parser of our own also saves each Processor from loading a library.
"""

from __future__ import annotations

import base64
import datetime
import re
from typing import Final, NamedTuple

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OID, _UTC_TIME = 0x30, 0x06, 0x17
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SUBJECT_ALTERNATIVE_NAME: Final = bytes.fromhex("0603551d11")
# The attributes that Java writes by name (RFC 2253 and RFC 1779), by the content of their object identifiers.
_KEYWORDS: Final = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}
# UTF8String, PrintableString, TeletexString, IA5String, GeneralString, BMPString: Java writes them as text.
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')


class MalformedCertificate(ValueError):
    """The bytes are not an X.509 certificate in DER or PEM."""


class CertificateFacts(NamedTuple):
    """The attributes of a certificate that the broker compares or shows."""

    subject: str
    """As `X500Principal.getName()` prints it."""
    alternative_names: bytes
    """The DER value of the extension subjectAltName; empty if the certificate has none."""
    ends: datetime.datetime


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM text as DER. Raises MalformedCertificate."""
    try:
        return [base64.b64decode(b"".join(match.split())) for match in _PEM.findall(pem)]
    except ValueError as error:
        raise MalformedCertificate(f"not a certificate: {error}") from error


def facts_of(der: bytes) -> CertificateFacts:
    """Parse subject, alternative names and expiry of a DER certificate. Raises MalformedCertificate."""
    try:
        (certificate,) = _elements(der)
        fields = _elements(_elements(certificate.content)[0].content)
        # The version is an optional field in front of all others.
        if fields[0].tag == _VERSION:
            fields = fields[1:]
        # serial number, signature, issuer, validity, subject, key, extensions
        validity, subject, rest = fields[3], fields[4], fields[6:]
        return CertificateFacts(
            _name(subject), _alternative_names(rest), _time(_elements(validity.content)[1])
        )
    except (IndexError, ValueError) as error:
        raise MalformedCertificate(f"not a certificate: {error}") from error


def _elements(data: bytes) -> list[_Element]:
    """Return the consecutive DER elements of `data`.

    Raises ValueError or IndexError if the bytes are malformed. `facts_of` turns both into MalformedCertificate. The
    operator sees its text for a certificate of the broker at the start, and in the log for one of a client.
    """
    found = []
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        # DER, long form: the low 7 bits of the first length byte are the number of the length bytes that follow.
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("damaged, because a DER element is longer than the element that contains it")
        found.append(_Element(tag, data[at : at + length], data[start : at + length]))
        at += length
    return found


def _alternative_names(rest: list[_Element]) -> bytes:
    # Optional fields follow the public key. Only the extensions matter here.
    for part in rest:
        if part.tag != _EXTENSIONS:
            continue
        (extensions,) = _elements(part.content)
        for extension in _elements(extensions.content):
            if extension.content.startswith(_SUBJECT_ALTERNATIVE_NAME):
                return _elements(extension.content)[-1].content
    return b""


def _time(element: _Element) -> datetime.datetime:
    text = element.content.decode("ascii")
    # A UTCTime has a year of two digits. Years from 50 on are in the 20th century (RFC 5280).
    if element.tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)


def _name(subject: _Element) -> str:
    """Format a subject as RFC 2253 does: the last RDN first, several attributes of one RDN joined by `+`."""
    parts = [
        "+".join(_attribute(each) for each in _elements(part.content)) for part in _elements(subject.content)
    ]
    return ",".join(reversed(parts))


def _attribute(attribute: _Element) -> str:
    kind, value = _elements(attribute.content)
    keyword = _KEYWORDS.get(kind.content)
    if keyword is None:
        return f"{_dotted(kind.content)}=#{value.whole.hex()}"
    if value.tag not in _TEXTS:
        return f"{keyword}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _dotted(oid: bytes) -> str:
    # DER: a number has 7 bits in each byte, and the high bit of a byte says that the next byte belongs to it, too.
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    # The first number holds two parts as 40 * first + second. The second part is below 40 unless the first is 2.
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    text = _ESCAPED.sub(r"\\\g<0>", text).replace("\0", "\\00")
    # RFC 2253 also escapes blanks at both ends.
    inner = text.strip(" \r")
    if inner == text:
        return text
    lead = len(text) - len(text.lstrip(" \r"))
    head, tail = text[:lead], text[lead + len(inner) :]
    return "".join(f"\\{each}" for each in head) + inner + "".join(f"\\{each}" for each in tail)
