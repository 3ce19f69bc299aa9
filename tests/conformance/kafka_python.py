"""kafka-python's own integration tests, as its source distribution has them, against kproc.

    scripts/kafka-python-tests                        fetch, run all of them against a kproc of its own
    scripts/kafka-python-tests -k offsets             those; what pytest's -k takes
    scripts/kafka-python-tests --kafka                against Apache Kafka: what the suite expects there
    scripts/kafka-python-tests --emulate 2.8          against a kproc that emulates this release of Kafka
    scripts/kafka-python-tests --bootstrap HOST:PORT  against a broker that runs: node.id=0 is assumed

Fetched by pip into `~/.cache/kproc/kafka-python-<version>`; the suite tests the client beside it, not an installed
one. For its tests of TLS and SASL it starts brokers itself, with keytool and openssl, and asks Kafka's tools. Exits
with 1 if a test did not end as `kafka_python.toml` says.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.conformance import brokers, outcomes
from tests.conformance.kafka_home import SERVICE, write_home
from tests.conformance.outcomes import FAILS, PASSES, SKIPS, Outcome
from tests.support.kafka_jars import KAFKA_VERSION

VERSION: Final = "3.0.12"
EXPECTATIONS = Path(__file__).with_name("kafka_python.toml")
FETCHED_MARK = ".fetched"
TEST_SECONDS_MAX = 90
SUITE_SECONDS_MAX = 1_800.0
# As the suite's own server.properties, which are not in the source distribution.
SETTINGS: Mapping[str, str] = {
    "node.id": "0",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
# Tests for which the suite starts brokers itself, of TLS and SASL.
OWN_BROKERS = ("test/integration/test_sasl_integration.py", "test/integration/test_ssl_integration.py")
NOTHING_CHOSEN = 5


class CannotFetch(RuntimeError):
    """The suite cannot be fetched here."""


def suite_dir() -> Path:
    """Where the suite is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kproc" / f"kafka-python-{VERSION}"


def fetch() -> None:
    """Fetches the suite, unless that was done; CannotFetch says what failed."""
    suite_dir().mkdir(parents=True, exist_ok=True)
    with open(suite_dir() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (suite_dir() / FETCHED_MARK).exists():
            _download()
        # Imported by the suite and not in the source distribution.
        (_source() / "test" / "service.py").write_text(SERVICE, encoding="utf-8")


def _download() -> None:
    with tempfile.TemporaryDirectory(prefix="kafka-python-") as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--dest", directory, f"kafka-python=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotFetch(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
        (archive,) = Path(directory).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(suite_dir(), filter="data")
    tests = _source() / "test"
    # Without it Python's own package `test` is found first.
    (tests / "__init__.py").touch()
    (suite_dir() / FETCHED_MARK).touch()


def _source() -> Path:
    (found,) = suite_dir().glob("kafka[_-]python-*")
    return found


def run(options: argparse.Namespace, logs: Path) -> list[Outcome]:
    """The suite's tests: most against one broker, the others against brokers that it starts itself."""
    with brokers.running(options, SETTINGS) as bootstrap:
        # A home is looked for when the suite starts, and used only to start brokers.
        environment = {"KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_ROOT": str(logs)}
        but = [f"--ignore={path}" for path in OWN_BROKERS]
        found = _run(environment, [*but, "test/integration"], logs / "one-broker", options)
    if options.bootstrap or options.emulate:
        sys.stdout.write(f"not run, they start brokers of their own: {', '.join(OWN_BROKERS)}\n")
        return found
    home = write_home(logs / "home", options)
    return [*found, *_run(home, OWN_BROKERS, logs / "own-brokers", options)]


def _run(
    environment: Mapping[str, str], paths: Sequence[str], written: Path, options: argparse.Namespace
) -> list[Outcome]:
    """One run of pytest. `written` is where it writes, without the ends of the names."""
    results, log = written.with_suffix(".xml"), written.with_suffix(".log")
    version = brokers.kafka_version(options, KAFKA_VERSION)
    environment = {**os.environ, "KAFKA_VERSION": version, **environment}
    # A whole traceback shows values, and showing some of them fails in the client itself.
    command = [sys.executable, "-m", "pytest", "-p", "no:kproc", "-p", "no:cacheprovider"]
    seconds = TEST_SECONDS_MAX * options.timeout_factor
    command += ["-o", "addopts=", "--timeout", str(seconds), "--timeout-method", "signal"]
    command += ["--tb=short", "-q", f"--junitxml={results}", *paths]
    command += ["-k", options.selection] if options.selection else []
    with open(log, "wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=_source(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SUITE_SECONDS_MAX * options.timeout_factor,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"no end in time: see {log}") from None
    if done.returncode not in (0, 1, NOTHING_CHOSEN) or not results.exists():
        raise SystemExit(f"pytest ended with {done.returncode}: see {log}")
    return read_results(results)


def read_results(path: Path) -> list[Outcome]:
    """What pytest's XML says of each test. An error at setup or teardown counts as a failure of the test."""
    found: dict[str, Outcome] = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        module = case.get("classname", "").removeprefix("test.integration.")
        name = f"{module}::{case.get('name')}"
        state, text = PASSES, ""
        for child in case:
            if child.tag in ("failure", "error"):
                state, text = FAILS, child.get("message", "").partition("\n")[0]
            elif child.tag == "skipped":
                state, text = SKIPS, child.get("message", "")
        # A test that fails and whose teardown does, too, is there twice.
        if name not in found or found[name].state == PASSES:
            found[name] = Outcome(name, state, float(case.get("time", "0")), text)
    return list(found.values())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/kafka-python-tests", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    brokers.add_options(parser)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep pytest's output here")
    parser.add_argument("-k", dest="selection", default="", metavar="WHICH", help="as pytest's -k")
    options = parser.parse_args()
    brokers.end_in_order()
    try:
        fetch()
    except CannotFetch as problem:
        raise SystemExit(str(problem)) from problem
    logs = (options.logs or Path(tempfile.mkdtemp(prefix="kafka-python-tests-"))).resolve()
    logs.mkdir(parents=True, exist_ok=True)
    results = run(options, logs)
    for outcome in results:
        outcomes.show(outcome)
    sys.stdout.write(f"pytest's output is in {logs}\n")
    expected = outcomes.load(EXPECTATIONS)
    return outcomes.conclude(
        results, expected, kafka=options.kafka, say=lambda line: sys.stdout.write(f"{line}\n")
    )


if __name__ == "__main__":
    sys.exit(main())
