"""Encodes and decodes every API in every version, as plain dicts.

Field names are those of the package kio: Kafka's names in snake_case, without the suffix `_ms`. Values are plain: a
UUID is 16 bytes, error codes are ints, times are ints in milliseconds. Decoding gives exactly the fields of the
version. Encoding ignores fields that the version lacks and fills in defaults, so that a handler is written once for all
versions. A field name that no version has raises ValueError, because a typo would otherwise go unnoticed.

kio supplies the schemas (schema_source.py), in a table that is read at the start (schema_table.py). kio's readers and
writers are not used. They raise KeyError for an unknown tagged field, which must be skipped, reject writable buffers,
know error codes only as a closed enum, and build dataclasses instead of dicts.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cache
from struct import error as StructError
from typing import Any, Literal

from kproc.common.errors import ErrorCode, ProtocolError
from kproc.wire.file_range import FileRange, size_bytes
from kproc.wire.header import ApiKey, encode_request_header, encode_response_header, parse_response_header
from kproc.wire.primitives import INT32, Buffer
from kproc.wire.schema import Field, Reader, Schema, reader_of
from kproc.wire.schema_steps import RowBudget, StepReader, step_reader_of
from kproc.wire.schema_table import find_schema, supported_versions
from kproc.wire.schema_writer import MessageInPieces, NameCheck, Writer, row_writer_of, writer_of

Direction = Literal["request", "response"]


@cache
def schema_of(api_key: int, version: int, direction: Direction) -> Schema:
    """Return the schema of a request's or response's body. Raises ProtocolError if the version does not exist."""
    schema = find_schema(api_key, version, direction)
    if schema is None:
        raise ProtocolError(f"API key {int(api_key)} has no version {version}")
    return schema


@cache
def _reader(api_key: int, version: int, direction: Direction) -> Reader:
    return reader_of(schema_of(api_key, version, direction))


@cache
def _step_reader(api_key: int, version: int) -> StepReader:
    return step_reader_of(schema_of(api_key, version, "request"))


@cache
def _names(api_key: int, version: int, direction: Direction) -> frozenset[str]:
    """Return the paths of all fields of one version, relative to the message."""
    names: set[str] = set()

    def collect(schema: Schema, prefix: str) -> None:
        for field in schema.fields:
            names.add(f"{prefix}.{field.name}")
            if field.struct is not None:
                collect(field.struct, f"{prefix}.{field.name}")

    collect(schema_of(api_key, version, direction), "")
    return frozenset(names)


@cache
def has_response_field(api_key: int, version: int, name: str) -> bool:
    """Return True if the responses of that version have a field `name` at their top level."""
    return f".{name}" in _names(api_key, version, "response")


def _is_in_any_version(api_key: int, direction: Direction, name: str) -> bool:
    """Return True if some version has a field of this name.

    Try the newest version first, which has nearly all names.
    """
    versions = reversed(supported_versions(api_key))
    return any(name in _names(api_key, version, direction) for version in versions)


def _name_check(api_key: int, direction: Direction, schema: Schema) -> NameCheck:
    def check_name(path: str, name: str) -> None:
        if not _is_in_any_version(api_key, direction, f"{path.removeprefix(schema.path)}.{name}"):
            raise ValueError(f"{path} has no field {name} in any version")

    return check_name


@cache
def _writer(api_key: int, version: int, direction: Direction) -> Writer:
    schema = schema_of(api_key, version, direction)
    return writer_of(schema, _name_check(api_key, direction, schema))


class RowSchema:
    """The rows of one array in a response: the writer of a row, and the fields that identify it."""

    __slots__ = ("identity", "write")

    def __init__(self, field: Field, write: Writer) -> None:
        self.write = write
        # Exclude error fields from a row's identity, because two rows about the same resource can have different
        # errors.
        self.identity = (
            tuple(
                each.name
                for each in field.struct.fields
                if not each.is_array and each.kind in ("string", "uuid") and each.name != "error_message"
            )
            if field.struct is not None
            else ()
        )


@cache
def response_rows(api_key: int, version: int, path: tuple[str, ...]) -> RowSchema:
    """Return the RowSchema of the array at `path` in the responses of one version."""
    schema = root = schema_of(api_key, version, "response")
    for name in path[:-1]:
        schema = _field_named(schema, name).struct or schema
    field = _field_named(schema, path[-1])
    return RowSchema(field, row_writer_of(field, schema, _name_check(api_key, "response", root)))


def _field_named(schema: Schema, name: str) -> Field:
    return next(field for field in schema.fields if field.name == name)


# ---- the codec --------------------------------------------------------------------------------------------


def _decode(read: Reader, data: bytes, position: int, what: str) -> dict[str, Any]:
    """Decode a request or a response. Raises ProtocolError if it is malformed.

    what: the message's name, for the error. For a request the error goes into the broker's log, and for a response to
    the client's user.
    """
    try:
        fields, _ = read(data, position)
    # For a truncated message unpack_from raises struct.error, and indexing a byte IndexError. Catching both here saves
    # a length check before each field.
    except (StructError, IndexError):
        raise ProtocolError(f"{what} runs past its end") from None
    except UnicodeDecodeError:
        raise ProtocolError(f"{what} contains a string that is not UTF-8") from None
    assert isinstance(fields, dict)
    return fields


def _encode(
    head: bytes, api_key: int, version: int, direction: Direction, fields: Mapping[str, Any]
) -> bytes:
    pieces = _encode_pieces(head, api_key, version, direction, fields)
    first = pieces[0]
    if len(pieces) == 1 and isinstance(first, bytes):
        return first
    whole = [each for each in pieces if isinstance(each, bytes)]
    assert len(whole) == len(pieces), "a message with records of files must be sent in pieces"
    return b"".join(whole)


def _encode_pieces(
    head: bytes, api_key: int, version: int, direction: Direction, fields: Mapping[str, Any]
) -> list[bytes | FileRange]:
    body = MessageInPieces(head)
    try:
        _writer(api_key, version, direction)(body, fields)
    except StructError as error:
        raise ValueError(f"{ApiKey(api_key).name} {direction} v{version}: {error}") from error
    pieces = body.pieces()
    # Write the frame's length last: it is in front of the frame, but known only when all pieces are encoded.
    first = pieces[0]
    assert isinstance(first, bytes)
    pieces[0] = INT32.pack(size_bytes(pieces)) + first
    return pieces


def prepare(api_key: int, version: int) -> None:
    """Build and cache the reader and writer of an API version now instead of at its first request."""
    _reader(api_key, version, "request")
    _writer(api_key, version, "response")
    # Encoding checks unknown field names against the newest version first, so build that version's table now, too.
    _names(api_key, supported_versions(api_key)[-1], "response")


def decode_request(api_key: int, version: int, body: Buffer) -> dict[str, Any]:
    """Decode the body of a request. Ignores bytes after the body, as Kafka does. Raises ProtocolError.

    Copies the body first, so that nothing in the result refers to a ring or an arena: a parked request may keep it.
    """
    read = _reader(api_key, version, "request")
    return _decode(read, bytes(body), 0, f"request of API key {int(api_key)} v{version}")


def decode_request_by_steps(
    api_key: int, version: int, body: Buffer, budget: RowBudget
) -> Generator[None, None, dict[str, Any]]:
    """Decode as `decode_request` does, but yield after as many rows as the RowBudget allows for one step.

    Copies the body first. The generator returns the decoded request.
    """
    return _decode_by_steps(_step_reader(api_key, version), bytes(body), budget, int(api_key), version)


def _decode_by_steps(
    read: StepReader, data: bytes, budget: RowBudget, api_key: int, version: int
) -> Generator[None, None, dict[str, Any]]:
    try:
        fields, _ = yield from read(data, 0, budget)
    except (StructError, IndexError):
        raise ProtocolError(f"request of API key {api_key} v{version} runs past its end") from None
    except UnicodeDecodeError:
        raise ProtocolError(
            f"request of API key {api_key} v{version} contains a string that is not UTF-8"
        ) from None
    assert isinstance(fields, dict)
    return fields


def encode_response(api_key: int, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    """Encode the whole frame of a response: length, header, body. Raises ValueError for wrong fields."""
    head = encode_response_header(api_key, version, correlation_id)
    return _encode(head, api_key, version, "response", fields)


def encode_response_in_pieces(
    api_key: int, version: int, correlation_id: int, fields: Mapping[str, Any]
) -> list[bytes | FileRange]:
    """Encode as `encode_response` does. Return several pieces for large EncodedRows or FileRecords, otherwise one."""
    head = encode_response_header(api_key, version, correlation_id)
    return _encode_pieces(head, api_key, version, "response", fields)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, fields: Mapping[str, Any]
) -> bytes:
    """Encode the whole frame of a request: length, header, body. Raises ValueError for wrong fields."""
    head = encode_request_header(api_key, version, correlation_id, client_id)
    return _encode(head, api_key, version, "request", fields)


def decode_response(api_key: int, version: int, frame_body: Buffer) -> tuple[int, dict[str, Any]]:
    """Decode a response frame without its length. Return (correlation id, fields). Raises ProtocolError."""
    data = bytes(frame_body)
    read = _reader(api_key, version, "response")
    correlation_id, position = parse_response_header(api_key, version, data)
    return correlation_id, _decode(read, data, position, f"response of API key {int(api_key)} v{version}")


def api_versions_fallback(correlation_id: int, lowest: int, highest: int) -> bytes:
    """Encode the response to an ApiVersions request of a version that is not served (KIP-511).

    It always has version 0, which every client can read, with UNSUPPORTED_VERSION and the range of ApiVersions itself,
    so that the client can try again.
    """
    row = {
        "api_key": int(ApiKey.API_VERSIONS),
        "min_version": lowest,
        "max_version": highest,
    }
    fields = {"error_code": int(ErrorCode.UNSUPPORTED_VERSION), "api_keys": [row]}
    return encode_response(ApiKey.API_VERSIONS, 0, correlation_id, fields)
