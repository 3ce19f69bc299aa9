"""`kproc topic`, `produce`, `consume` and `status` against a running broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.broker import ROOT, ServedBroker
from tests.support.command_line import call_kproc, refused, told
from tests.support.proc import heed_signals
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def test_topic_command_life_cycle(kproc):
    name = fresh_name()
    assert (
        told(kproc(f"topic create {name} --partitions 3 --config retention.ms=60000"))
        == f"created {name}\n"
    )
    assert any(line.split()[:2] == [name, "3"] for line in told(kproc("topic list -i 0")).splitlines())
    [described] = json.loads(told(kproc(f"topic describe {name} --format json")))
    assert (described["name"], described["records"]) == (name, 0)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert name in told(kproc(f"topic describe {name}"))
    assert told(kproc(f"topic describe {name[:-1]}[{name[-1]}] {name}")) == told(kproc(f"topic describe {name}"))
    assert told(kproc(f"topic delete {name} {name} --yes")) == f"deleted {name}\n"
    assert refused(kproc(f"topic describe {name}")) == f"kproc: {name}: unknown topic\n"


def test_topic_list_shows_what_was_written(kproc, topic):
    name = topic(partitions=2)
    told(kproc(f"produce {name}", stdin="a\nb\n"))
    [row] = [each for each in json.loads(told(kproc("topic list -f json"))) if each["name"] == name]
    assert row["size_bytes"] > 60
    assert (row["bytes_in_per_s"], row["bytes_out_per_s"]) == (0, 0)
    assert (row["retention_ms"], row["retention_by"]) == (604_800_000, "time")
    assert 0 <= row["retention_used"] < 0.01
    assert time.time() * 1000 - row["last_write_ms"] < 60_000


def test_topic_exists_and_unknown_topic_errors_are_one_line(kproc):
    name = fresh_name()
    told(kproc(f"topic create {name}"))
    assert refused(kproc(f"topic create {name}")) == f"kproc: {name}: exists already\n"
    told(kproc(f"topic create {name} --if-not-exists"))
    assert refused(kproc("topic delete no-such-topic --yes")) == "kproc: no-such-topic: unknown topic\n"
    told(kproc("topic delete no-such-topic --if-exists --yes"))
    assert "bad/name" in refused(kproc("topic create bad/name"))
    assert refused(kproc("topic create", fresh_name(), "--config", "no.such.config=1"))


def test_topic_describe_does_not_create_topic(kproc):
    name = fresh_name()
    refused(kproc(f"topic describe {name}"))
    refused(kproc(f"consume {name}"))
    assert name not in told(kproc("topic list -i 0"))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consume_prints_keys_and_headers(kproc, topic, compression):
    name = topic(partitions=1)
    lines = "k1:v1\nk2:v:2\nno key\n"
    produced = kproc(f"produce {name} -K : -H a=1 -H b= -v -z {compression}", stdin=lines)
    assert produced.stderr == (
        "kproc: line 3 has no separator ':': it is sent as a value without a key\n"
        f"kproc: sent 3 records to {name}\n"
    )
    got = told(kproc(f"consume {name} --format", r"%p %o %k|%s|%h\n"))
    assert got == "0 0 k1|v1|a=1,b=\n0 1 k2|v:2|a=1,b=\n0 2 |no key|a=1,b=\n"


def test_consume_from_and_count_options(kproc, topic):
    name = topic(partitions=2)
    told(kproc(f"produce {name} -p 0", stdin="a\nb\nc\nd\n"))
    told(kproc(f"produce {name} -p 1", stdin="x\ny"))
    assert sorted(told(kproc(f"consume {name}")).split()) == list("abcdxy")
    assert told(kproc(f"consume {name} -p 1")).split() == ["x", "y"]
    assert told(kproc(f"consume {name} -p 0 --from 2")).split() == ["c", "d"]
    assert told(kproc(f"consume {name} -p 0 --from -1")).split() == ["d"]
    assert told(kproc(f"consume {name} -p 0 --count 3")).split() == ["a", "b", "c"]
    assert sorted(told(kproc(f"consume {name} --from @1000")).split()) == list("abcdxy")
    assert told(kproc(f"consume {name} --from 2100-01-01")) == ""
    records = [json.loads(line) for line in told(kproc(f"consume {name} -p 1 -f json")).splitlines()]
    assert [(record["offset"], record["value"], record["key"]) for record in records] == [
        (0, "x", None),
        (1, "y", None),
    ]
    assert "no partition 7; there are 2" in refused(kproc(f"consume {name} -p 7"))


@pytest.mark.parametrize("options", ["--acks 0", "--acks 1", "--acks all", "--idempotent", "--key same"])
def test_each_way_to_produce(kproc, topic, options):
    name = topic(partitions=2)
    told(kproc(f"produce {name} {options}", stdin="1\n2\n3\n"))
    if options != "--acks 0":  # Without acknowledgement nobody says when the records are there.
        assert sorted(told(kproc(f"consume {name}")).split()) == ["1", "2", "3"]


def test_an_unknown_partition_is_refused(kproc, topic):
    assert "unknown partition" in refused(kproc(f"produce {topic()} -p 5", stdin="x\n"))


def test_consume_follow_ends_at_ctrl_c_with_one_line(kproc, broker, topic):
    name = topic()
    follower = subprocess.Popen(
        [sys.executable, "-m", "kproc", "consume", name, "--follow", "-b", broker.bootstrap],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )
    with follower:
        told(kproc(f"produce {name}", stdin="first\nsecond\n"))
        assert follower.stdout.readline() == b"first\n"
        assert follower.stdout.readline() == b"second\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(PATIENCE_SECONDS) == 130
        assert follower.stderr.read() == b"kproc: interrupted\n"


def test_closed_stdout_ends_consume(kproc, broker, topic):
    name = topic()
    told(kproc(f"produce {name}", stdin="line\n" * 1000))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "kproc", "consume", name, "-b", broker.bootstrap]
        answer = subprocess.run(
            command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    "words", ["consume {name} --follow", "consume {name} --share {name} --follow", "monitor --topic nobody"]
)
def test_closed_stdout_ends_command_that_waits(kproc, broker, topic, words):
    """`kproc consume t --follow | head -1` waited for the next record before it ended."""
    name = topic()
    told(kproc(f"config set --group {name} share.auto.offset.reset=earliest"))
    told(kproc(f"produce {name}", stdin="first\n"))
    command = [sys.executable, "-m", "kproc", *words.format(name=name).split(), "-b", broker.bootstrap]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        if words.startswith("consume"):
            assert waiting.stdout.readline() == b"first\n"
        waiting.stdout.close()
        try:
            assert waiting.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE
        finally:
            waiting.kill()
        assert waiting.stderr.read() == b""


def test_status_shows_every_process(kproc, broker):
    if broker.pid is None:
        pytest.skip("only a kproc broker answers")
    answer = json.loads(told(kproc("status --json")))
    pids = {row["pid"] for row in answer["processes"]}
    assert {row["pid"] for row in broker.processes} <= pids | {broker.pid}
    assert answer["transport"] == "process"
    table = told(kproc("status"))
    assert all(str(pid) in table for pid in pids)
    assert "memory " in table


def test_produce_survives_broker_restart_within_its_timeout(tmp_path, capsys):
    """It ended 0.1 s after the broker's stop, and did not say how many records were delivered."""
    with ServedBroker(tmp_path / "data") as served:
        address = served.bootstrap
        told(call_kproc(capsys, "topic", "create", "there", "-b", address))
        patient, hasty = (_beside(f"produce there -v {option}", address) for option in ("", "--timeout 1"))
        for child in (patient, hasty):
            child.stdin.write(b"x\n")
            child.stdin.flush()
        wait_until(lambda: _end_offset(capsys, address) >= 2, what="the records have arrived")
    try:
        away = f"cannot connect to {address}: connection refused"
        _, stderr = hasty.communicate(b"y\n", timeout=PATIENCE_SECONDS)
        assert hasty.returncode == 1
        assert stderr.decode().splitlines() == [
            f"kproc: {away}; trying again until a record's --timeout is over",
            f"kproc: there: line 2: not delivered in time; {away} (1 record was delivered)",
        ]
        patient.stdin.write(b"y\n")
        patient.stdin.flush()
        assert patient.stderr.readline().decode().startswith(f"kproc: {away}; trying again")
        with ServedBroker(tmp_path / "data", port=served.port):
            _, stderr = patient.communicate(b"z\n", timeout=PATIENCE_SECONDS)
            assert stderr.decode().splitlines() == [
                f"kproc: {address} is back",
                "kproc: sent 3 records to there",
            ]
            assert patient.returncode == 0
            assert _end_offset(capsys, address) == 4
    finally:
        for child in (patient, hasty):
            child.kill()
            child.communicate()


