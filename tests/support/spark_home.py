"""Spark at a path that stays, with an archive of its classes: a session takes half of the CPU to start and stop.

The JVM accepts an archive only with the paths and times of the jars that it was written for, and those of a fresh
environment are new. So the jars and scripts are linked or copied once for each version of PySpark, to
`${XDG_CACHE_HOME:-~/.cache}/kproc/spark-<version>`, and `SPARK_HOME` names them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kproc.pipeline.session import CHECKPOINT_FILES
from tests.support.jvm import SHORT_LIVED, archived_classes

ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = ("bin", "sbin", "jars", "python")
_ARCHIVE_SECONDS: Final = 300.0
# A JVM reads them as properties of the system, so that they hold for the commands of documents, too.
_SETTINGS: Final = {
    # Each query of a test runs once, over a few rows: compiling it takes longer than it does.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Nor is there anything to learn from its first stage for its second.
    "spark.sql.adaptive.enabled": "false",
    # Hadoop starts a process `chmod` for each file, 150 of them for a query. With this manager there are 45.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
}
# A session, a worker of Python and a stream load most of what other sessions load.
_SESSION: Final = """
from pyspark.sql.functions import udf
from tests.support.spark_session import spark_session

with spark_session() as spark:
    spark.range(9).groupBy("id").count().select(udf(lambda number: number, "long")("id")).collect()
    stream = spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    stream.start().awaitTermination(60)
"""


def kept_home() -> Path:
    """Return where Spark is kept, or would be. Whoever can use it has its archive, too."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    installed = version("pyspark") if find_spec("pyspark") else "none"
    return cache / "kproc" / f"spark-{installed}"


def jvm_variables() -> dict[str, str]:
    """Return the variables by which Spark's scripts start the small JVM that works out the command, and the driver's.

    Neither JVM says a word.
    """
    short = " ".join(SHORT_LIVED)
    archive = kept_home() / "classes.jsa"
    settings = (f"-D{name}={value}" for name, value in _SETTINGS.items())
    variables = {
        "SPARK_LAUNCHER_OPTS": short,
        "SPARK_SUBMIT_OPTS": " ".join((*SHORT_LIVED, *archived_classes(archive), *settings)),
    }
    return variables | {"SPARK_HOME": str(kept_home())} if archive.exists() else variables


def keep_home() -> None:
    """Link or copy Spark and write the archive. It takes the start and stop of a session, once on a machine.

    Another version of Java ignores the archive. Remove the archive, and the next call writes it again.
    """
    found = find_spec("pyspark")
    archive = kept_home() / "classes.jsa"
    if archive.exists() or found is None or found.origin is None:
        return
    kept_home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=kept_home().parent) as directory:
        if not kept_home().exists():
            for part in _PARTS:
                source = Path(found.origin).parent / part
                shutil.copytree(source, Path(directory) / "home" / part, copy_function=_link_or_copy)
            with suppress(OSError):  # Another run was first.
                (Path(directory) / "home").rename(kept_home())
        written = Path(directory) / archive.name
        environment = {
            **os.environ,
            "SPARK_HOME": str(kept_home()),
            "SPARK_SUBMIT_OPTS": " ".join(
                (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={written}", "-Xlog:disable")
            ),
        }
        # The session's process can end before its JVM has written the archive. The pipes close when both have ended.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", _SESSION],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=_ARCHIVE_SECONDS,
                check=False,
            )
            if written.exists():
                written.replace(archive)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # On another file system.
        shutil.copy2(source, target)
