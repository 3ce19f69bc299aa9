"""Jars of Spark's own Kafka connector, for `connector = "kafka"`: from spark.jars or the local Maven repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kproc.pipeline.errors import PipelineError

CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
# (directory in a Maven repository, artifact) of the connector, and of those of its dependencies that PySpark lacks.
ARTIFACTS: Final = (
    ("org/apache/spark", CONNECTOR),
    ("org/apache/spark", "spark-token-provider-kafka-0-10_2.13"),
    ("org/apache/kafka", "kafka-clients"),
    ("org/apache/commons", "commons-pool2"),
    ("com/google/code/findbugs", "jsr305"),
)
_OPTIONAL: Final = "jsr305"


def stock_jars(given: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the connector's jars that the paths `given` lack, from the local Maven repository.

    Return none if they have the connector itself. Raises PipelineError, with advice, if the repository lacks a jar.
    """
    names = [path.rpartition("/")[2] for path in given]
    if any(name.startswith(CONNECTOR) for name in names):
        return []
    repository = Path(environ.get("HOME") or Path.home()) / ".m2" / "repository"
    answer, missing = [], []
    for directory, artifact in ARTIFACTS:
        if any(name.startswith(artifact) for name in names):
            continue
        jar = _newest(repository / directory / artifact, artifact)
        if jar is not None:
            answer.append(str(jar))
        elif artifact != _OPTIONAL:
            missing.append(artifact)
    if missing:
        raise PipelineError(
            f'connector = "kafka" needs jars that are neither in spark.jars nor in {repository}: '
            f'{", ".join(missing)}; name a directory that has them ([spark] jars = "dir"), or let Spark fetch them '
            f'([spark] conf."spark.jars.packages" = "org.apache.spark:{CONNECTOR}:{_pyspark_version()}")'
        )
    return answer


def _newest(directory: Path, artifact: str) -> Path | None:
    """Return the newest jar that fits this PySpark, or the newest of all if none fits, or None without any."""
    found = [
        (_version(path.parent.name), path)
        for path in directory.glob(f"*/{artifact}-*.jar")
        if path.name == f"{artifact}-{path.parent.name}.jar"
    ]
    # Exclude versions from these on. The connector was compiled against kafka-clients 3, and version 4 has another
    # binary interface.
    limits = {
        "kafka-clients": (4,),
        ARTIFACTS[0][1]: _above(_pyspark_version()),
        ARTIFACTS[1][1]: _above(_pyspark_version()),
    }
    limit = limits.get(artifact)
    fitting = [item for item in found if limit is None or item[0] < limit]
    return max(fitting or found)[1] if found else None


def _above(version: str) -> tuple[int, ...]:
    major, minor, *_ = _version(version)
    return (major, minor + 1)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _pyspark_version() -> str:
    import pyspark

    return pyspark.__version__