def test_consume_follow_resumes_after_broker_restart(tmp_path, capsys):
    with ServedBroker(tmp_path / "data") as served:
        address = served.bootstrap
        told(call_kproc(capsys, "topic", "create", "there", "-b", address))
        follower = _beside("consume there --follow", address)
        told(call_kproc(capsys, "produce", "there", "-b", address, stdin="before\n"))
        assert follower.stdout.readline() == b"before\n"
    try:
        away = f"kproc: cannot connect to {address}: connection refused; trying again until it is back\n"
        assert follower.stderr.readline().decode() == away
        with ServedBroker(tmp_path / "data", port=served.port):
            told(call_kproc(capsys, "produce", "there", "-b", address, stdin="after\n"))
            assert follower.stdout.readline() == b"after\n"
            assert follower.stderr.readline().decode() == f"kproc: {address} is back\n"
    finally:
        follower.kill()
        follower.communicate()


def _beside(command: str, bootstrap: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kproc", *command.split(), "-b", bootstrap],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _end_offset(capsys: pytest.CaptureFixture[str], bootstrap: str) -> int:
    [described] = json.loads(
        told(call_kproc(capsys, "topic", "describe", "there", "-f", "json", "-b", bootstrap))
    )
    return int(described["records"])


def test_consume_ends_filters_and_topic_patterns(kproc, topic):
    name = topic(partitions=1)
    other = f"{name}-2"
    told(kproc(f"topic create {other}"))
    told(kproc(f"produce {name} -K :", stdin="k1:apple\nk2:pear\nk3:fig\nx:apple\n"))
    told(kproc(f"produce {other}", stdin="apple"))
    assert told(kproc(f"consume {name} --from 1 --until 3")).split() == ["pear", "fig"]
    assert told(kproc(f"consume {name} --until -1")).split() == ["apple", "pear", "fig"]
    assert told(kproc(f"consume {name} --until 2000-01-01")) == ""
    assert told(kproc(f"consume {name} --until end --key ^k --grep a.?p")).split() == ["apple"]
    assert told(kproc(f"consume {name} --until 99 --grep a -n 2")).split() == ["apple", "pear"]
    assert told(kproc("consume", f"{name}*", "--grep", "^apple$")).split() == [name, "apple"] * 2 + [other, "apple"]
    assert told(kproc("consume", f"^{name}$", "--key", "x")).split() == [name, "apple"]
    assert told(kproc("consume", name, "--group", other, "--grep", "fig", "--count", "1")) == "fig\n"
    # The record that did not match before it counts as read, the one after it does not.
    assert told(kproc("consume", name, "--group", other)) == "apple\n"
    late = kproc("consume", name, "--from", "9")
    assert (late.returncode, late.stdout) == (0, "")
    assert late.stderr == (
        f"kproc: --from 9 is beyond the end of {name}-0 (offset 4): nothing is read there\n"
    )
    told(kproc(f"topic delete {other} --yes"))
