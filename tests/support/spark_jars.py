"""The jars of Spark's own Kafka connector: found in the local Maven repository, or fetched once through Maven's client.

Spark's `--packages` does not use the machine's Maven settings, `mvn` does. The parts are fetched one by one,
because their poms ask for a Hadoop and a Spark that PySpark brings already. Whoever only wants to know whether
they are there calls `missing_reason()`, which never fetches.

    python -m tests.support.spark_jars        # fetch, print the jars
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from kproc.pipeline.errors import PipelineError
from kproc.pipeline.stock import stock_jars

ARTIFACTS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
    "com.google.code.findbugs:jsr305:3.0.0",
)
FETCH_SECONDS_MAX: Final = 300.0


def jars() -> list[str]:
    """The jars; none where they are not all there."""
    try:
        return stock_jars([], os.environ)
    except PipelineError:
        return []


def missing_reason() -> str | None:
    """Why the stock connector cannot run here, in words for a skip; None when it can."""
    if not jars():
        return "no jars of Spark's Kafka connector: `python -m tests.support.spark_jars` fetches them"
    return None


def fetch_jars() -> list[str]:
    """The jars, fetched where they are missing; RuntimeError when that is impossible."""
    if missing_reason() is not None:
        if shutil.which("mvn") is None:
            raise RuntimeError("no jars of Spark's Kafka connector and no mvn on the PATH to fetch them")
        for artifact in ARTIFACTS:
            command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(
                    f"mvn could not fetch {artifact}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
    return stock_jars([], os.environ)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{jar}\n" for jar in fetch_jars()))
