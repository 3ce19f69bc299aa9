"""librdkafka's own integration tests, as Debian's source package has them, against kproc.

    scripts/librdkafka-tests                        fetch, build, run all of them against a kproc of its own
    scripts/librdkafka-tests 0018 0030_offset_commit  these
    scripts/librdkafka-tests --transport thread
    scripts/librdkafka-tests --kafka                against Apache Kafka: what the suite expects there
    scripts/librdkafka-tests --bootstrap HOST:PORT  against a broker that runs: num.partitions=4 is assumed

Needs apt-get, dpkg-dev, make, gcc, g++, java, and Maven once for Kafka's jars. Built in
`~/.cache/kproc/librdkafka-<version>`. Tests with the scenario "noautocreate" run against a second broker,
which creates no topics by itself, that of SASL against a third one. Exits with 1 if a test did not end as
`librdkafka.toml` says.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance import brokers, outcomes
from tests.conformance.outcomes import FAILS, PASSES, SKIPS, Outcome
from tests.support.java_tools import JVM
from tests.support.kafka_jars import fetch_jars, jars_dir

VERSION: Final = "2.0.2"
DEBIAN_VERSION: Final = f"{VERSION}-1"
EXPECTATIONS = Path(__file__).with_name("librdkafka.toml")
# Written last, so that a build that was interrupted is not taken for a whole one.
BUILT_MARK = ".built-patched-2"
# Where a machine has no entries for source packages, those of the same mirrors are asked, with lists of their own.
DEBIAN_ENTRIES = Path("/etc/apt/sources.list.d/debian.sources")
# The longest takes 65 s alone; the runner's own limits, which end a test by abort(), are below this, too.
TEST_SECONDS_MAX = 240.0
# What the suite takes the broker for: nothing it asks about changed between this one and 4.3.
BROKER_VERSION = "4.0.0"
DEFAULT, NO_AUTO_CREATE, SASL = "default", "noautocreate", "sasl"
# The suite asks for a whole cluster with SASL; these need no more than a broker.
OF_SASL = frozenset({"0135_sasl_credentials"})
# As the scenarios/*.json of the suite.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {"num.partitions": "4"},
    NO_AUTO_CREATE: {"num.partitions": "4", "auto.create.topics.enable": "false"},
    SASL: {
        "num.partitions": "4",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": 'PlainLoginModule required user_alice="alices-word";',
    },
}
# Settings of the client for single tests. This one gives a consumer 10 s to go on after its broker was away for 10 s,
# of which the client's pause before it connects again may take 9 and a new group's wait for more members 3.
CLIENT_SETTINGS: Mapping[str, str] = {
    "0049_consume_conn_close": "reconnect.backoff.max.ms=1000\n",
    "0135_sasl_credentials": "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
    "sasl.username=alice\nsasl.password=alices-word\n",
}
# Left out, or cut short after the first part, in quick mode, and not too long without it.
NEVER_QUICK = frozenset({"0082_fetch_max_bytes", "0113_cooperative_rebalance"})
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
)
# Tests that end at their first failure and cover much: run part by part, so that one failure does not hide the rest.
PARTS = {
    "0081_admin": (
        "unclean_destroy",
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "CreateAcls",
        "DescribeAcls",
        "DeleteAcls",
        "AlterConfigs",
        "DescribeConfigs",
        "DeleteRecords",
        "ListConsumerGroups",
        "DescribeConsumerGroups",
        "DeleteGroups",
        "DeleteConsumerGroupOffsets",
        "AlterConsumerGroupOffsets",
        "ListConsumerGroupOffsets",
    ),
    "0113_cooperative_rebalance": (
        "a_assign_tests",
        "b_subscribe_with_cb_test",
        "c_subscribe_no_cb_test",
        "d_change_subscription_add_topic",
        "e_change_subscription_remove_topic",
        "f_assign_call_cooperative",
        "g_incremental_assign_call_eager",
        "h_delete_topic",
        "i_delete_topic_2",
        "j_delete_topic_no_rb_callback",
        "k_add_partition",
        "l_unsubscribe",
        "m_unsubscribe_2",
        "n_wildcard",
        "o_java_interop",
        "s_subscribe_when_rebalancing",
        "t_max_poll_interval_exceeded",
        "u_multiple_subscription_changes",
        "v_commit_during_rebalance",
        "x_incremental_rebalances",
    ),
}
# Scripts of a Kafka distribution that tests call, and the classes behind them.
KAFKA_SCRIPTS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-run-class.sh": "",
}


class CannotBuild(RuntimeError):
    """The suite cannot be fetched or built here."""


@dataclass(frozen=True)
class SuiteTest:
    """A test as the suite's table names it, or a part of one."""

    table_name: str
    scenario: str
    part: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.table_name}:{self.part}" if self.part else self.table_name

    @property
    def number(self) -> str:
        """What the runner chooses tests by: several share one."""
        return self.table_name.partition("_")[0]


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
        # Four tests read JSON; headers only, so unpacked here and installed nowhere. As system headers, not by CPATH:
        # configure takes their warnings for errors.
        environment = dict(os.environ)
        if not Path("/usr/include/rapidjson").exists():
            _run("apt-get", "download", "-qq", "rapidjson-dev", cwd=cache_dir())
            (package,) = cache_dir().glob("rapidjson-dev_*.deb")
            _run("dpkg", "-x", str(package), str(cache_dir() / "rapidjson"), cwd=cache_dir())
            environment["CPLUS_INCLUDE_PATH"] = str(cache_dir() / "rapidjson" / "usr" / "include")
        options = ("--disable-ssl", "--disable-gssapi", "--disable-curl")
        _run("./configure", *options, cwd=source, environment=environment)
        _run("make", "-j2", "libs", cwd=source, environment=environment)
        _run("make", "-j2", "test-runner", cwd=source / "tests", environment=environment)
        environment["KAFKA_JARS"] = str(fetch_jars())
        _run("make", "java", cwd=source / "tests", environment=environment)
        (cache_dir() / BUILT_MARK).touch()


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


