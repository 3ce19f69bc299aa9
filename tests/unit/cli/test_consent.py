"""Destructive commands ask on a terminal, and refuse without one unless --yes or --dry-run is given."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kproc.cli.commands import app
from kproc.cli.common import Format
from kproc.cli.config_requests import Resource
from kproc.cli.configs import _is_risky
from kproc.cli.connection import connection_settings
from kproc.cli.consent import Consent
from kproc.cli.failure import Failure
from kproc.cli.profile_store import Profile, change_profiles, find_connection
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc, commands

DESTRUCTIVE = {
    "topic delete": "t",
    "topic trim": "t --before end",
    "group delete": "g",
    "user delete": "alice",
    "acl delete": "alice",
    "quota delete": "--user alice producer_byte_rate",
    "txn abort": "id",
    "pipeline reset": "no-such.toml",
}
_READS = "changes nothing"
_RECORDS = "sends records, which is its purpose"
_OWN_FILE = "changes a file of the user that lists addresses"
WITHOUT_DRY_RUN = {
    **dict.fromkeys(
        (
            "acl check", "acl list", "api", "clients", "config explain", "config get", "consume", "doctor",
            "dump-log", "fault list", "group describe", "group list", "monitor", "perf consume", "ping",
            "pipeline check", "pipeline status", "profile list", "profile show", "quota list", "status",
            "time show", "top", "topic describe", "topic list", "topic verify", "tune list", "txn describe",
            "txn find-hanging", "txn list", "user list", "version", "bench compare", "bench report",
            "bench simulate", "bench sweep",
        ),
        _READS,
    ),
    **dict.fromkeys(("latency", "perf produce", "produce"), _RECORDS),
    **dict.fromkeys(("profile add", "profile remove", "profile use"), _OWN_FILE),
    "serve": "runs a broker", "dev": "runs a broker", "pipeline run": "kproc pipeline check shows what it would do",
}  # fmt: skip
ROWS = [{"result": "would delete", "name": "a"}, {"result": "would delete", "name": "b\x1b"}]
WORDS = "{result} {name}"
TOPIC = Resource(2, "t")


class Terminal(io.TextIOWrapper):
    """A terminal on which somebody types `typed`."""

    def __init__(self, typed: str = "") -> None:
        super().__init__(io.BytesIO(typed.encode()), "utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        buffer: Any = self.buffer
        return str(buffer.getvalue().decode())


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`at_terminal("y\\n")`: what the user then types. Returns the terminal's output."""

    def make(typed: str) -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return make


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_destructive_command_without_terminal_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    at = () if command.startswith("pipeline") else ("-b", "127.0.0.1:1")
    answer = call_kproc(capsys, *command.split(), *DESTRUCTIVE[command].split(), *at)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        f"kproc: {command}: there is no terminal to ask for confirmation; give --yes or --dry-run\n"
    )


def test_every_command_that_deletes_takes_yes_and_dry_run() -> None:
    options = {
        path: {name for option in command.params for name in option.opts}
        for path, command in commands(typer.main.get_command(app))
    }
    deleting = {path for path in options if path.endswith((" delete", " trim", " abort", " reset"))}
    assert deleting == DESTRUCTIVE.keys()
    assert not [path for path in deleting if not {"--yes", "-y", "--dry-run"} <= options[path]]


def test_every_other_command_has_a_dry_run_or_a_reason() -> None:
    options = {
        path: {name for option in command.params for name in option.opts}
        for path, command in commands(typer.main.get_command(app))
    }
    lacking = {path for path, names in options.items() if "--dry-run" not in names}
    assert lacking == WITHOUT_DRY_RUN.keys()


def test_plan_is_shown_on_stderr_before_the_question(at_terminal: Any, capsys: Any) -> None:
    shown = at_terminal("y\n")
    Consent().check("topic delete")
    assert Consent().obtain(ROWS, WORDS, Format.TABLE)
    assert shown.text() == "would delete a\nwould delete b\\x1b\ndelete? [y/N] "
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("typed", ["n\n", "\n", "no\n", "yesterday\n", ""])
def test_everything_but_yes_declines(at_terminal: Any, typed: str) -> None:
    at_terminal(typed)
    with pytest.raises(Failure, match="nothing was changed"):
        Consent().obtain(ROWS, WORDS, Format.TABLE)


def test_yes_neither_shows_nor_asks(at_terminal: Any) -> None:
    shown = at_terminal("")
    assert Consent(yes=True).obtain(ROWS, WORDS, Format.TABLE)
    assert shown.text() == ""


@pytest.mark.parametrize("yes", [True, False])
def test_dry_run_prints_rows_and_wins_over_yes(capsys: pytest.CaptureFixture[str], yes: bool) -> None:
    consent = Consent(yes=yes, dry_run=True)
    consent.check("topic delete")
    assert not consent.obtain(ROWS, WORDS, Format.TABLE)
    assert capsys.readouterr().out == "would delete a\nwould delete b\\x1b\n"


@in_one_test(
    ("name", "old", "source", "new", "is_risky"),
    [
        ("retention.ms", "1000", "default", "999", True),
        ("retention.ms", "1000", "default", "1001", False),
        ("retention.ms", "1000", "default", "-1", False),
        ("retention.ms", "-1", "topic", "1000", True),
        ("log.retention.ms", None, "default", "1000", True),
        ("retention.ms", "1000", "topic", "x", False),
        ("segment.ms", "1000", "topic", "1", False),
        ("segment.ms", "1000", "topic", None, True),
        ("segment.ms", "1000", "default", None, False),
        ("segment.ms", "1000", "broker", None, False),
        ("cleanup.policy", "delete", "default", "compact,delete", True),
        ("cleanup.policy", "compact,delete", "topic", "delete", False),
    ],
)
def test_change_is_risky_if_it_loses_a_value_or_records(
    name: str, old: str | None, source: str, new: str | None, is_risky: bool
) -> None:
    assert _is_risky(TOPIC, {"name": name, "value": old, "source": source}, new) is is_risky


def test_question_names_the_profile_in_use(at_terminal: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The command line does not say which broker it is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with change_profiles() as profiles:
        profiles.by_name["prod"] = Profile("10.0.0.5:9092")
    for connection, expected in (
        (find_connection(None, "prod"), "profile prod (10.0.0.5:9092): delete? [y/N] "),
        (find_connection("a:1", None), "delete? [y/N] "),
    ):
        shown = at_terminal("y\n")
        with connection_settings(connection, None):
            Consent().require("delete?")
        assert shown.text() == expected
