"""The table of commands: help texts, security options and usage errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.cli.main import run
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc
from tests.support.kproc_command import kproc


@pytest.fixture
def called(capsys, monkeypatch):
    """`called("topic list")`: the same in this process. None of these commands comes so far as to start a broker."""
    for name in [name for name in os.environ if name.startswith("KPROC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")

    return lambda command: call_kproc(capsys, *command.split())


@in_one_test(
    ("command", "words"),
    [
        ("", ["serve", "dev", "topic", "produce", "consume", "status", "version"]),
        (
            "serve",
            [
                "--config",
                "--listeners",
                "--data",
                "--processors",
                "--handlers",
                "--transport",
                "--set",
                "--ready-file",
                "num.network.threads",
                "log.dirs",
            ],
        ),
        ("dev", ["--port", "--set", "--topic", "--snippets"]),
        ("topic", ["create", "list", "describe", "delete"]),
        ("topic create", ["--partitions", "--config", "--bootstrap", "KPROC_BOOTSTRAP"]),
        (
            "produce",
            [
                "--key-separator",
                "--header",
                "--compression",
                "--acks",
                "--partition",
                "--null",
                "--json",
                "--timeout",
            ],
        ),
        (
            "consume",
            ["--from", "--until", "--count", "--follow", "--key", "--grep", "--format", "--partition", "--group"],
        ),
        ("status", ["--json", "--bootstrap"]),
    ],
)
def test_help_names_every_option(command, words, called):
    answer = called(f"{command} --help")
    assert answer.returncode == 0
    assert [word for word in words if word not in answer.stdout] == []


@pytest.mark.long
def test_help_of_pipeline_commands_is_whole_sentences():
    told = kproc("pipeline", "--help", COLUMNS="80").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(told) == 4
    assert [line for line in told if not line.endswith(".") or line.endswith("...")] == []


def test_no_command_is_cut_in_the_root_help(capsys):
    run(["--help"])
    shown = capsys.readouterr().out
    assert "serve " in shown
    assert "..." not in shown.partition("Commands:")[2]


def test_every_command_that_connects_takes_a_file_of_security() -> None:
    """By their own options: what is called like a broker's address is one."""
    import inspect

    from kproc.cli.commands import app

    def callbacks(group: Any) -> Iterator[Any]:
        for command in (*group.registered_commands, group.registered_callback):
            if command is not None and command.callback is not None:
                yield command.callback
        for part in group.registered_groups:
            yield from callbacks(part.typer_instance)

    takes = [(each.__module__, set(inspect.signature(each).parameters)) for each in callbacks(app)]
    connecting = [(name, given) for name, given in takes if {"bootstrap", "from_broker"} & given]
    assert len(connecting) > 20
    assert [name for name, given in connecting if "command_config" not in given] == []
    # A specification names the client ids of a pipeline.
    assert {name for name, given in connecting if "client_id" not in given} == {"kproc.cli.pipeline"}


BIG, HUGE = "99999999999", "9" * 30


@in_one_test(
    "command",
    [
        f"topic create t --partitions {BIG}",
        "topic create t --replication-factor 40000",
        f"topic alter t --partitions {BIG}",
        f"produce t --partition {BIG}",
        "produce t --timeout 0",
        "produce t --timeout inf",
        "produce t --transactional-id x --transaction-timeout -1",
        "produce t --transactional-id x --transaction-timeout 0.5",
        "produce t --transactional-id x --transaction-timeout inf",
        "produce t --transactional-id x --transaction-timeout nan",
        "produce t --transactional-id x --transaction-timeout 1e300",
        "txn list --longer-than 1e300",
        "txn list --longer-than inf",
        "txn list --longer-than nan",
        "txn find-hanging --longer-than inf",
        "txn find-hanging --longer-than nan",
        f"txn abort --topic t --partition {BIG} --start-offset 0",
        f"txn abort --topic t --partition 0 --start-offset {HUGE}",
        f"group seek g --shift {HUGE}",
        f"scale --handlers {BIG}",
        f"scale --processors {BIG}",
        "ping --timeout 1e300",
        "ping --timeout nan",
        "stop --timeout inf",
        "stop --timeout nan",
        f"stop --pid {HUGE}",
        "clients --interval inf",
        "clients --interval nan",
        "top --interval nan",
        "tune --seconds nan",
        f"fault add delay --ms {BIG}",
        f"fault add cut-answer --bytes {BIG}",
        f"fault add fill-disk --free-bytes {HUGE}",
    ],
)
def test_number_out_of_range_is_a_usage_error(called, command):
    """A number that the protocol cannot hold printed a stack."""
    answer = called(f"{command} --bootstrap 127.0.0.1:1" if not command.startswith("tune") else command)
    assert answer.returncode == 2
    assert re.fullmatch(r"kproc: [^\n]+\n", answer.stderr)
    assert ": expected a " in answer.stderr
