"""librdkafka's own integration tests, as Debian's source package has them, against kproc.

    scripts/librdkafka-tests                        fetch, build, run all of them against a kproc of its own
    scripts/librdkafka-tests 0018 0030_offset_commit  these
    scripts/librdkafka-tests --transport thread
    scripts/librdkafka-tests --kafka                against Apache Kafka: what the suite expects there
    scripts/librdkafka-tests --emulate 2.8          against a kproc that emulates this release of Kafka
    scripts/librdkafka-tests --bootstrap HOST:PORT  against a broker that runs: num.partitions=4 is assumed

Needs apt-get, dpkg-dev, make, gcc, g++, java, and Maven once for Kafka's jars; no root: packages that are missing to
build with TLS are unpacked beside the source. Built in `~/.cache/kproc/librdkafka-<version>`. Tests with the scenario
"noautocreate" run against a second broker, which creates no topics by itself, those about TLS, logins and rights
against one for each way in: `0115_producer_auth@SASL_SSL`. Exits with 1 if a test did not end as `librdkafka.toml`
says.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.conformance import brokers, outcomes
from tests.conformance.access import Access, Entrance, opened
from tests.conformance.librdkafka_build import CannotBuild, build, tests_dir
from tests.conformance.outcomes import FAILS, PASSES, SKIPS, Outcome
from tests.support.java_tools import JVM
from tests.support.kafka_jars import jars_dir
from tests.support.secured_kafka import write_properties

EXPECTATIONS = Path(__file__).with_name("librdkafka.toml")
# The longest takes 65 s alone; the runner's own limits, which end a test by abort(), are below this, too.
TEST_SECONDS_MAX = 240.0
# What the suite takes the broker for: nothing it asks about changed between this one and 4.3.
BROKER_VERSION = "4.0.0"
DEFAULT, NO_AUTO_CREATE = "default", "noautocreate"
# As the scenarios/*.json of the suite.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {"num.partitions": "4"},
    NO_AUTO_CREATE: {"num.partitions": "4", "auto.create.topics.enable": "false"},
}
ACCESSES: Mapping[str, Access] = {
    "SSL": Access("SSL"),
    "SASL_SSL": Access("SASL_SSL", "PLAIN"),
    "SASL_PLAINTEXT": Access("SASL_PLAINTEXT", "PLAIN"),
    "SCRAM-SHA-256": Access("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": Access("SASL_SSL", "SCRAM-SHA-512"),
    "OIDC": Access("SASL_SSL", "OAUTHBEARER"),
}
ENCRYPTED = ("SSL", "SASL_SSL")
BY_PASSWORD = ("SASL_PLAINTEXT", "SASL_SSL", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Which tests run by which of them, and whether by plaintext, too.
BY_ACCESS: Mapping[str, tuple[Sequence[str], bool]] = {
    "0012_produce_consume": ((*ENCRYPTED, "SCRAM-SHA-512"), True),
    "0018_cgrp_term": (ENCRYPTED, True),
    "0081_admin:CreateAcls": (ENCRYPTED, True),
    "0081_admin:DescribeAcls": (ENCRYPTED, True),
    "0081_admin:DeleteAcls": (ENCRYPTED, True),
    "0097_ssl_verify": (ENCRYPTED, False),
    "0103_transactions": (("SASL_SSL",), True),
    "0115_producer_auth": (ENCRYPTED, True),
    "0119_consumer_auth": (ENCRYPTED, True),
    "0126_oauthbearer_oidc": (("OIDC",), False),
    "0135_sasl_credentials": (BY_PASSWORD, False),
}
# Settings of the client for single tests. This one gives a consumer 10 s to go on after its broker was away for 10 s,
# of which the client's pause before it connects again may take 9 and a new group's wait for more members 3.
CLIENT_SETTINGS: Mapping[str, str] = {
    "0049_consume_conn_close": "reconnect.backoff.max.ms=1000\n",
    # As in the suite's own test.conf: of its 20 s it consumes for 15, and two JVMs of kafka-acls.sh need time, too.
    "0119_consumer_auth": "test.timeout.multiplier=2\n",
}
# Cut short in quick mode, which leaves out the parts that are not marked for it, too: a test of nothing but such parts
# passes in it without having done anything.
NEVER_QUICK = frozenset({"0082_fetch_max_bytes"})
NOT_QUICK = re.compile(r"\bSUB_TEST0?\(")
# Tests of one number and scenario, which the runner would all run: what names the parts of each.
OWN_PARTS: Mapping[str, str] = {
    "0045_subscribe_update_topic_remove": "do_test_topic_remove",
    "0045_subscribe_update_non_exist_and_partchange": "do_test_non_exist_and_partchange",
}
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


@dataclass(frozen=True)
class SuiteTest:
    """A test as the suite's table names it, or a part of one, by one way in."""

    table_name: str
    scenario: str
    part: str = ""
    access: str = ""

    @property
    def whole_name(self) -> str:
        """Without the way in."""
        return f"{self.table_name}:{self.part}" if self.part else self.table_name

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.whole_name}@{self.access}" if self.access else self.whole_name

    @property
    def number(self) -> str:
        """What the runner chooses tests by: several share one."""
        return self.table_name.partition("_")[0]


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
            wanted = scenario[1] if scenario else DEFAULT
            for part in parts:
                found += by_each_access(SuiteTest(name[0], wanted, part))
    return found


