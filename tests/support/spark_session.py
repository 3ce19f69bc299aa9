"""One Spark session for all tests: it takes seconds to start and half a gigabyte to keep.

python -m tests.support.spark_session       # why it cannot run here; where it can, only spark_home.py's archive
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from tests.support import spark_jars
from tests.support.jvm import SHORT_LIVED
from tests.support.spark_home import jvm_variables, keep_home
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
JVM_OPTIONS = " ".join(SHORT_LIVED)


@cache
def missing_reason() -> str | None:
    """Why Spark cannot run here, in words for a skip; None when it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        return (
            f"Spark needs Java {JAVA_MIN} or newer: there is none {f'in {home}' if home else 'on the PATH'}"
        )
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or newer, {java} is {version[1] if version else 'unknown'}"
    try:
        from kproc.spark import require_spark

        require_spark()
    except ImportError as error:
        return str(error)
    return None


@contextmanager
def spark_session(**settings: str) -> Iterator[SparkSession]:
    """A local session with two workers, and without what a test does not look at."""
    from pyspark.sql import SparkSession

    import kproc.spark
    from kproc.pipeline.session import worker_environment

    os.environ.pop("PYSPARK_PYTHON", None)
    of_interpreter = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    os.environ.update(worker_environment(os.environ))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    for name, value in jvm_variables().items():
        os.environ.setdefault(name, value)
    builder = SparkSession.builder.master("local[2]").appName("kproc-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Hadoop starts a process `chmod` for each file, and this has no files with checksums. RocksDB needs those.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        # Classes are found when the JVM starts or never: tests of Spark's own connector share this session.
        **({"spark.jars": ",".join(found)} if (found := spark_jars.jars()) else {}),
        "spark.sql.warehouse.dir": f"{os.environ.get('TMPDIR', '/tmp')}/spark-warehouse",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # The JVM has inherited them. Brokers are forked only as long as these variables are those of the fork server.
    for name, value in of_interpreter.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    spark.sparkContext.setLogLevel("OFF")
    kproc.spark.register(spark)
    gateway = spark.sparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        # Without this the JVM lives until the interpreter ends, and with it what it forked.
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()
            gateway.proc.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    why_not = missing_reason()
    if why_not is None:
        keep_home()
    else:
        sys.stdout.write(f"+ without the Spark tests: {why_not}\n")
