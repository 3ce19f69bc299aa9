"""librdkafka's test suite fetched and built once, as Debian's source package has it, with TLS.

Needs apt-get, dpkg-dev, make, gcc, g++, java, and Maven once for Kafka's jars; no root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.kafka_jars import fetch_jars

VERSION: Final = "2.0.2"
DEBIAN_VERSION: Final = f"{VERSION}-1"
# Written last, so that a build that was interrupted is not taken for a whole one.
BUILT_MARK = ".built-patched-3"
# Where a machine has no entries for source packages, those of the same mirrors are asked, with lists of their own.
DEBIAN_ENTRIES = Path("/etc/apt/sources.list.d/debian.sources")
# (file, line, line instead of it)
PATCHES = (
    # The suite's cluster has three brokers and its topics three replicas: one broker gets topics of one, Kafka too.
    (
        "tests/test.c",
        "rd_kafka_NewTopic_new(topicname, partition_cnt, replication_factor,",
        "rd_kafka_NewTopic_new(topicname, partition_cnt, 1,",
    ),
    # Apache Kafka 4.3 takes no smaller segments; the test is about Fetch answers, which are smaller.
    ("tests/0129-fetch_aborted_msgs.c", '"segment.bytes", "20000"', '"segment.bytes", "1048576"'),
    # They leave themselves out where clients encrypt or log in, as kafka-acls.sh would have to be told how. Here it is.
    ("tests/0115-producer_auth.cpp", "if (test_needs_auth()) {", "if (false) {"),
    ("tests/0119-consumer_auth.cpp", "if (test_needs_auth()) {", "if (false) {"),
)
# Headers, and the packages of Debian that bring them and the library that they belong to. rapidjson has no library.
NEEDED = (
    ("rapidjson/document.h", ("rapidjson-dev",)),
    ("openssl/ssl.h", ("libssl-dev", "libssl3")),
    ("curl/curl.h", ("libcurl4-openssl-dev", "libcurl4")),
    ("zstd.h", ("libzstd-dev", "libzstd1")),
)


class CannotBuild(RuntimeError):
    """The suite cannot be fetched or built here."""


def cache_dir() -> Path:
    """Where the built suite is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kproc" / f"librdkafka-{VERSION}"


def tests_dir() -> Path:
    """The suite's own directory: the runner must be started here."""
    return cache_dir() / f"librdkafka-{VERSION}" / "tests"


def missing_reason() -> str | None:
    """Why the suite cannot run here, in words for a skip; None when it can. Never fetches."""
    if not (cache_dir() / BUILT_MARK).exists():
        return f"no built suite in {cache_dir()}: scripts/librdkafka-tests --build makes one"
    return None


def build() -> None:
    """Fetches and builds the suite, unless that was done; CannotBuild says what failed."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (cache_dir() / BUILT_MARK).exists():
            return
        source = cache_dir() / f"librdkafka-{VERSION}"
        shutil.rmtree(source, ignore_errors=True)
        entries = _source_entries()
        _run("apt-get", "source", "-qq", f"librdkafka={DEBIAN_VERSION}", cwd=cache_dir(), environment=entries)
        _patch(source)
        environment = {**os.environ, **_unpacked()}
        options = ("--enable-ssl", "--enable-curl", "--enable-zstd", "--disable-lz4-ext", "--disable-gssapi")
        _run("./configure", *options, cwd=source, environment=environment)
        _run("make", "-j2", "libs", cwd=source, environment=environment)
        _run("make", "-j2", "test-runner", cwd=source / "tests", environment=environment)
        environment["KAFKA_JARS"] = str(fetch_jars())
        _run("make", "java", cwd=source / "tests", environment=environment)
        (cache_dir() / BUILT_MARK).touch()


def _unpacked() -> dict[str, str]:
    """What the compiler is told of the packages that are not installed: unpacked here, installed nowhere.

    Their headers count as system headers, not as those of CPATH: configure takes warnings for errors.
    """
    root = cache_dir() / "unpacked"
    missing = [package for header, packages in NEEDED for package in packages if not _has_header(header)]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    if missing:
        _run("apt-get", "download", "-qq", *missing, cwd=root)
    for package in sorted(root.glob("*.deb")):
        _run("dpkg", "-x", str(package), str(root), cwd=root)
    own = sysconfig.get_config_var("MULTIARCH")
    headers = f"{root}/usr/include:{root}/usr/include/{own}"
    return {"C_INCLUDE_PATH": headers, "CPLUS_INCLUDE_PATH": headers, "LIBRARY_PATH": f"{root}/usr/lib/{own}"}


def _has_header(name: str) -> bool:
    command, source = ["g++", "-E", "-x", "c++", "-"], f"#include <{name}>\n"
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    except FileNotFoundError as problem:
        raise CannotBuild("g++ is not installed") from problem
    return done.returncode == 0


def _source_entries() -> Mapping[str, str] | None:
    """The environment in which apt-get finds source packages."""
    if not DEBIAN_ENTRIES.exists() or "deb-src" in DEBIAN_ENTRIES.read_text(encoding="utf-8"):
        return None
    apt = cache_dir() / "apt"
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    entries = DEBIAN_ENTRIES.read_text(encoding="utf-8")
    (apt / "debian.sources").write_text(entries.replace("Types: deb", "Types: deb-src"), encoding="utf-8")
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/debian.sources";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State::lists "{apt}/lists";\n',
        encoding="utf-8",
    )
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _run("apt-get", "update", "-qq", cwd=apt, environment=environment)
    return environment


def _patch(source: Path) -> None:
    for name, old, new in PATCHES:
        text = (source / name).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise CannotBuild(f"{name} is not the file that this was written for")
        (source / name).write_text(text.replace(old, new), encoding="utf-8")


def _run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    sys.stdout.write(f"+ {' '.join(command)}\n")
    sys.stdout.flush()
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError as problem:
        raise CannotBuild(f"{command[0]} is not installed") from problem
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
