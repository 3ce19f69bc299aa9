"""Completion in a shell: topics, groups, settings, loggers; no words and no delay without a broker."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable

import pytest

from kproc.cli import completion
from kproc.cli.main import run
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(capsys, monkeypatch) -> Complete:
    """`complete("topic delete t-1")`: what a shell would offer; `bootstrap` as the environment names it."""

    def ask(line: str, *, bootstrap: str | None = None) -> list[str]:
        # Bash breaks words at these signs, too.
        words = [word for part in f"kproc {line}".split(" ") for word in re.split("([:=]+)", part)]
        words = [word for word in words[:-1] if word] + words[-1:]
        monkeypatch.setenv("_KPROC_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        if bootstrap is not None:
            monkeypatch.setenv("KPROC_BOOTSTRAP", bootstrap)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run([])
        shown = capsys.readouterr()
        assert (shown.err, ended.value.code) == ("", 0)
        return shown.out.split()

    return ask


@pytest.mark.parametrize(
    "command",
    [
        "consume",
        "consume other",
        "produce",
        "topic describe",
        "topic delete",
        "topic alter",
        "topic trim",
        "config get --topic",
        "group seek g --topic",
    ],
)
def test_topics_of_the_broker(complete, broker, topic, command):
    name = topic()
    assert complete(f"{command} {name[:-1]}", bootstrap=broker.bootstrap).count(name) == 1
    assert complete(f"{command} no-such-{name}", bootstrap=broker.bootstrap) == []


def test_completion_uses_bootstrap_of_command_line(complete, broker, topic):
    name = topic()
    for option in ("-b ", "--bootstrap ", "--bootstrap="):
        line = f"consume {option}{broker.bootstrap} {name}"
        assert complete(line, bootstrap="127.0.0.1:1") == [name]


def test_groups_of_the_broker(complete, broker, topic, capsys):
    name, group = topic(), fresh_name()
    done = call_kproc(capsys, "consume", name, "--group", group, "--bootstrap", broker.bootstrap)
    assert done.returncode == 0
    commands = ["group describe", "group delete", "group seek", "consume t --group", "config set a=b --group"]
    offered = {each: complete(f"{each} {group}", bootstrap=broker.bootstrap) for each in commands}
    assert offered == {each: [group] for each in commands}


@in_one_test(
    ("line", "found"),
    [
        ("config get num.io", ["num.io.threads"]),
        ("config get --topic t retention.m", ["retention.ms"]),
        ("config get --group g share.auto", ["share.auto.offset.reset"]),
        ("config explain retention.m", ["retention.ms"]),
        ("config explain num.io", ["num.io.threads"]),
        ("config explain --group g share.auto", ["share.auto.offset.reset"]),
        ("config set num.io", ["num.io.threads="]),
        ("config set a=1 num.io", ["num.io.threads="]),
        ("config set num.io.threads=", []),
        ("config set --unset=num.io", ["num.io.threads"]),
        ("config set --topic t retention.m", ["retention.ms="]),
        ("config set --unset num.io", ["num.io.threads"]),
        ("config set --topic t --unset retention.m", ["retention.ms"]),
        ("topic create t --config retention.m", ["retention.ms="]),
        ("topic alter t -c retention.m", ["retention.ms="]),
        ("topic alter t --unset retention.m", ["retention.ms"]),
        ("serve --set kproc.flus", ["kproc.flush="]),
        ("dev -s num.io", ["num.io.threads="]),
    ],
)
def test_completion_of_setting_names_needs_no_broker(complete, line, found):
    assert complete(line, bootstrap="127.0.0.1:1") == found


def test_loggers_of_the_broker(complete, broker):
    assert complete("config set --loggers roo", bootstrap=broker.bootstrap) == ["root="]
    assert complete("config get --loggers roo", bootstrap=broker.bootstrap) == ["root"]


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "no such:host", "a..b:9092", "127.0.0.1:1,127.0.0.1:2"])
def test_completion_without_broker_is_silent(complete, bootstrap):
    for line in ("consume t", "group describe g", "consume t --group g", "config set --loggers r"):
        assert complete(line, bootstrap=bootstrap) == []


def test_completion_times_out_on_silent_port(complete, monkeypatch):
    monkeypatch.setattr(completion, "WAIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete("consume t", bootstrap=f"127.0.0.1:{silent.getsockname()[1]}") == []


def test_completion_does_not_wait_for_name_server(complete, monkeypatch):
    answered, asked = threading.Event(), threading.Event()

    def connect(_bootstrap: str, *, timeout_ms: int) -> object:
        asked.set()
        answered.wait(PATIENCE_SECONDS)
        raise completion.Failure("too late")

    monkeypatch.setattr(completion, "WAIT_S", 0.1)
    monkeypatch.setattr(completion, "connect", connect)
    try:
        assert complete("consume t", bootstrap="slow.example:9092") == []
        assert asked.wait(PATIENCE_SECONDS)
        assert not answered.is_set()
        assert [each.name for each in threading.enumerate() if each.name == "completion"] == ["completion"]
    finally:
        answered.set()
