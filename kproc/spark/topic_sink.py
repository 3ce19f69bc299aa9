"""topic_sink: a function for `foreachBatch` that writes each micro-batch to topics, exactly once.

Spark gives the output mode `update` to no sink in Python: `format("kproc")` is refused by Spark itself before kproc is
asked. `foreachBatch` takes every output mode, and its batches have numbers, so a batch that runs again is recognised by
the query's id and that number, as in the sink itself (exactly_once.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kproc.spark.requirements import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def topic_sink(
    bootstrap: str,
    topic: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes a batch's rows to `topic`, or to those of the column `topic`.

    `options` are the sink's of `format("kproc")`. Without `delivery` among them each row is written exactly once, for
    readers of committed records; that needs a broker with transactions.

    `name` is under which the broker remembers the last batch. Default: the query's id and the topic. A query that
    writes twice to one topic needs two names, and so does a session of Spark Connect, which does not tell the id.

    Raises OptionError for options that cannot be taken.
    """
    require_spark()
    # Spark imports this package in every session and in six kinds of processes: imports stay light.
    from kproc.spark.option_values import OptionError
    from kproc.spark.sink_options import EXACTLY_ONCE, parse_sink_options

    given = {"kafka.bootstrap.servers": bootstrap, "delivery": EXACTLY_ONCE, **(options or {})}
    if topic is not None:
        given["topic"] = topic
    if any(option.lower() in ("txnappid", "txnversion") for option in given):
        raise OptionError(
            "txnAppId and txnVersion are the sink's own here; name=... is what the batches go by"
        )
    parsed = parse_sink_options(given)

    def write(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("kproc").mode("append").options(**given)
        if parsed.exactly_once is not None:
            app_id = name or f"{_query_id(rows)}-{topic or 'topics'}"
            writer = writer.option("txnAppId", app_id).option("txnVersion", str(batch))
        writer.save()

    return write


def _query_id(rows: DataFrame) -> str:
    """Return the id of the query whose batch this is; it outlives restarts with the same checkpoint."""
    from kproc.spark.option_values import OptionError

    try:
        found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception as error:
        # Spark Connect has no SparkContext, and says so by an error of its own.
        raise OptionError(f"the query's id is not known here ({error}): give topic_sink a name") from error
    if not found:
        raise OptionError("topic_sink writes batches of foreachBatch; outside of a query give it a name")
    return str(found)
