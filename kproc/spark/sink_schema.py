"""Check that the columns of a DataFrame can become records of a topic."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types

_HEADERS: Final = types.ArrayType(
    types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
)


class SchemaError(ValueError):
    """The columns of a DataFrame cannot become records. The messages are those of Spark's own connector."""


def check_schema(schema: types.StructType, topic: str | None) -> None:
    """Raise SchemaError for columns that Spark's own connector rejects, too. Ignore columns with other names."""
    columns = {each.name: each.dataType for each in schema.fields}
    if "value" not in columns:
        raise SchemaError(
            f"Required attribute 'value' not found: the columns are {', '.join(columns) or 'none'}"
        )
    if topic is None and "topic" not in columns:
        raise SchemaError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    for name in ("key", "value"):
        if name in columns and not isinstance(columns[name], (types.StringType, types.BinaryType)):
            raise SchemaError(f"{name} attribute type must be a string or binary, not {_name(columns[name])}")
    expected = (
        ("topic", types.StringType(), "string"),
        ("partition", types.IntegerType(), "int"),
        ("timestamp", types.TimestampType(), "timestamp"),
    )
    for name, kind, text in expected:
        if name in columns and not isinstance(columns[name], type(kind)):
            raise SchemaError(f"{name} attribute type must be a {text}, not {_name(columns[name])}")
    if "headers" in columns and not _are_headers(columns["headers"]):
        wanted = _HEADERS.simpleString()
        raise SchemaError(f"headers attribute type must be a {wanted}, not {_name(columns['headers'])}")


def _name(kind: types.DataType) -> str:
    return kind.simpleString()


def _are_headers(kind: types.DataType) -> bool:
    """Return True for an array of (key string, value binary). Nullability does not matter."""
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = [(each.name, type(each.dataType)) for each in kind.elementType.fields]
    return fields == [("key", types.StringType), ("value", types.BinaryType)]
