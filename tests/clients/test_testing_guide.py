"""The examples of TESTING.md, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("aiokafka")
pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from tests.support.broker import TRANSPORTS, forked_broker
from tests.support.command_server import kproc_on_path
from tests.support.documents import ROOT, code_to_run
from tests.support.inner_pytest import passed, run_pytest
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.own_broker]
GUIDE: Final = "kproc/TESTING.md"
# Brokers start by forks, because two thirds of the CPU of a start are imports.
CONFTEST: Final = f"""
import sys

import pytest

import kproc.embedded

sys.path.append({str(ROOT)!r})
from tests.support.broker import forked_broker
from tests.support.broker_starts import forked_starts

kproc.embedded.Broker = forked_broker()


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    with forked_starts():
        yield
"""
# With this, rules act on no request, time stands, nothing restarts or dies, and every broker is of the newest release.
WITHOUT_FAULTS: Final = """
from contextlib import nullcontext

from kproc.client.broker_time import BrokerTime
from kproc.client.faults import Faults

add = Faults.add
describe = kproc.Broker.__init__


def add_idle(faults, rule, **arguments):
    idle = {"free_bytes": 1 << 40} if rule["action"] == "fill-disk" else {"after": 1_000_000_000}
    return add(faults, {**rule, **idle}, **arguments)


def describe_newest(broker, *arguments, emulate=None, **options):
    describe(broker, *arguments, **options)


Faults.add = add_idle
BrokerTime.advance = kproc.Broker.restart = lambda *arguments, **options: None
kproc.Broker.__init__ = describe_newest
kproc.Broker.kill_role = kproc.Broker.lose_power = lambda broker, *role: None
kproc.Broker.pause_role = lambda broker, role: nullcontext()
"""
# Examples without such a fault: about other members of a group, the data of a topic, or the state of a broker.
OTHER_EXAMPLES: Final = frozenset(
    (
        "test_commit_on_revoke_processes_once",
        "test_without_commit_on_revoke_processes_twice",
        "test_poison_record_does_not_stop_the_consumer",
        "test_consumer_commits_what_it_has_read",
        "test_group_starts_with_the_first_order",
        "test_empty_broker_has_no_topics",
        "test_state_comes_back_in_a_coroutine",
    )
)
# Roles that are no processes cannot be killed or paused.
OF_PROCESSES: Final = frozenset(
    ("test_producer_survives_a_dead_process", "test_producer_waits_for_a_paused_process")
)


def run_examples(
    directory: Path, code: str, transport: str, *arguments: str, more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run Python examples of the guide with brokers of a transport. more: further lines of their conftest.py."""
    default = f'kproc.Broker.__init__.__kwdefaults__["transport"] = "{transport}"\n'
    (directory / "conftest.py").write_text(f"{CONFTEST}{default}{more}")
    # kafka-python warns of functions that later versions of Python remove.
    return run_pytest(directory, code, "-W", "ignore", *arguments)


def python_examples() -> tuple[str, list[str]]:
    """Return the Python code of the guide as one module, and the names of its tests."""
    code = "\n\n".join(code_to_run(GUIDE, "python"))
    return code, re.findall(r"^ *def (test_\w+)", code, re.MULTILINE)


@pytest.mark.every_transport
def test_python_examples_of_the_guide_pass(transport: str, tmp_path: Path) -> None:
    code, names = python_examples()
    done = run_examples(tmp_path, code, transport)
    if transport == "process":
        passed(done, len(names))
        return
    failures = set(re.findall(r"^FAILED test_it\.py::(\w+)", done.stdout, re.MULTILINE))
    assert failures == OF_PROCESSES, done.stdout
    assert f"{len(names) - len(failures)} passed" in done.stdout
    sentence = (
        f"UnsupportedOperation: the roles of this broker are no processes (transport '{transport}'): "
        "start it with transport='process' to kill or pause one"
    )
    # On a CI server, pytest does not cut the lines of its summary, so they have the sentence, too.
    reasons = re.findall(rf"^E +\S*{re.escape(sentence)}$", done.stdout, re.MULTILINE)
    assert len(reasons) == len(failures), done.stdout


def test_examples_without_their_fault_fail(tmp_path: Path) -> None:
    """Run each example about a fault without the fault. An example that passes would prove nothing.

    Two other examples pass, with the broker of the fixture and with their own: so the failures are those of assertions.
    """
    code, names = python_examples()
    # Two examples wait for the effect until their deadline.
    code = code.replace('"consumer_timeout_ms": 30_000', '"consumer_timeout_ms": 1_000')
    code = code.replace("deadline = time.monotonic() + 30", "deadline = time.monotonic() + 3")
    passing = {"test_poison_record_does_not_stop_the_consumer", "test_state_comes_back_in_a_coroutine"}
    others = " or ".join(sorted(OTHER_EXAMPLES - passing))
    done = run_examples(
        tmp_path, code, "inline", "-rA", "--tb=no", "-k", f"not ({others})", more=WITHOUT_FAULTS
    )
    assert set(re.findall(r"^PASSED test_it\.py::(\w+)", done.stdout, re.MULTILINE)) == passing, done.stdout
    assert f"{len(names) - len(OTHER_EXAMPLES)} failed" in done.stdout, done.stdout


@pytest.mark.transports(*TRANSPORTS, slow=TRANSPORTS[1:])
def test_commands_of_the_guide_work(transport: str, tmp_path: Path) -> None:
    [commands] = code_to_run(GUIDE, "sh")
    with forked_broker()(transport=transport) as broker, kproc_on_path(tmp_path) as directory:
        environment = os.environ | {
            "PATH": f"{directory}:{os.environ['PATH']}",
            "KPROC_BOOTSTRAP": broker.bootstrap,
        }
        shown = subprocess.run(
            ["bash", "-ec", commands],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        ).stdout
        assert broker.faults.list() == []
    assert shown.count("NOT_LEADER_OR_FOLLOWER") == shown.count("fail-write") == 3
    assert shown.count("shop-*") == 3
