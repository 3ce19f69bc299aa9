"""Schemas of messages, and the functions built from them that read (decode) messages.

A Schema is the table of fields of one version of a message. `reader_of` makes a function of it by nesting closures,
`schema_writer.py` makes writers in the same way, and `schema_steps.py` makes generators for messages with many rows.
Values are plain: dicts by field name, lists, str, bytes, int, float, bool and None. A UUID is 16 bytes.

    array      int32 count, flexible: unsigned varint of count + 1; -1 or 0 is null
    string     int16 length, flexible: unsigned varint of length + 1; -1 or 0 is null
    bytes      int32 length, flexible: unsigned varint of length + 1; -1 or 0 is null
    struct     its fields in order, flexible: then tagged fields; nullable: int8 in front, negative is null; in a tagged
               field 0 is null

Readers trust no input. They compare a length with the remaining bytes before they slice, and a count with the number of
smallest elements that could still follow. Besides ProtocolError, a reader raises struct.error, UnicodeDecodeError, and
IndexError from varints. codec.py turns these into ProtocolError once per message, because a try block in every reader
would cost as much as the reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from kproc.common.errors import ProtocolError
from kproc.wire.primitives import (
    ELEMENTS_MAX,
    INT8,
    INT16,
    INT32,
    STRING_BYTES_MAX,
    check_tag_count,
    read_compact_length,
    read_unsigned_varint,
    skip_tagged_fields,
)

Fields = dict[str, Any]
Reader = Callable[[bytes, int], tuple[Any, int]]

FIXED_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of one version. `kind` names a fixed-width type, "string", "bytes" or "struct"."""

    name: str
    kind: str
    is_array: bool = False
    is_nullable: bool = False
    tag: int | None = None
    default: Any = None
    struct: Schema | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A struct of one version. `path` is the path of the struct in the message, for error messages and checks."""

    path: str
    is_flexible: bool
    fields: tuple[Field, ...]


def default_of(field: Field) -> Any:
    """Return the default of a field. A list or dict is newly created, so that messages do not share it."""
    if field.is_array:
        return None if field.default is None else []
    if field.kind == "struct" and field.default is not None:
        assert field.struct is not None
        return {inner.name: default_of(inner) for inner in field.struct.fields}
    return field.default


def _bytes_min(field: Field, is_flexible: bool) -> int:
    """Return the smallest number of bytes of an element, to check an array's count against the remaining bytes."""
    if field.kind in FIXED_CODES:
        return Struct(">" + FIXED_CODES[field.kind]).size
    if field.kind == "struct":
        assert field.struct is not None
        # Count an empty struct as one byte. Otherwise a client could claim any number of empty structs in no bytes.
        return max(1, _struct_bytes_min(field.struct))
    if is_flexible:
        return 1
    return 2 if field.kind == "string" else 4


def _struct_bytes_min(schema: Schema) -> int:
    total = int(schema.is_flexible)
    for field in schema.fields:
        if field.tag is None:
            if field.is_array:
                total += 1 if schema.is_flexible else 4
            elif field.kind == "struct" and field.is_nullable:
                total += 1
            else:
                total += _bytes_min(field, schema.is_flexible)
    return total


# ---- reading -----------------------------------------------------------------------------------------------


def _null_refused(path: str) -> ProtocolError:
    return ProtocolError(f"{path} must not be null")


def _legacy_string_length(data: bytes, position: int) -> tuple[int, int]:
    return INT16.unpack_from(data, position)[0], position + 2


def _legacy_length(data: bytes, position: int) -> tuple[int, int]:
    return INT32.unpack_from(data, position)[0], position + 4