def by_each_access(test: SuiteTest) -> list[SuiteTest]:
    """A test for each way in that it runs by."""
    accesses, is_plaintext = BY_ACCESS.get(test.name, ((), True))
    by_access = [replace(test, access=access) for access in accesses]
    return [test, *by_access] if is_plaintext else by_access


def chosen_tests(names: Sequence[str]) -> list[SuiteTest]:
    """Those named, by name or number; all without names."""
    known = suite_tests()
    called = {test: {test.name, test.whole_name, test.table_name, test.number} for test in known}
    for test in known:
        called[test].add(f"{test.whole_name}@{test.access or 'PLAINTEXT'}")
    if wrong := set(names) - set().union(*called.values()):
        raise SystemExit(f"no such test: {', '.join(sorted(wrong))}")
    return [test for test in known if not names or called[test] & set(names)]


@dataclass(frozen=True)
class Conditions:
    """Conditions of a run that the suite can be told of."""

    quick: bool = True
    timeout_factor: float = 1.0
    broker_version: str = BROKER_VERSION


ORDINARY = Conditions()


class Runner:
    """Runs tests of the suite one by one, each in a process of its own, against one broker."""

    def __init__(
        self,
        bootstrap: str,
        scenario: str,
        logs: Path,
        *,
        entrance: Entrance | None = None,
        conditions: Conditions = ORDINARY,
    ) -> None:
        self._logs = logs
        self._quick = conditions.quick
        self._timeout_factor = conditions.timeout_factor
        kafka = logs / "kafka"
        _write_scripts(kafka / "bin", {} if entrance is None else entrance.tool_properties())
        client = {} if entrance is None else entrance.librdkafka()
        # Random names: a second run against the same broker must not find the topics of the first.
        client |= {"bootstrap.servers": bootstrap, "test.topic.random": "true"}
        if conditions.timeout_factor != 1:
            client["test.timeout.multiplier"] = str(conditions.timeout_factor)
        self._client = "".join(f"{name}={value}\n" for name, value in client.items())
        self._environment = {
            **os.environ,
            "TEST_KAFKA_VERSION": conditions.broker_version,
            "TEST_SCENARIO": scenario,
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(kafka),
            "KAFKA_JARS": str(jars_dir()),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            **({} if entrance is None else entrance.environment()),
        }

    def run(self, test: SuiteTest) -> Outcome:
        """One test to its end, its output in the logs."""
        command = ["./test-runner", "-p1", "-L"]
        if self._quick and not _is_cut_short(test):
            command.append("-Q")
        part = test.part or OWN_PARTS.get(test.table_name, "")
        chosen = {"TESTS": test.number, **({"SUBTESTS": part} if part else {})}
        configuration = self._logs / f"{test.name}.conf"
        configuration.write_text(self._client + CLIENT_SETTINGS.get(test.table_name, ""), encoding="utf-8")
        chosen["RDKAFKA_TEST_CONF"] = str(configuration)
        log = self._logs / f"{test.name}.log"
        begun, seconds_max = time.monotonic(), TEST_SECONDS_MAX * self._timeout_factor
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
                process.wait(seconds_max)
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
        state, text = outcome_of(test.table_name, written, part)
        if state == FAILS and process.returncode < 0:
            text = f"{text} ({signal.Signals(-process.returncode).name})"
        if late:
            text = f"no end in {seconds_max:.0f} s. {text}"
        return Outcome(test.name, state, time.monotonic() - begun, text)


