"""The primitive types of Kafka's wire format: fixed-width numbers, varints, strings, tagged fields.

All functions are pure functions of a buffer and a position. Readers return (value, position after it) and raise
ProtocolError for malformed bytes. A reader compares a length with the remaining bytes before it allocates.

    unsigned varint   7 bits a byte, low bits first, bit 7 set when more follow; at most 5 bytes
    varint, varlong   an unsigned varint of a zig-zag coded signed number; at most 5 and 10 bytes
    tagged fields     count, then for each: tag, size, that many bytes (all three unsigned varints)   KIP-482
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kproc.common.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

# On the wire the zero UUID means that there is no topic id.
ZERO_UUID: Final = bytes(16)

# Bit shift of the last allowed byte: the 5th of a varint, the 10th of a varlong. Without a limit, a client could keep a
# reader busy with one endless number.
_VARINT_SHIFT_MAX: Final = 28
_VARLONG_SHIFT_MAX: Final = 63
# Limit of tagged fields in one struct. Clients send a handful. Kafka 4.4 accepts 10,000, but a request can have that
# many in each of its rows, and skipping takes time for each.
TAGS_MAX: Final = 100
# Limit of elements in one array, as in Kafka 4.4. The limits of rows in a request are lower (request/division.py).
ELEMENTS_MAX: Final = 1_000_000
# Kafka's limit of a string's bytes in both encodings, although a compact length could be larger.
STRING_BYTES_MAX: Final = 0x7FFF

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))
# Encoded varints of the numbers 0 to 1023, because most lengths and offset deltas of records are in this range.
_VARINTS: Final = tuple(
    bytes((value << 1,)) if value < 64 else bytes((value << 1 & 127 | 128, value >> 6))
    for value in range(1024)
)


class StringTooLong(ValueError):
    """A string has more than STRING_BYTES_MAX bytes."""


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a non-negative number. Raises ValueError for a negative one."""
    if value < 128:
        # Reject negative values, because a negative index would silently read from the end of the table.
        if value < 0:
            raise ValueError(f"an unsigned varint cannot encode the negative number {value}")
        return _ONE_BYTE[value]
    if value < 16_384:
        return bytes((value & 127 | 128, value >> 7))
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_varint(value: int) -> bytes:
    """Encode a signed number as varint or varlong. The two differ only in their limits, which are not checked."""
    if 0 <= value < 1024:
        return _VARINTS[value]
    return encode_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def as_int64(value: int) -> int:
    """Return the low 64 bits as a signed number, as Java does with a sum that does not fit into a long."""
    return (value - INT64_MIN & 0xFFFF_FFFF_FFFF_FFFF) + INT64_MIN


def _read_base128(data: Buffer, position: int, shift_max: int) -> tuple[int, int]:
    value = shift = 0
    try:
        # Handle numbers of two bytes first: callers decode those of one byte themselves, and longer ones are rare.
        first = data[position]
        if first < 128:
            return first, position + 1
        second = data[position + 1]
        if second < 128:
            return first & 127 | second << 7, position + 2
        while True:
            byte = data[position]
            position += 1
            if byte < 128:
                return value | byte << shift, position
            value |= (byte & 127) << shift
            shift += 7
            # Reject numbers with more bytes than their type allows. Otherwise a client could keep the reader in this
            # loop.
            if shift > shift_max:
                raise ProtocolError("varint is too long for its type")
    except IndexError:
        raise ProtocolError("varint runs past the end of its message or record") from None


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes. Return (number, position after it)."""
    return _read_base128(data, position, _VARINT_SHIFT_MAX)


def read_unsigned_varlong(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 10 bytes. Return (its low 64 bits, as Java does, position after it)."""
    value, position = _read_base128(data, position, _VARLONG_SHIFT_MAX)
    return value & 0xFFFF_FFFF_FFFF_FFFF, position


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a signed (zig-zag coded) varint of at most 5 bytes. Return (number, position after it)."""
    raw, position = _read_base128(data, position, _VARINT_SHIFT_MAX)
    return raw >> 1 ^ -(raw & 1), position


def check_tag_count(count: int) -> None:
    """Raise ProtocolError for more tagged fields than a struct may have."""
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields in one struct; the limit is {TAGS_MAX}")


def skip_tagged_fields(data: Buffer, position: int) -> int:
    """Skip a block of tagged fields (KIP-482). Return the position after it."""
    count, position = read_unsigned_varint(data, position)
    check_tag_count(count)
    for _ in range(count):
        _, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        position += size
        # Check that the claimed size fits into the data, because no reader checks it for a skipped field.
        if position > len(data):
            raise ProtocolError("tagged field runs past the end of its message or record")
    return position


def encode_string(text: str) -> bytes:
    """Encode a string for a non-flexible version: int16 length, UTF-8."""
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise StringTooLong(f"string of {len(encoded)} bytes is too long: Kafka's limit is 32767 bytes")
    return INT16.pack(len(encoded)) + encoded


def encode_compact_string(text: str) -> bytes:
    """Encode a string for a flexible version: length + 1 as unsigned varint, UTF-8."""
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise StringTooLong(f"string of {len(encoded)} bytes is too long: Kafka's limit is 32767 bytes")
    return encode_unsigned_varint(len(encoded) + 1) + encoded


def shortened(text: str, bytes_max: int = STRING_BYTES_MAX) -> str:
    """Return the longest beginning of `text` that has at most `bytes_max` bytes in UTF-8."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def read_string(data: Buffer, position: int) -> tuple[str | None, int]:
    """Read a string of a non-flexible version. Return (text or None for null, position after it)."""
    (length,) = INT16.unpack_from(data, position)
    position += 2
    if length < 0:
        if length == -1:
            return None, position
        raise ProtocolError(f"string has the length {length}; expected -1 (null) or more")
    end = position + length
    if end > len(data):
        raise ProtocolError(f"string of {length} bytes runs past the end of its message or record")
    return str(data[position:end], "utf-8"), end


def read_compact_length(data: Buffer, position: int) -> tuple[int, int]:
    """Read a length or count of a flexible version. Return (number or -1 for null, position after it)."""
    byte = data[position]
    if byte < 128:
        return byte - 1, position + 1
    value, position = read_unsigned_varint(data, position)
    return value - 1, position


def read_compact_string(data: Buffer, position: int) -> tuple[str | None, int]:
    """Read a string of a flexible version. Return (text or None for null, position after it)."""
    length, position = read_compact_length(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data) or length > STRING_BYTES_MAX:
        possible = min(len(data) - position, STRING_BYTES_MAX)
        raise ProtocolError(f"string of {length} bytes, but at most {possible} remain or are allowed")
    return str(data[position:end], "utf-8"), end


def skip_tags(data: Buffer, position: int) -> int:
    """Skip a block of tagged fields that is usually empty. Return the position after it."""
    return position + 1 if data[position] == 0 else skip_tagged_fields(data, position)