def _string_reader(path: str, is_flexible: bool, is_nullable: bool) -> Reader:
    read_length = read_compact_length if is_flexible else _legacy_string_length

    def read_string(data: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(data, position)
        if length < 0:
            if is_nullable and length == -1:
                return None, position
            raise _null_refused(path)
        end = position + length
        # Reject compact strings above 32767 bytes, although KIP-482 allows 32-bit lengths, because non-compact fields
        # of records and responses could not hold them.
        if end > len(data) or length > STRING_BYTES_MAX:
            possible = min(len(data) - position, STRING_BYTES_MAX)
            raise ProtocolError(
                f"{path}: string of {length} bytes, but at most {possible} remain or are allowed"
            )
        return data[position:end].decode(), end

    def read_compact_string(data: bytes, position: int) -> tuple[Any, int]:
        # Most strings are null or shorter than 127 bytes, so that one byte has their length + 1: the distance to their
        # end. All others are left to `read_string`.
        distance = data[position]
        end = position + distance
        if 0 < distance < 128 and end <= len(data):
            return data[position + 1 : end].decode(), end
        if distance == 0 and is_nullable:
            return None, position + 1
        return read_string(data, position)

    return read_compact_string if is_flexible else read_string


def _bytes_reader(path: str, is_flexible: bool, is_nullable: bool) -> Reader:
    read_length = read_compact_length if is_flexible else _legacy_length

    def read_bytes(data: bytes, position: int) -> tuple[Any, int]:
        length, position = read_length(data, position)
        if length < 0:
            if is_nullable and length == -1:
                return None, position
            raise _null_refused(path)
        end = position + length
        if end > len(data):
            raise ProtocolError(f"{path}: {length} bytes, but only {len(data) - position} remain")
        return data[position:end], end

    return read_bytes


def _fixed_reader(kind: str) -> Reader:
    fixed = Struct(">" + FIXED_CODES[kind])
    unpack, size = fixed.unpack_from, fixed.size

    def read_fixed(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read_fixed


def fixed_items_reader(kind: str) -> Callable[[bytes, int, int], tuple[list[Any], int]]:
    """Make a function that reads all elements of an array of a fixed-width type at once."""
    code = FIXED_CODES[kind]
    size = Struct(">" + code).size

    def read_items(data: bytes, position: int, count: int) -> tuple[list[Any], int]:
        end = position + count * size
        if kind == "uuid":
            # Read UUIDs by slicing: in a struct format the number before `s` is a length and not a count, so one unpack
            # call cannot read several UUIDs.
            return [data[at : at + size] for at in range(position, end, size)], end
        return list(Struct(f">{count}{code}").unpack_from(data, position)), end

    return read_items


def _items_reader(read: Reader) -> Callable[[bytes, int, int], tuple[list[Any], int]]:
    def read_items(data: bytes, position: int, count: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, position = read(data, position)
            items.append(item)
        return items, position

    return read_items


def count_reader(field: Field, path: str, is_flexible: bool) -> Callable[[bytes, int], tuple[int, int]]:
    """Make a function that reads the count of an array, -1 for null, and compares it with the remaining bytes."""
    read_count = read_compact_length if is_flexible else _legacy_length
    bytes_min = _bytes_min(field, is_flexible)
    is_nullable = field.is_nullable

    def read_checked_count(data: bytes, position: int) -> tuple[int, int]:
        count, position = read_count(data, position)
        if count < 0 and not (is_nullable and count == -1):
            raise _null_refused(path)
        # Compare the count with the remaining bytes before any allocation: a request of 20 bytes can claim two billion
        # elements.
        if count * bytes_min > len(data) - position:
            raise ProtocolError(f"{path}: {count} elements cannot fit into {len(data) - position} bytes")
        if count > ELEMENTS_MAX:
            raise ProtocolError(f"{path}: {count} elements; the limit is {ELEMENTS_MAX}")
        return count, position

    return read_checked_count


def _array_reader(field: Field, path: str, is_flexible: bool, read: Reader) -> Reader:
    read_count = count_reader(field, path, is_flexible)
    read_items = fixed_items_reader(field.kind) if field.kind in FIXED_CODES else _items_reader(read)
    has_null_byte = is_flexible and field.is_nullable

    def read_array(data: bytes, position: int) -> tuple[Any, int]:
        # A heartbeat that reports nothing new has null in place of each array.
        if has_null_byte and data[position] == 0:
            return None, position + 1
        count, position = read_count(data, position)
        return (None, position) if count < 0 else read_items(data, position, count)

    return read_array


def _nullable_struct_reader(read: Reader, is_tagged: bool) -> Reader:
    # A nullable struct begins with a byte: 1 if present; for null -1, or 0 in a tagged field.
    present_min = 1 if is_tagged else 0

    def read_nullable(data: bytes, position: int) -> tuple[Any, int]:
        if INT8.unpack_from(data, position)[0] < present_min:
            return None, position + 1
        return read(data, position + 1)

    return read_nullable


def field_reader(field: Field, schema: Schema) -> Reader:
    path = f"{schema.path}.{field.name}"
    is_nullable = field.is_nullable and not field.is_array
    if field.kind == "string":
        read = _string_reader(path, schema.is_flexible, is_nullable)
    elif field.kind == "bytes":
        read = _bytes_reader(path, schema.is_flexible, is_nullable)
    elif field.kind == "struct":
        assert field.struct is not None
        read = reader_of(field.struct)
        if is_nullable:
            read = _nullable_struct_reader(read, field.tag is not None)
    else:
        read = _fixed_reader(field.kind)
    return _array_reader(field, path, schema.is_flexible, read) if field.is_array else read


def tags_reader(schema: Schema) -> Callable[[bytes, int, Fields], int]:
    """Make a function that reads tagged fields into the struct's dict. It skips unknown tags, as KIP-482 requires."""
    tagged = [field for field in schema.fields if field.tag is not None]
    readers = {field.tag: (field.name, field_reader(field, schema)) for field in tagged}

    def read_tags(data: bytes, position: int, fields: Fields) -> int:
        for field in tagged:
            # First set the defaults of all tagged fields, so that callers find every field in the dict.
            fields[field.name] = default_of(field)
        if data[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(data, position)
        check_tag_count(count)
        for _ in range(count):
            tag, position = read_unsigned_varint(data, position)
            size, position = read_unsigned_varint(data, position)
            end = position + size
            if end > len(data):
                raise ProtocolError(
                    f"{schema.path}: tagged field {tag} of {size} bytes runs past the end of the message"
                )
            known = readers.get(tag)
            if known is not None:
                name, read = known
                fields[name], position = read(data, position)
                # Raise if the value does not end where the tag's size says: the client is wrong, and decoding would
                # continue at a wrong position.
                if position != end:
                    raise ProtocolError(
                        f"{schema.path}.{name}: the value does not fill its tagged field of {size} bytes"
                    )
            position = end
        return position

    def skip_tags(data: bytes, position: int, fields: Fields) -> int:
        if data[position] == 0:
            return position + 1
        return skip_tagged_fields(data, position)

    return read_tags if tagged else skip_tags


def fixed_runs(schema: Schema) -> list[tuple[Field, ...]]:
    """Return the untagged fields in order, grouped so that one struct call handles adjacent fields of fixed width."""
    runs: list[tuple[Field, ...]] = []
    can_join = False
    for field in schema.fields:
        if field.tag is not None:
            continue
        joins = not field.is_array and field.kind in FIXED_CODES
        # Group adjacent fields of fixed width, because one struct call for all of them costs as much as for one.
        if joins and can_join:
            runs[-1] += (field,)
        else:
            runs.append((field,))
        can_join = joins
    return runs


def run_reader(run: tuple[Field, ...]) -> Callable[[bytes, int, Fields], int]:
    fixed = Struct(">" + "".join(FIXED_CODES[field.kind] for field in run))
    names = tuple(field.name for field in run)
    unpack, size = fixed.unpack_from, fixed.size

    def read_run(data: bytes, position: int, fields: Fields) -> int:
        fields.update(zip(names, unpack(data, position), strict=True))
        return position + size

    return read_run


def single_reader(field: Field, schema: Schema) -> Callable[[bytes, int, Fields], int]:
    read = field_reader(field, schema)
    name = field.name

    def read_single(data: bytes, position: int, fields: Fields) -> int:
        fields[name], position = read(data, position)
        return position

    return read_single


def reader_of(schema: Schema) -> Reader:
    """Make a function that reads one struct of this schema.

    The function returns (dict of all fields, position after it).
    """
    # (name, function): with a name the function reads the value of this field, without one it adds fields to the dict.
    steps: list[tuple[str | None, Callable[..., Any]]] = [
        (run[0].name, field_reader(run[0], schema)) if len(run) == 1 else (None, run_reader(run))
        for run in fixed_runs(schema)
    ]
    if schema.is_flexible:
        steps.append((None, tags_reader(schema)))

    def read_struct(data: bytes, position: int) -> tuple[Fields, int]:
        fields: Fields = {}
        # This loop stores single fields itself. A function for each would cost a tenth of the reading.
        for name, read in steps:
            if name is None:
                position = read(data, position, fields)
            else:
                fields[name], position = read(data, position)
        return fields, position

    return read_struct