def _is_cut_short(test: SuiteTest) -> bool:
    """Return True if quick mode leaves something of it out."""
    main = f"main_{test.table_name}("
    sources = (path.read_text(encoding="utf-8") for path in tests_dir().glob(f"{test.number}-*.c*"))
    return test.table_name in NEVER_QUICK or any(main in text and NOT_QUICK.search(text) for text in sources)


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


def _write_scripts(directory: Path, properties: Mapping[str, str]) -> None:
    """Those that tests call; with properties, tools are told of them."""
    directory.mkdir(parents=True, exist_ok=True)
    file = write_properties(directory / "client.properties", dict(properties))
    for name, main_class in KAFKA_SCRIPTS.items():
        script = directory / name
        more = f' --command-config "{file}"' if properties and main_class else ""
        command = f'exec java {" ".join(JVM)} -cp "$CLASSPATH:{jars_dir()}/*" {main_class} "$@"{more}'
        script.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        script.chmod(0o755)


def _batches(tests: Sequence[SuiteTest]) -> list[list[SuiteTest]]:
    """The tests that run against one broker, for each broker."""
    kinds = [(scenario, access) for scenario in SETTINGS for access in ("", *ACCESSES)]
    batches = [[test for test in tests if (test.scenario, test.access) == kind] for kind in kinds]
    return [batch for batch in batches if batch]


def _run_batch(batch: Sequence[SuiteTest], logs: Path, options: argparse.Namespace) -> Iterator[Outcome]:
    scenario, access = batch[0].scenario, batch[0].access
    if options.bootstrap and (scenario != DEFAULT or access):
        names = ", ".join(test.name for test in batch)
        sys.stdout.write(f"not run, they need another broker: {names}\n")
        return
    with ExitStack() as stack:
        entrance = None
        if access:
            files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
            entrance = stack.enter_context(opened(ACCESSES[access], files))
        bootstrap = stack.enter_context(brokers.running(options, SETTINGS[scenario], entrance))
        conditions = Conditions(
            not options.full, options.timeout_factor, brokers.kafka_version(options, BROKER_VERSION)
        )
        runner = Runner(bootstrap, scenario, logs, entrance=entrance, conditions=conditions)
        for test in batch:
            outcome = runner.run(test)
            outcomes.show(outcome)
            yield outcome


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
    parser.add_argument(
        "tests",
        nargs="*",
        metavar="TEST",
        help="by name, with or without @..., or by number; default: all",
    )
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
    results = [outcome for here in _batches(tests) for outcome in _run_batch(here, logs.resolve(), options)]
    sys.stdout.write(f"each test's output is in {logs}\n")
    return outcomes.conclude(
        results, expected, kafka=options.kafka, say=lambda line: sys.stdout.write(f"{line}\n")
    )


if __name__ == "__main__":
    sys.exit(main())
