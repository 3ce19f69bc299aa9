"""The jars of a real Apache Kafka: found in the cache, or fetched once through Maven's own client.

The Java tools test our broker and the real broker is the yardstick of `bench/`, so both need the same jars.
They live in `${XDG_CACHE_HOME:-~/.cache}/kproc/kafka-<version>/lib`. Which registry they come from is the
business of the machine's Maven settings: nothing here names one. Whoever only wants to know whether the jars
are there calls `missing_reason()`, which never fetches: a test run must not start a download by surprise.

    python -m tests.support.kafka_jars        # fetch, print the directory
    python -m tests.support.kafka_jars --streams      # those of Kafka Streams, too
    python -m tests.support.kafka_jars --if-possible  # all that are missing; one line where that cannot be
    KPROC_KAFKA_VERSION=4.3.0 python -m tests.support.kafka_jars  # those of the other version
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.jvm import SHORT_LIVED, archived_classes

Artifacts = tuple[tuple[str, str, str], ...]

# The version that the Java tests and the yardsticks of bench/ run: KPROC_KAFKA_VERSION=4.3.0 chooses the other one.
KAFKA_VERSION: Final = os.environ.get("KPROC_KAFKA_VERSION", "4.4.0")
# slf4j-nop silences the tools: with no binding each prints a warning that would end up in compared output.
ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
)
# What Kafka Streams needs beside them, on its own: the rest is among them.
STREAMS_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.rocksdb", "rocksdbjni", "10.1.3"),
)
# Cold caches fetch about 90 files one after the other through a proxy.
FETCH_SECONDS_MAX: Final = 900.0
# Written last, so that a fetch that was killed half-way is not taken for a complete one.
COMPLETE_MARK: Final = ".complete"


def jars_dir(version: str = KAFKA_VERSION) -> Path:
    """Return where the jars of a version are, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kproc" / f"kafka-{version}" / "lib"


def class_archive() -> Path:
    """Where the archive of Kafka's classes is, or would be. A JVM that has it starts in two thirds of the CPU."""
    return jars_dir().with_name("classes.jsa")


def short_lived_jvm() -> tuple[str, ...]:
    """Return the options of a JVM that runs Kafka or its tools with the class path of `classpath()`."""
    return (*SHORT_LIVED, *archived_classes(class_archive()))


def streams_dir() -> Path:
    """Where the jars of Kafka Streams are, or would be."""
    return jars_dir().with_name("streams")


def missing_reason() -> str | None:
    """Why Java tools cannot run here, in words for a skip; None when they can. Never fetches."""
    if shutil.which("java") is None:
        return "no java on the PATH"
    if not (jars_dir() / COMPLETE_MARK).exists():
        return f"no Kafka jars in {jars_dir()}: `python -m tests.support.kafka_jars` fetches them"
    return None


def streams_missing_reason() -> str | None:
    """Why Kafka Streams cannot run here, in words for a skip; None when it can. Never fetches."""
    reason = missing_reason()
    if reason is None and not (streams_dir() / COMPLETE_MARK).exists():
        command = "python -m tests.support.kafka_jars --streams"
        return f"no jars of Kafka Streams in {streams_dir()}: `{command}` fetches them"
    return reason


def classpath() -> str:
    """The class path of every jar, for `java -cp`."""
    return f"{jars_dir()}/*"


def streams_classpath() -> str:
    """The class path of every jar and of those of Kafka Streams."""
    return f"{classpath()}:{streams_dir()}/*"


def fetch_jars() -> Path:
    """The directory of the jars, fetched when not complete; raises RuntimeError when that is impossible."""
    return _fetch(jars_dir(), ARTIFACTS)


def fetch_streams_jars() -> Path:
    """The directory of the jars of Kafka Streams, fetched when not complete, as fetch_jars does."""
    return _fetch(streams_dir(), STREAMS_ARTIFACTS, "-DexcludeTransitive=true")


def _fetch(lib: Path, artifacts: Artifacts, *options: str) -> Path:
    if (lib / COMPLETE_MARK).exists():
        return lib
    if shutil.which("mvn") is None:
        raise RuntimeError(f"no Kafka jars in {lib} and no mvn on the PATH to fetch them")
    lib.parent.mkdir(parents=True, exist_ok=True)
    with open(lib.parent / ".lock", "w") as lock:
        # Two test runs that start together must not copy into one directory.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (lib / COMPLETE_MARK).exists():
            _copy_dependencies(lib, artifacts, options)
    return lib


def _copy_dependencies(lib: Path, artifacts: Artifacts, options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="kproc-pom-") as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(_pom(artifacts), encoding="utf-8")
        command = ["mvn", "-q", "-B", "-f", str(pom)]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={lib}", *options]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"mvn could not fetch the Kafka jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    first = f"{artifacts[0][1]}-{artifacts[0][2]}.jar"
    if not (lib / first).exists():
        raise RuntimeError(f"mvn succeeded but left no {first} in {lib}")
    (lib / COMPLETE_MARK).touch()


def _pom(artifacts: Artifacts) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>kproc.test</groupId>"
        "<artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def archive_classes() -> None:
    """Write the archive of the classes that a broker of Apache Kafka loads. It takes a start and a stop of one.

    Another version of Java ignores the archive. Remove it, and the next call writes it again.
    """
    if class_archive().exists():
        return
    # Imported here: the peer needs the jars of this module.
    from bench.peers.kafka import KafkaPeer

    with tempfile.TemporaryDirectory(prefix="kproc-archive-", dir=class_archive().parent) as directory:
        archive = Path(directory) / class_archive().name
        peer = KafkaPeer(jvm=("-Xmx512m", *SHORT_LIVED, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"))
        with peer:
            peer.end()
        if archive.exists():
            archive.replace(class_archive())


def fetch_if_possible() -> str | None:
    """Fetch all jars that are missing; why not, in one line, where Java or Maven is missing, or Maven fails."""
    from tests.support import spark_jars

    if shutil.which("java") is None:
        return "no java on the PATH"
    try:
        fetch_jars()
        fetch_streams_jars()
        spark_jars.fetch_jars()
        archive_classes()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())[:300]
    return None


def main(arguments: Sequence[str]) -> int:
    """Fetch the jars, as the arguments say."""
    if "--if-possible" in arguments:
        reason = fetch_if_possible()
        if reason is not None:
            sys.stdout.write(f"no jars of Apache Kafka, so the tests of its Java tools are skipped: {reason}\n")
        return 0
    sys.stdout.write(f"{fetch_jars()}\n")
    if "--streams" in arguments:
        sys.stdout.write(f"{fetch_streams_jars()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
