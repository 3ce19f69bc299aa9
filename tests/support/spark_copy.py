"""A Spark job that copies a topic to another, to be killed: `python -m tests.support.spark_copy '{"bootstrap": ...}'`.

It runs in one JVM or on a cluster of its own (`local-cluster`: a master, a worker and executors as JVMs), goes on from
its checkpoint, and ends with 0 once everything that was in the topic when it started has been written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

BATCH_RECORDS = 5_000


def own_spark_home(directory: Path) -> Path:
    """Spark's installation seen through links: the workers' directories go there, not into the installation."""
    import pyspark

    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work" and not (home / entry.name).exists():
            (home / entry.name).symlink_to(entry)
    return home


def main(arguments: dict[str, str]) -> None:
    """Copy until there is nothing left."""
    directory = Path(arguments["directory"])
    if arguments["master"].startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(own_spark_home(directory))
    from pyspark.errors import StreamingQueryException

    from tests.support.spark_session import JVM_OPTIONS, spark_session

    settings = {
        "spark.master": arguments["master"],
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # For the script that starts their Python workers.
        "spark.executorEnv.KPROC_WORKER_PYTHON": sys.executable,
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
        # Executors would copy them at every start.
        "spark.jars": "",
        # As often as the test kills, and more.
        "spark.task.maxFailures": "50",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.local.dir": str(directory / "scratch"),
    }
    with spark_session(**settings) as spark:
        spark.sparkContext.setLogLevel(arguments.get("log_level", "ERROR"))
        rows = (
            spark.readStream.format("kproc")
            .option("kafka.bootstrap.servers", arguments["bootstrap"])
            .option("subscribe", arguments["source"])
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", arguments.get("batch_records", str(BATCH_RECORDS)))
            .load()
        )
        query = (
            rows.select("key", "value")
            .writeStream.format("kproc")
            .option("kafka.bootstrap.servers", arguments["bootstrap"])
            .option("topic", arguments["sink"])
            .option("delivery", arguments.get("delivery", "at-least-once"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            sys.exit(f"the query ended: {error}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
