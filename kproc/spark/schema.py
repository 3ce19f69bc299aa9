"""The columns of a topic as a table: names and types of Spark's own Kafka connector, in its order.

Without Spark or Arrow at import: Spark imports this in six kinds of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Name -> Spark's name of its type.
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


def ddl(columns: Sequence[str] = BASE_COLUMNS) -> str:
    """The columns as Spark's DDL; the workers cannot parse it, the driver can."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


def spark_schema(columns: Sequence[str] = BASE_COLUMNS) -> StructType:
    """The columns as Spark's StructType, made by hand: `fromDDL` needs a session."""
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
    """The columns that a source with these options has."""
    with_headers = str(options.get("includeHeaders", "false")).strip().lower() == "true"
    return spark_schema(tuple(COLUMNS) if with_headers else BASE_COLUMNS)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a user's schema asks for, in its order; OptionError for what a topic has not."""
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
    if not schema.fields:
        raise OptionError("the schema has no column")
    return tuple(each.name for each in schema.fields)


def arrow_schema(columns: Sequence[str] = BASE_COLUMNS) -> Any:
    """The columns as pyarrow's Schema, exactly as Spark wants record batches: it compares the types."""
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
