"""topic_sink: create a function for `foreachBatch` that writes each micro-batch to topics exactly once.

Spark allows no sink in Python to use the output mode `update`: it rejects `format("kproc")` before it calls kproc.
`foreachBatch` allows every output mode and has a number for each batch. The query's id and that number identify a batch
that runs again, as in the sink itself (exactly_once.py).
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

    `options` are those of the sink `format("kproc")`. The default of `delivery` here is exactly-once, for readers of
    committed records; it needs a broker with transactions.

    `name` identifies the query at the broker, which stores the number of the last batch under it. Default: the query's
    id and the topic. Give a name if a query writes twice to one topic, and with Spark Connect, which hides the id.

    Raises OptionError for options that cannot be used.
    """
    require_spark()
    # Import here, because Spark imports this package in every session and in six kinds of processes, which must stay
    # fast.
    from kproc.spark.option_values import OptionError
    from kproc.spark.sink_options import EXACTLY_ONCE, parse_sink_options

    given = {"kafka.bootstrap.servers": bootstrap, "delivery": EXACTLY_ONCE, **(options or {})}
    if topic is not None:
        given["topic"] = topic
    if any(option.lower() in ("txnappid", "txnversion") for option in given):
        raise OptionError(
            "topic_sink sets txnAppId and txnVersion itself; use name=... to identify the query"
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
    """Return the id of the query whose batch this is. A restart with the same checkpoint keeps it."""
    from kproc.spark.option_values import OptionError

    try:
        found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception as error:
        # With Spark Connect a session has no SparkContext, and the access raises an error of Spark's own.
        raise OptionError(f"the query's id is unknown here ({error}); give topic_sink a name") from error
    if not found:
        raise OptionError("topic_sink writes batches of foreachBatch; outside of a query give it a name")
    return str(found)
