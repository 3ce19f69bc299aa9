"""`kproc config`: settings from a file or the standard input, and settings without effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.cli.config_requests import BROKER, TOPIC, Resource
from kproc.cli.configs import _change_row
from tests.support.broker import BrokerUnderTest
from tests.support.command_line import call_kproc

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]
Capture = pytest.CaptureFixture[str]


def test_config_set_reads_settings_from_file_and_stdin(
    broker: BrokerUnderTest, topic, capsys: Capture, tmp_path: Path
) -> None:
    """A password must not stand on a command line, which everybody on the host may read."""
    name, at = topic(), ("-b", broker.bootstrap)
    file = tmp_path / "settings"
    file.write_text("# ours\nretention.ms=12345\nsegment.bytes = 2000000\n")
    done = call_kproc(capsys, "config", "set", "--topic", name, "--file", str(file), "--yes", *at)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"changed retention.ms of topic {name}: 604800000 -> 12345\n"
        f"changed segment.bytes of topic {name}: 1073741824 -> 2000000\n"
    )
    done = call_kproc(
        capsys, "config", "set", "--topic", name, "--file", "-", "--unset", "retention.ms", "--yes", *at,
        stdin="max.message.bytes=7777\n",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(call_kproc(capsys, "config", "get", "--topic", name, "-f", "json", *at).stdout)
    assert {row["name"]: row["value"] for row in shown} == {
        "segment.bytes": "2000000",
        "max.message.bytes": "7777",
        "min.insync.replicas": "1",  # The cluster-wide default of new clusters.
    }


def test_config_set_without_readable_file_changes_nothing(
    broker: BrokerUnderTest, capsys: Capture, tmp_path: Path
) -> None:
    at = ("-b", broker.bootstrap)
    done = call_kproc(capsys, "config", "set", "--file", str(tmp_path / "missing"), *at)
    assert done.returncode == 1
    assert "missing: No such file or directory" in done.stderr
    done = call_kproc(capsys, "config", "set", "--file", "-", *at, stdin="# nothing\n")
    assert done.returncode == 2
    assert "nothing to change" in done.stderr


def test_change_of_an_unknown_broker_setting_is_hidden() -> None:
    """Kafka does not list a plugin's setting that has no value yet, and the new value can be a password."""
    change = {"name": "com.example.plugin.token", "value": "s3cret"}
    broker, topic = Resource(BROKER, "1"), Resource(TOPIC, "t")
    for resource, before, values in (
        (broker, None, ("not set", "(hidden)")),
        (broker, {"value": "old"}, ("old", "s3cret")),
        (topic, None, ("not set", "s3cret")),
    ):
        row = _change_row(resource, before, change)
        assert (row["from"], row["to"]) == values
    assert _change_row(broker, None, change | {"name": "num.io.threads", "value": "3"})["to"] == "3"


def test_config_set_of_password_as_argument_warns(broker: BrokerUnderTest, capsys: Capture) -> None:
    name = "listener.name.plaintext.ssl.keystore.password"
    given = ("config", "set", "--dry-run", "-b", broker.bootstrap)
    warned = call_kproc(capsys, *given, f"{name}=s3cret-4711")
    assert f"warning: {name}: every user of this host can read a command line; use --file" in warned.stderr
    assert "s3cret-4711" not in warned.stdout + warned.stderr
    assert warned.stdout.endswith(" -> (hidden)\n")
    silent = call_kproc(capsys, *given, "--file", "-", stdin=f"{name}=s3cret-4711\n")
    assert "warning" not in silent.stderr


def test_config_get_says_that_setting_has_no_effect(broker: BrokerUnderTest, capsys: Capture) -> None:
    at = ("-b", broker.bootstrap)
    settings = ("sasl.kerberos.min.time.before.relogin=58000", "background.threads=12")
    names = [setting.partition("=")[0] for setting in settings]
    assert call_kproc(capsys, "config", "set", *settings, *at).returncode == 0
    try:
        shown = call_kproc(capsys, "config", "get", *names, *at).stdout.splitlines()
        assert len(shown) == 3
        assert all("no effect: " in line for line in shown[1:])
        listed = call_kproc(capsys, "config", "get", *at).stdout
        assert all(name in listed for name in names)
    finally:
        unset = [word for name in names for word in ("--unset", name)]
        assert call_kproc(capsys, "config", "set", "--yes", *unset, *at).returncode == 0


def test_config_get_all_fits_terminal_of_80_columns(
    broker: BrokerUnderTest, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    shown = call_kproc(capsys, "config", "get", "--all", "-b", broker.bootstrap).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    names = {line.split()[0] for line in shown if line}
    assert "transaction.abort.timed.out.transaction.cleanup.interval.ms" in names
    assert any(line.split()[1:2] == ["9223372036854775807"] for line in shown)


def test_config_unset_of_read_only_setting_is_rejected(broker: BrokerUnderTest, capsys: Capture) -> None:
    """Kafka's protocol accepts the removal of what is not set, so the command said that it had changed something."""
    done = call_kproc(
        capsys,
        "config",
        "set",
        "--unset",
        "num.partitions",
        "--unset",
        "log.retention.ms",
        "-b",
        broker.bootstrap,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "kproc: num.partitions: read-only; change the file, variable or option that the broker starts with\n"
    )


def test_config_explain_shows_present_value(broker: BrokerUnderTest, topic, capsys: Capture) -> None:
    name, at = topic(), ("-b", broker.bootstrap)
    assert call_kproc(capsys, "config", "set", "-t", name, "flush.ms=5000", *at).returncode == 0
    shown = call_kproc(capsys, "config", "explain", "flush.ms", "-t", name, *at).stdout
    assert ["now", "5000 (set for this topic)"] in [line.split(maxsplit=1) for line in shown.splitlines()]
    shown = call_kproc(capsys, "config", "explain", "log.dirs", "log.segment.delete.delay.ms", *at).stdout
    assert "set at the start by file, environment or command line" in shown
    shown = call_kproc(capsys, "config", "explain", "flush.ms", "-t", f"{name}-missing", *at).stdout
    assert shown.startswith("flush.ms (topic)\n")
    assert "The present value is unknown: " in shown
    # Without --topic, a topic's setting has no present value.
    assert "  now  " not in call_kproc(capsys, "config", "explain", "flush.ms", *at).stdout


def test_config_unset_of_unknown_setting_is_rejected(broker: BrokerUnderTest, topic, capsys: Capture) -> None:
    """It was reported as changed, so that a typing error was not noticed."""
    name, at = topic(), ("--unset", "no.such.setting", "--yes", "-b", broker.bootstrap)
    for command, resource in (
        (("topic", "alter", name), f"topic {name}"),
        (("config", "set", "--topic", name), f"topic {name}"),
        (("config", "set", "--group", "g"), "group g"),
        (("config", "set"), "broker 1"),
    ):
        done = call_kproc(capsys, *command, *at)
        assert (done.returncode, done.stderr) == (1, f"kproc: {resource} has no setting no.such.setting\n")
