"""Writers built from schemas, the counterpart of the readers in `schema.py`, which describes the encoding.

A writer appends to a bytearray. Its input comes from kproc's own code, so a wrong value is a bug of the caller and
raises ValueError, TypeError or struct.error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from kproc.wire.file_range import FileRange, FileRecords
from kproc.wire.primitives import (
    INT16,
    INT32,
    STRING_BYTES_MAX,
    ZERO_UUID,
    StringTooLong,
    encode_unsigned_varint,
    shortened,
)
from kproc.wire.schema import FIXED_CODES, Field, Schema, default_of, fixed_runs

Writer = Callable[[bytearray, Any], None]
# Called with (path of the struct, field name) for a name that this version lacks. Raises ValueError if no version has
# it.
NameCheck = Callable[[str, str], None]


def _write_string(path: str, is_flexible: bool, is_nullable: bool) -> Writer:
    def write_string(out: bytearray, value: Any) -> None:
        if value is None:
            if not is_nullable:
                raise ValueError(f"{path} must not be null")
            out += b"\0" if is_flexible else b"\xff\xff"
            return
        encoded = value.encode()
        if len(encoded) > STRING_BYTES_MAX:
            raise StringTooLong(
                f"{path}: string of {len(encoded)} bytes is too long: Kafka's limit is 32767 bytes"
            )
        # KIP-482: a compact length is the real length + 1, because 0 means null.
        out += encode_unsigned_varint(len(encoded) + 1) if is_flexible else INT16.pack(len(encoded))
        out += encoded

    return write_string


def _write_message(write_string: Writer) -> Writer:
    """Make a writer for fields with error messages. It truncates a message to the longest string of the protocol.

    An error message can quote a long text that a client sent.
    """

    def write_message(out: bytearray, value: Any) -> None:
        write_string(out, None if value is None else shortened(value))

    return write_message


def _write_bytes(path: str, is_flexible: bool, is_nullable: bool) -> Writer:
    def write_bytes(out: bytearray, value: Any) -> None:
        if value is None:
            if not is_nullable:
                raise ValueError(f"{path} must not be null")
            out += b"\0" if is_flexible else b"\xff\xff\xff\xff"
            return
        out += encode_unsigned_varint(len(value) + 1) if is_flexible else INT32.pack(len(value))
        out += value

    return write_bytes


def _write_records(write_bytes: Writer) -> Writer:
    """Make a writer for a field with records.

    For FileRecords it writes only their size, because the Processor sends their bytes from the file.
    """

    def write_records(out: bytearray, value: Any) -> None:
        if type(value) is not FileRecords:
            write_bytes(out, value)
            return
        assert type(out) is MessageInPieces, "records of files in a message that is not sent in pieces"
        # Always flexible: only ShareFetch responses use this writer. hot_fetch_response.py encodes Fetch responses.
        out += encode_unsigned_varint(len(value) + 1)
        if len(value):
            out.add_pieces([each for each in value.ranges if each.length])

    return write_records


def _uuid_bytes(value: bytes | None) -> bytes:
    if value is None:
        return ZERO_UUID
    # Check the UUID's length, because struct.pack would silently truncate or pad it.
    if len(value) != len(ZERO_UUID):
        raise ValueError(f"UUID has {len(value)} bytes; expected {len(ZERO_UUID)}")
    return value


def _write_fixed(kind: str) -> Writer:
    pack = Struct(">" + FIXED_CODES[kind]).pack

    def write_fixed(out: bytearray, value: Any) -> None:
        out += pack(value)

    def write_uuid(out: bytearray, value: Any) -> None:
        out += _uuid_bytes(value)

    return write_uuid if kind == "uuid" else write_fixed


# Size in bytes from which EncodedRows seals its rows as a finished piece. Copying a piece takes about 0.2 ms.
PIECE_BYTES: Final = 256 << 10


class EncodedRows:
    """An array of encoded rows. A writer accepts it in place of the list of an array field.

    `pieces` has the first rows in finished pieces, `data` the rows after them. Writers append rows to `data` and add
    their number to `count`.
    """

    __slots__ = ("_piece_bytes", "count", "data", "pieces")

    def __init__(self) -> None:
        self.count = 0
        self.data = bytearray()
        self.pieces: list[bytes] = []
        self._piece_bytes = 0

    def __len__(self) -> int:
        return self.count

    def size_bytes(self) -> int:
        """Return the size of all encoded rows in bytes."""
        return self._piece_bytes + len(self.data)

    def last_bytes(self, position: int) -> bytes:
        """Return the rows' bytes from `position` on.

        The caller must not have called `seal` since `size_bytes()` was `position`.
        """
        return bytes(self.data[position - self._piece_bytes :])

    def seal(self) -> None:
        """Move the rows in `data` to the finished pieces if they have at least PIECE_BYTES."""
        # A finished piece is sent without a copy. Small pieces are not worth it: copying them is cheaper than sending
        # each.
        if len(self.data) >= PIECE_BYTES:
            self.pieces.append(bytes(self.data))
            self._piece_bytes += len(self.data)
            self.data = bytearray()


class MessageInPieces(bytearray):
    """A buffer for a message, which keeps finished pieces beside the bytes that are being written after them.

    The pieces of large EncodedRows are not copied: copying 20 MB takes 20 ms, and a Handler serves no other client
    meanwhile.
    """

    __slots__ = ("_complete",)

    def __init__(self, beginning: bytes) -> None:
        super().__init__(beginning)
        self._complete: list[bytes | FileRange] = []

    def add_pieces(self, pieces: Sequence[bytes | FileRange]) -> None:
        self._complete += (bytes(self), *pieces)
        self.clear()

    def pieces(self) -> list[bytes | FileRange]:
        """Return all pieces of the message in order. There is at least one, which starts with the `beginning`."""
        return [*self._complete, bytes(self)]


def _write_array(path: str, is_flexible: bool, is_nullable: bool, write: Writer) -> Writer:
    def write_array(out: bytearray, items: Any) -> None:
        if items is None:
            if not is_nullable:
                raise ValueError(f"{path} must not be null")
            out += b"\0" if is_flexible else b"\xff\xff\xff\xff"
            return
        out += encode_unsigned_varint(len(items) + 1) if is_flexible else INT32.pack(len(items))
        # EncodedRows are rows of a response that was built in slices. Append them as they are, because they are already
        # encoded.
        if type(items) is EncodedRows:
            if items.pieces:
                # Add large pieces to the message without copying them into its buffer (MessageInPieces).
                if type(out) is MessageInPieces:
                    out.add_pieces(items.pieces)
                else:
                    out += b"".join(items.pieces)
            out += items.data
            return
        for item in items:
            write(out, item)

    return write_array


def _write_nullable_struct(write: Writer, is_tagged: bool) -> Writer:
    null = b"\x00" if is_tagged else b"\xff"

    def write_nullable(out: bytearray, fields: Any) -> None:
        if fields is None:
            out += null
        else:
            out += b"\x01"
            write(out, fields)

    return write_nullable


def _field_writer(field: Field, schema: Schema, check_name: NameCheck) -> Writer:
    path = f"{schema.path}.{field.name}"
    is_nullable = field.is_nullable and not field.is_array
    if field.kind == "string":
        write = _write_string(path, schema.is_flexible, is_nullable)
        if field.name.endswith("error_message"):
            write = _write_message(write)
    elif field.kind == "bytes":
        write = _write_bytes(path, schema.is_flexible, is_nullable)
        if field.name == "records" and schema.is_flexible:
            write = _write_records(write)
    elif field.kind == "struct":
        assert field.struct is not None
        write = writer_of(field.struct, check_name)
        if is_nullable:
            write = _write_nullable_struct(write, field.tag is not None)
    else:
        write = _write_fixed(field.kind)
    return _write_array(path, schema.is_flexible, field.is_nullable, write) if field.is_array else write


def row_writer_of(field: Field, schema: Schema, check_name: NameCheck) -> Writer:
    """Make a function that appends one element of an array field to a buffer, for `EncodedRows`."""
    return _field_writer(replace(field, is_array=False, is_nullable=False), schema, check_name)


Step = Callable[[bytearray, Mapping[str, Any]], None]


def _write_run(run: tuple[Field, ...]) -> Step:
    pack = Struct(">" + "".join(FIXED_CODES[field.kind] for field in run)).pack
    defaults = tuple((field.name, field.default) for field in run)
    uuid_names = frozenset(field.name for field in run if field.kind == "uuid")

    def write_run(out: bytearray, fields: Mapping[str, Any]) -> None:
        out += pack(*[fields.get(name, default) for name, default in defaults])

    def write_run_with_uuid(out: bytearray, fields: Mapping[str, Any]) -> None:
        values = []
        for name, default in defaults:
            value = fields.get(name, default)
            values.append(_uuid_bytes(value) if name in uuid_names else value)
        out += pack(*values)

    return write_run_with_uuid if uuid_names else write_run


def _encoded_default(field: Field, write: Writer) -> bytes | None:
    """Return the encoded default of a field, or None if the field must be set."""
    default = bytearray()
    try:
        write(default, default_of(field))
    except (ValueError, StructError):
        return None
    return bytes(default)


def _write_single(field: Field, write: Writer) -> Step:
    name = field.name
    default = _encoded_default(field, write)

    def write_single(out: bytearray, fields: Mapping[str, Any]) -> None:
        if name in fields:
            write(out, fields[name])
        elif default is not None:
            # Append the default, encoded once in advance: rows often omit most of their fields.
            out += default
        else:
            # The field is absent and has no valid default. This write raises the ValueError that names the field.
            write(out, default_of(field))

    return write_single


def _write_tags(schema: Schema, check_name: NameCheck) -> Step:
    """Make a function that writes the tagged fields by ascending tag.

    As in Kafka, omit a field that has its default.
    """
    tagged: list[tuple[int, str, Writer, bytes]] = []
    for field in schema.fields:
        if field.tag is not None:
            write = _field_writer(field, schema, check_name)
            default = bytearray()
            write(default, default_of(field))
            tagged.append((field.tag, field.name, write, bytes(default)))
    tagged.sort(key=lambda row: row[0])

    def write_tags(out: bytearray, fields: Mapping[str, Any]) -> None:
        count = 0
        block = bytearray()
        for tag, name, write, default in tagged:
            if name in fields:
                value = bytearray()
                write(value, fields[name])
                if value != default:
                    count += 1
                    block += encode_unsigned_varint(tag) + encode_unsigned_varint(len(value)) + value
        out += encode_unsigned_varint(count) + block

    def write_no_tags(out: bytearray, fields: Mapping[str, Any]) -> None:
        # KIP-482: a flexible struct ends with its number of tagged fields, which is 0 without any.
        out.append(0)

    return write_tags if tagged else write_no_tags


def writer_of(schema: Schema, check_name: NameCheck) -> Writer:
    """Make a function that appends one struct of this schema from a mapping. Absent fields get their defaults."""
    steps: list[Step] = [
        _write_run(run) if len(run) > 1 else _write_single(run[0], _field_writer(run[0], schema, check_name))
        for run in fixed_runs(schema)
    ]
    if schema.is_flexible:
        steps.append(_write_tags(schema, check_name))
    known = {field.name for field in schema.fields}
    path = schema.path

    def write_struct(out: bytearray, fields: Any) -> None:
        if not fields.keys() <= known:
            for name in fields.keys() - known:
                check_name(path, name)
            # Remember names that only other versions have, so that each name is checked only once.
            known.update(fields)
        for step in steps:
            step(out, fields)

    return write_struct
