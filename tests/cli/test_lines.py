"""`kproc produce` of tombstones and of JSON lines, errors in a line, and the hint how to end the input."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from tests.support.broker import ROOT
from tests.support.command_line import Kproc, call_kproc
from tests.support.proc import heed_signals
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]

def rows(kproc: Kproc, name: str) -> list[dict[str, object]]:
    done = kproc(f"consume {name} -f json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def test_produce_empty_fields_are_null_only_with_option(kproc, topic):
    name = topic(partitions=1)
    assert kproc(f"produce {name} -K : -Z", stdin="k:\n:v\nk:v\n\n").returncode == 0
    assert kproc(f"produce {name} -K :", stdin="k:\n:v\n\n").returncode == 0
    assert [(row["key"], row["value"]) for row in rows(kproc, name)] == [
        ("k", None),
        (None, "v"),
        ("k", "v"),
        (None, None),
        ("k", ""),
        ("", "v"),
        (None, ""),
    ]


def test_consume_json_round_trips_through_produce_json(kproc, broker, topic):
    first, second = topic(partitions=3), topic(partitions=3)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = 1_795_000_000_000
    producer.produce(
        first, b"va\xfflue", b"\xfe", partition=2, timestamp=now_ms, headers=[("a", b"\xff"), ("b", None)]
    )
    producer.produce(first, None, b"k", partition=0, timestamp=now_ms + 1, headers=[("a", b"1"), ("a", b"")])
    producer.produce(first, b"", None, partition=0, timestamp=-1)
    producer.produce(first, "\u00e9\n\u2028\0".encode(), b"", partition=1, timestamp=now_ms + 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    lines = kproc(f"consume {first} -f json").stdout
    done = kproc(f"produce {second} --json -v", stdin=lines)
    assert (done.returncode, done.stderr) == (0, f"kproc: sent 4 records to {second}\n")

    def content(name: str) -> list[dict[str, object]]:
        found = [{**row, "topic": ""} for row in rows(kproc, name)]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    assert content(second) == content(first)
    assert len(content(first)) == 4


def test_produce_partition_option_overrides_json_partition(kproc, topic):
    name = topic(partitions=2)
    assert kproc(f"produce {name} -J -p 1", stdin='{"value": "v", "partition": 0}\n').returncode == 0
    assert kproc(f"produce {name} -J -p -1", stdin='{"value": "v", "partition": 7}\n').returncode == 0
    assert [row["partition"] for row in rows(kproc, name)].count(1) >= 1
    assert len(rows(kproc, name)) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"value": "v"', "no JSON: "),
        ('{"vlaue": "v"}', "unknown field 'vlaue'"),
    ],
)
def test_produce_bad_json_line_is_named_after_earlier_delivery(kproc, topic, line, words):
    name = topic(partitions=1)
    done = kproc(
        f"produce {name} --json", stdin=f'{{"value": "1"}}\n\n{{"value": "2"}}\n{line}\n{{"value": "3"}}\n'
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"kproc: line 4: {words}")
    assert done.stderr.endswith("; 2 records before it were delivered; it and all later ones were not sent\n")
    assert done.stderr.count("\n") == 1
    assert [row["value"] for row in rows(kproc, name)] == ["1", "2"]


def test_produce_names_line_rejected_by_broker(kproc, topic):
    name = topic(partitions=1)
    done = kproc(f"produce {name} --json", stdin='{"value": "1"}\n{"value": "2", "partition": 7}\n')
    assert done.returncode == 1
    assert done.stderr.startswith(f"kproc: {name}: line 2: unknown partition (") or done.stderr.startswith(
        "kproc: line 2: unknown partition; "  # Where librdkafka knows the topic already.
    )
    assert [row["value"] for row in rows(kproc, name)] == ["1"]


def test_produce_record_size_limit_is_that_of_topic(kproc, topic):
    large = "x" * 2_000_000
    assert (
        kproc(f"produce {(name := topic(configs={'max.message.bytes': '3000000'}))}", stdin=large).returncode
        == 0
    )
    assert [len(str(row["value"])) for row in rows(kproc, name)] == [2_000_000]
    done = kproc(f"produce {(name := topic())}", stdin=large)
    assert (done.returncode, done.stderr) == (
        1,
        f"kproc: {name}: line 1: Message size too large (MESSAGE_TOO_LARGE) (0 records were delivered)\n",
    )


def test_keys_and_headers_of_the_command_line_need_not_be_text(kproc, broker, topic, capsys):
    name = topic(partitions=1)
    odd = os.fsdecode(b"\xff")
    options = ["--bootstrap", broker.bootstrap, "-k", odd, "-H", f"a={odd}"]
    assert call_kproc(capsys, "produce", name, *options, stdin="v\n").returncode == 0
    [row] = rows(kproc, name)
    assert (row["key"], row["headers"]) == ({"base64": "/w=="}, [["a", {"base64": "/w=="}]])
    done = call_kproc(capsys, "produce", name, "--bootstrap", broker.bootstrap, "-H", f"{odd}=a", stdin="v\n")
    assert (done.returncode, done.stderr) == (2, "kproc: --header b'\\xff': a name must be UTF-8\n")


def take_the_terminal() -> None:
    """As a shell starts its command: with the terminal as the controlling one, and with Ctrl-C in force."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    heed_signals()


def on_a_terminal(*arguments: str, typed: bytes) -> tuple[bytes, int]:
    """What the terminal shows of a command, and its exit code."""
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-m", "kproc", *arguments],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    ) as process:
        os.close(theirs)
        try:
            while b"ends" not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, typed)
            while True:
                shown += os.read(ours, 1000)
        except OSError:
            pass  # The other side has closed.
        finally:
            os.close(ours)
            try:
                process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
    return shown.replace(b"\r\n", b"\n"), process.returncode


def test_produce_at_terminal_prints_how_to_end(kproc, broker, topic):
    name = topic(partitions=1)
    shown, code = on_a_terminal("produce", name, "-b", broker.bootstrap, typed=b"one\n\x04")
    assert (shown.splitlines()[0], code) == (f"kproc: each line goes to {name}; Ctrl-D ends".encode(), 0)
    assert [row["value"] for row in rows(kproc, name)] == ["one"]
    shown, code = on_a_terminal("consume", name, "--follow", "-b", broker.bootstrap, typed=b"\x03")
    assert (shown.splitlines()[0], code) == (f"kproc: following {name}; Ctrl-C ends".encode(), 130)


def test_consume_group_at_terminal_prints_assignment(broker, topic):
    name = topic(partitions=2)
    arguments = ("consume", name, "--follow", "-b", broker.bootstrap, "--group", f"{name}-readers")
    shown, code = on_a_terminal(*arguments, typed=b"\x03")
    assert code == 130
    assert shown.splitlines()[0] == f"kproc: following {name}; Ctrl-C ends".encode()


def test_produce_in_a_pipe_prints_no_hint(kproc, topic):
    name = topic(partitions=1)
    assert kproc(f"produce {name}", stdin="one\n").stderr == ""
    assert kproc(f"consume {name} --from end --count 1 --from beginning").stderr == ""
