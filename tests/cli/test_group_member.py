"""`kproc consume --group`, also of several topics: the partitions of each member, where it starts, and its commits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import ROOT
from tests.support.command_line import call_kproc
from tests.support.groups import Member
from tests.support.proc import heed_signals
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]

Kproc = Callable[..., str]


@pytest.fixture
def kproc(broker, capsys) -> Kproc:
    """`kproc("consume t")` on the shared broker: what it wrote."""

    def call(command: str, stdin: str = "") -> str:
        done = call_kproc(capsys, *command.split(), "--bootstrap", broker.bootstrap, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return call


@pytest.fixture
def follow(broker) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`follow("t", "--group", "g")`: a process that follows; killed if it is there when the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "kproc", "consume", *arguments, "--follow", "-b", broker.bootstrap],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=heed_signals,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def committed(kproc: Kproc, group: str) -> dict[str, int]:
    [row] = json.loads(kproc(f"group describe {group} --format json"))
    return {f"{each['topic']}-{each['partition']}": each["committed"] for each in row["partitions"]}


def members(kproc: Kproc, group: str) -> list[list[str]]:
    """What each member was given; nobody has anything before the first join, and while the group changes."""
    if group not in kproc("group list"):
        return []
    [row] = json.loads(kproc(f"group describe {group} --format json"))
    return [member["assignment"] for member in row["members"] if row["state"] == "Stable"]


def test_consume_of_several_topics_names_topic_in_each_line(kproc, topic):
    first, second = topic(partitions=2), topic(partitions=1)
    kproc(f"produce {first}", stdin="a\n")
    kproc(f"produce {second}", stdin="b\n")
    assert sorted(kproc(f"consume {first} {second}").splitlines()) == sorted([f"{first}\ta", f"{second}\tb"])
    rows = [json.loads(line) for line in kproc(f"consume {first} {second} -f json").splitlines()]
    assert {(row["topic"], row["value"]) for row in rows} == {(first, "a"), (second, "b")}
    assert sorted(kproc(f"consume {first} {second} -f %s").strip()) == ["a", "b"]
    # The same topic twice is one topic.
    assert kproc(f"consume {second} {second}") == "b\n"


def test_consume_group_resumes_in_each_of_its_topics(kproc, topic):
    first, second, group = topic(partitions=2), topic(partitions=1), fresh_name()
    kproc(f"produce {first} -p 1", stdin="a\nb\n")
    kproc(f"produce {second}", stdin="x\n")
    shown = kproc(f"consume {first} {second} --group {group}").splitlines()
    assert sorted(shown) == sorted([f"{first}\ta", f"{first}\tb", f"{second}\tx"])
    assert committed(kproc, group) == {f"{first}-0": 0, f"{first}-1": 2, f"{second}-0": 1}
    assert members(kproc, group) == []
    assert kproc(f"consume {first} {second} --group {group}") == ""
    kproc(f"produce {first} -p 0", stdin="c\n")
    assert kproc(f"consume {first} {second} --group {group} --from beginning") == f"{first}\tc\n"


def test_consume_group_commits_only_printed_records(kproc, topic):
    name, group = topic(partitions=1), fresh_name()
    kproc(f"produce {name}", stdin="1\n2\n3\n4\n")
    assert kproc(f"consume {name} --group {group} --count 3") == "1\n2\n3\n"
    assert committed(kproc, group) == {f"{name}-0": 3}
    assert kproc(f"consume {name} --group {group}") == "4\n"


def test_consume_group_from_applies_without_committed_offset(kproc, topic):
    name, group = topic(partitions=2), fresh_name()
    kproc(f"produce {name} -p 0", stdin="1\n2\n3\n")
    assert kproc(f"consume {name} --group {group} --from=-2 --count 1") == "2\n"
    kproc(f"produce {name} -p 1", stdin="x\n")
    # Partition 0 has its place, and partition 1 its own from before it had a record.
    assert sorted(kproc(f"consume {name} --group {group} --from end --count 2").split()) == ["3", "x"]


def test_consume_group_of_two_members_prints_each_record_once(kproc, topic, follow):
    name, group = topic(partitions=2), fresh_name()
    both = [follow(name, "--group", group) for _ in range(2)]

    def is_shared() -> bool:
        shares = members(kproc, group)
        assert sorted(shares) == [[f"{name}-0"], [f"{name}-1"]], shares
        return True

    wait_until(is_shared, seconds=40, what="shared")
    for number in (0, 1):
        kproc(f"produce {name} -p {number}", stdin=f"{number}\n")
    assert sorted(process.stdout.readline() for process in both) == [b"0\n", b"1\n"]
    for process in both:
        process.send_signal(signal.SIGINT)
    for process in both:
        assert process.communicate(timeout=PATIENCE_SECONDS) == (b"", b"kproc: interrupted\n")
        assert process.returncode == 130
    assert committed(kproc, group) == {f"{name}-0": 1, f"{name}-1": 1}
    assert members(kproc, group) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_consume_group_commits_and_leaves_on_signal(kproc, topic, follow, number):
    name, group = topic(partitions=1), fresh_name()
    kproc(f"produce {name}", stdin="1\n2\n")
    member = follow(name, "--group", group)
    assert [member.stdout.readline(), member.stdout.readline()] == [b"1\n", b"2\n"]
    member.send_signal(number)
    assert member.communicate(timeout=PATIENCE_SECONDS) == (b"", b"")
    assert member.returncode == 128 + number
    assert committed(kproc, group) == {f"{name}-0": 2}
    # Left, not missed after its session: the next one reads at once.
    assert members(kproc, group) == []


def test_consume_rejects_group_of_other_protocol_type(topic, broker, capsys):
    name, group = topic(partitions=1), fresh_name()
    with Member(broker.bootstrap, group) as connector:
        assert connector.join(protocol_type="connect")["error_code"] == 0
        done = call_kproc(capsys, "consume", name, "--group", group, "--bootstrap", broker.bootstrap)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"kproc: {name}: group {group}: ")


def test_member_of_the_consumer_protocol_reads_and_commits(kproc, filled) -> None:
    group = fresh_name()
    told = kproc(f"consume {filled} --group {group} --protocol consumer")
    assert sorted(map(int, told.split())) == list(range(20))
    assert committed(kproc, group) == {f"{filled}-0": 10, f"{filled}-1": 10}
    [row] = json.loads(kproc(f"group describe {group} --format json"))
    assert (row["type"], row["state"], row["members"]) == ("consumer", "Empty", [])