def suite_tests() -> list[SuiteTest]:
    """The tests that need a broker, in the suite's order."""
    source = (tests_dir() / "test.c").read_text(encoding="utf-8")
    table = source[source.index("struct test tests[] = {") :]
    table = table[: table.index("\n};")]
    found = []
    for row in re.split(r"\n\s*_TEST\(", table)[1:]:
        name = re.match(r"\w+", row)
        assert name is not None
        if "TEST_F_LOCAL" not in row and "TEST_F_MANUAL" not in row:
            scenario = re.search(r'\.scenario = "(\w+)', row)
            parts = PARTS.get(name[0], ("",))
            wanted = SASL if name[0] in OF_SASL else scenario[1] if scenario else DEFAULT
            found += [SuiteTest(name[0], wanted, part) for part in parts]
    return found


def chosen_tests(names: Sequence[str]) -> list[SuiteTest]:
    """Those named, by name or number; all without names."""
    known = suite_tests()
    called = {test: {test.name, test.table_name, test.number} for test in known}
    if wrong := set(names) - set().union(*called.values()):
        raise SystemExit(f"no such test: {', '.join(sorted(wrong))}")
    return [test for test in known if not names or called[test] & set(names)]


class Runner:
    """Runs tests of the suite one by one, each in a process of its own, against one broker."""

    def __init__(self, bootstrap: str, scenario: str, logs: Path, *, quick: bool = True) -> None:
        self._logs = logs
        self._quick = quick
        kafka = logs / "kafka"
        _write_scripts(kafka / "bin")
        self._bootstrap = bootstrap
        self._environment = {
            **os.environ,
            "TEST_KAFKA_VERSION": BROKER_VERSION,
            "TEST_SCENARIO": DEFAULT if scenario == SASL else scenario,
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(kafka),
            "KAFKA_JARS": str(jars_dir()),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
        }

    def run(self, test: SuiteTest) -> Outcome:
        """One test to its end, its output in the logs."""
        command = ["./test-runner", "-p1", "-L"]
        if self._quick and test.table_name not in NEVER_QUICK:
            command.append("-Q")
        chosen = {"TESTS": test.number, **({"SUBTESTS": test.part} if test.part else {})}
        configuration = self._logs / f"{test.name}.conf"
        # Random names: a second run against the same broker must not find the topics of the first.
        lines = f"bootstrap.servers={self._bootstrap}\ntest.topic.random=true\n"
        configuration.write_text(lines + CLIENT_SETTINGS.get(test.table_name, ""), encoding="utf-8")
        chosen["RDKAFKA_TEST_CONF"] = str(configuration)
        log = self._logs / f"{test.name}.log"
        begun = time.monotonic()
        late = False
        with open(log, "wb") as output:
            # A session of its own: tests fork and start tools, which must go with it.
            process = subprocess.Popen(
                command,
                cwd=tests_dir(),
                env={**self._environment, **chosen},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(TEST_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        # Random names come again, and a test that finds the offsets of its namesake begins where that ended.
        for pattern in ("stats_*.json", "*.offset"):
            for left in tests_dir().glob(pattern):
                left.unlink(missing_ok=True)
        written = log.read_text(encoding="utf-8", errors="replace")
        state, text = outcome_of(test.table_name, written, test.part)
        if state == FAILS and process.returncode < 0:
            text = f"{text} ({signal.Signals(-process.returncode).name})"
        if late:
            text = f"no end in {TEST_SECONDS_MAX:.0f} s. {text}"
        return Outcome(test.name, state, time.monotonic() - begun, text)


def outcome_of(name: str, written: str, part: str = "") -> tuple[str, str]:
    """The state in the runner's closing table, and what the test said when it did not pass.

    A failure in a thread ends the runner by abort(), before it has written the table. A test passes also when its part
    is skipped, or when no part has the name.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    row = re.search(rf"^\| {name} +\| +(\w+) \|[^|]*\| ?(.*)$", plain, re.MULTILINE)
    if row is not None and row[1] == "PASSED":
        parts = re.findall(rf"\[ \w*{part}.*: (PASS|SKIP)(.*)", plain) if part else [("PASS", "")]
        if not parts:
            return FAILS, f"no part was called {part}"
        return (PASSES, "") if "PASS" in dict(parts) else (SKIPS, parts[0][1].strip(" :]"))
    if row is not None and row[1] == "SKIPPED":
        return SKIPS, row[2].strip()
    said = re.search(r"^### Test \"[^<].* ###\n(.*)", plain, re.MULTILINE)
    return FAILS, said[1].strip() if said else "ended without a result"


def _write_scripts(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, main_class in KAFKA_SCRIPTS.items():
        script = directory / name
        command = f'exec java {" ".join(JVM)} -cp "$CLASSPATH:{jars_dir()}/*" {main_class} "$@"'
        script.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        script.chmod(0o755)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/librdkafka-tests", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    brokers.add_options(parser)
    parser.add_argument(
        "--full", action="store_true", help="not the suite's quick mode: more records, longer"
    )
    parser.add_argument("--build", action="store_true", help="only fetch and build")
    parser.add_argument("--list", action="store_true", help="only show the tests")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep each test's output here")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="by name or number; default: all")
    options = parser.parse_args()
    brokers.end_in_order()
    try:
        build()
    except CannotBuild as problem:
        raise SystemExit(str(problem)) from problem
    if options.build:
        return 0
    tests = chosen_tests(options.tests)
    if options.list:
        sys.stdout.writelines(f"{test.name} {test.scenario}\n" for test in tests)
        return 0
    expected = outcomes.load(EXPECTATIONS)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="librdkafka-tests-"))
    logs.mkdir(parents=True, exist_ok=True)
    results: list[Outcome] = []
    for scenario, settings in SETTINGS.items():
        here = [test for test in tests if test.scenario == scenario]
        if not here:
            continue
        if (options.bootstrap and scenario != DEFAULT) or (options.kafka and scenario == SASL):
            names = ", ".join(test.name for test in here)
            sys.stdout.write(f"not run, they need another broker: {names}\n")
            continue
        with brokers.running(options, settings) as bootstrap:
            runner = Runner(bootstrap, scenario, logs.resolve(), quick=not options.full)
            for test in here:
                results.append(runner.run(test))
                outcomes.show(results[-1])
    sys.stdout.write(f"each test's output is in {logs}\n")
    return outcomes.conclude(
        results, expected, kafka=options.kafka, say=lambda line: sys.stdout.write(f"{line}\n")
    )


if __name__ == "__main__":
    sys.exit(main())
