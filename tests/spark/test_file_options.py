"""The options of files that a specification may have are all that the newest Spark has, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.pipeline.file_options import option_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = "org.apache.spark.sql"
OBJECTS = (
    "catalyst.csv.CSVOptions",
    "catalyst.json.JSONOptions",
    "catalyst.FileSourceOptions",
    "execution.datasources.FileIndexOptions",
    "execution.datasources.parquet.ParquetOptions",
)
# Spark has no list of these: FileStreamOptions, FileStreamSink, JSONOptions (its parser's limits), the writers.
READ_BY_NAME = """
    maxFilesPerTrigger maxBytesPerTrigger maxFileAge latestFirst fileNameOnly sourceArchiveDir cleanSource
    maxCachedFiles discardCachedInputRatio retention maxNestingDepth maxNumLen maxStringLen maxRecordsPerFile
    partitionOverwriteMode
""".lower().split()
WITH_A_DOT = {"parquet.compression"}


def names_of(spark: SparkSession, name: str) -> set[str]:
    """The options that a Scala object declares: each is a method in capitals that gives the name."""
    java = spark._jvm.java.lang.Class  # type: ignore[union-attr]
    found = java.forName(f"{PACKAGE}.{name}$")
    module = found.getField("MODULE$").get(None)
    return {
        str(method.invoke(module, None)).lower()
        for method in found.getDeclaredMethods()
        if method.getName().isupper() and str(method.getReturnType().getSimpleName()) == "String"
    }


def test_file_option_names_equal_spark(spark: SparkSession) -> None:
    declared = set().union(*(names_of(spark, each) for each in OBJECTS))
    assert {"header", "multiline", "mergeschema", "pathglobfilter"} <= declared
    assert option_names() == (declared - WITH_A_DOT) | set(READ_BY_NAME)
