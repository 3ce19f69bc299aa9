"""Columns of a topic as a table. Names, types and order are those of Spark's own Kafka connector.

Spark imports this module in six kinds of processes, so Spark and Arrow are imported in the functions that need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Spark's name of the type of each column.
COLUMNS: Final[dict[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
BASE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "headers")


def check_columns(columns: Sequence[str]) -> None:
    """Raise ValueError unless there is a column, and all columns are known."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ValueError(f"no such columns: {', '.join(unknown)}")
    if not columns:
        raise ValueError("no columns are asked for")


def spark_schema(columns: Sequence[str] = BASE_COLUMNS) -> StructType:
    """Return the columns as a StructType. It is built by hand, because `fromDDL` needs a session."""
    from pyspark.sql import types

    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    kinds: dict[str, types.DataType] = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "long": types.LongType(),
        "timestamp": types.TimestampType(),
        COLUMNS["headers"]: types.ArrayType(header),
    }
    return types.StructType([types.StructField(name, kinds[COLUMNS[name]]) for name in columns])


def schema_for(options: Mapping[str, str]) -> StructType:
    """Return the columns of a source with these options: with `headers` if includeHeaders=true."""
    with_headers = str(options.get("includeHeaders", "false")).strip().lower() == "true"
    return spark_schema(tuple(COLUMNS) if with_headers else BASE_COLUMNS)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the column names of a user's schema, in its order. Raise OptionError for an unknown name or wrong type."""
    from kproc.spark.option_values import OptionError

    every = {each.name: each.dataType for each in spark_schema(tuple(COLUMNS)).fields}
    for each in schema.fields:
        if each.name not in every:
            raise OptionError(
                f"a topic has no column {each.name}, only {', '.join(every)}: "
                "select and cast what is in the value after load()"
            )
        wanted, given = every[each.name].simpleString(), each.dataType.simpleString()
        if wanted != given:
            raise OptionError(f"column {each.name} is {wanted}, not {given}: cast it after load()")
        # Spark compares the types of Arrow's batches with the schema, `not null` included.
        if not each.nullable or each.dataType != every[each.name]:
            raise OptionError(f"column {each.name} and what is in it can be null: leave out `not null`")
    if not schema.fields:
        raise OptionError("the schema has no column")
    if len(set(schema.names)) < len(schema.names):
        raise OptionError(f"the schema has a column twice: {', '.join(schema.names)}")
    return tuple(each.name for each in schema.fields)


def arrow_schema(columns: Sequence[str] = BASE_COLUMNS) -> Any:
    """Return the columns as a pyarrow Schema. Spark compares the types of record batches with exactly these."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        COLUMNS["headers"]: pa.list_(header),
    }
    return pa.schema([(name, kinds[COLUMNS[name]]) for name in columns])
