"""What the broker reads in certificates: the subject as Java prints it, the names, the end. DER, read by hand.

Java prints an attribute that RFC 2253 has no name for as hexadecimal DER, which no library hands out; and whoever only
serves TLS need not load one.
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
    """The bytes are no certificate."""


class CertificateFacts(NamedTuple):
    """What is compared or shown of a certificate."""

    subject: str
    """As `X500Principal.getName()` prints it."""
    alternative_names: bytes
    """The extension's value, encoded; empty if there is none."""
    ends: datetime.datetime


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def certificates_in(pem: bytes) -> list[bytes]:
    """Every certificate of a PEM file, as DER. Raises MalformedCertificate."""
    try:
        return [base64.b64decode(b"".join(match.split())) for match in _PEM.findall(pem)]
    except ValueError as error:
        raise MalformedCertificate(f"not a certificate: {error}") from error


def facts_of(der: bytes) -> CertificateFacts:
    """Subject, names and end of a certificate. Raises MalformedCertificate."""
    try:
        (certificate,) = _elements(der)
        fields = _elements(_elements(certificate.content)[0].content)
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
    """The elements that lie one behind the other in `data`."""
    found = []
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element is longer than what it lies in")
        found.append(_Element(tag, data[at : at + length], data[start : at + length]))
        at += length
    return found


def _alternative_names(rest: list[_Element]) -> bytes:
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
    if element.tag == _UTC_TIME:  # Two digits of the year: 50 and above are of the last century (RFC 5280).
        text = ("19" if text >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)


def _name(subject: _Element) -> str:
    """The last part first, several attributes of one part joined by `+`."""
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
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    text = _ESCAPED.sub(r"\\\g<0>", text).replace("\0", "\\00")
    # Blanks at both ends are escaped, too.
    inner = text.strip(" \r")
    if inner == text:
        return text
    lead = len(text) - len(text.lstrip(" \r"))
    head, tail = text[:lead], text[lead + len(inner) :]
    return "".join(f"\\{each}" for each in head) + inner + "".join(f"\\{each}" for each in tail)
