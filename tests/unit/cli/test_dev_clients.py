"""The banner of `kproc dev`, its --topic option, and the settings that it prints for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kproc.cli.dev_clients import banner, client_lines
from tests.support.command_line import call_kproc, refused


def ready(bootstrap: str = "127.0.0.1:9092", **more: Any) -> dict[str, Any]:
    listeners = {"PLAINTEXT": {"bound": bootstrap, "advertised": bootstrap}}
    return {"bootstrap": bootstrap, "data": "/data", "listeners": listeners, **more}


def test_banner_has_address_stop_and_three_commands() -> None:
    assert banner(ready(), {}, is_temporary=True, command_config=None) == (
        "kproc is ready at 127.0.0.1:9092. Ctrl-C stops it and deletes its data.\n"
        "\n"
        "Try in another terminal:\n"
        "  kproc topic create greetings --partitions 3\n"
        "  echo hello | kproc produce greetings\n"
        "  kproc consume greetings\n"
    )


def test_banner_commands_use_first_topic() -> None:
    shown = banner(ready(), {"orders": 3, "audit": 1}, is_temporary=True, command_config=None).splitlines()
    assert "  topics    orders (3 partitions), audit (1 partition)" in shown
    assert shown[-3:] == [
        "  echo hello | kproc produce orders",
        "  kproc consume orders",
        "  kproc topic describe orders",
    ]


def test_banner_exports_what_the_commands_need() -> None:
    shown = banner(
        ready("127.0.0.1:7"), {}, is_temporary=False, command_config=Path("/a b/alice.properties")
    ).splitlines()
    assert shown[0] == "kproc is ready at 127.0.0.1:7. Ctrl-C stops it and keeps /data."
    assert "  export KPROC_BOOTSTRAP=127.0.0.1:7" in shown
    assert "  export KPROC_COMMAND_CONFIG='/a b/alice.properties'" in shown


def test_banner_shows_further_addresses() -> None:
    listeners = {
        "IN": {"bound": "127.0.0.1:9092", "advertised": "127.0.0.1:9092"},
        "OUT": {"bound": "127.0.0.1:9093", "advertised": "broker:9093"},
    }
    known = ready(listeners=listeners, control="127.0.0.1:1", metrics="127.0.0.1:2")
    shown = banner(known, {}, is_temporary=True, command_config=None).splitlines()
    assert shown[1:5] == [
        "  IN        127.0.0.1:9092",
        "  OUT       127.0.0.1:9093, advertised as broker:9093",
        "  control   127.0.0.1:1",
        "  metrics   http://127.0.0.1:2/metrics",
    ]


def test_client_lines_without_security_have_the_address_only() -> None:
    assert client_lines(None, "127.0.0.1:7").splitlines() == [
        "clients:",
        "  kproc                 kproc topic list -b 127.0.0.1:7",
        "  Kafka's tools         --bootstrap-server 127.0.0.1:7",
        "  Java                  bootstrap.servers=127.0.0.1:7",
        '  confluent-kafka       {"bootstrap.servers": "127.0.0.1:7"}',
        "  kafka-python          bootstrap_servers='127.0.0.1:7'",
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--topic", "a:0"], "--topic a:0: expected NAME or NAME:PARTITIONS, such as orders:3"),
        (["--topic", "a:"], "--topic a:: expected NAME or NAME:PARTITIONS, such as orders:3"),
        (["--topic", "a:x"], "--topic a:x: expected NAME or NAME:PARTITIONS, such as orders:3"),
        (["--topic", "a", "--topic", "a:2"], "--topic a is given twice"),
        (["--topic", "a/b"], "--topic a/b: Topic name is invalid: 'a/b' contains one or more characters"),
        (["--topic", "a:10001"], "--topic a: Excessively large number of partitions per request."),
        (["--topic", "a.b", "--topic", "a_b"], "--topic a_b: Topic 'a_b' collides with existing topic: a.b"),
    ],
)
def test_wrong_topic_of_dev_is_a_usage_error(
    options: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(call_kproc(capsys, "dev", "--port", "0", *options), 2).startswith(f"kproc: {problem}")


def test_topic_of_dev_needs_temporary_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = f"log.dirs={tmp_path / 'data'}"
    done = call_kproc(capsys, "dev", "--port", "0", "--topic", "a", "--set", given)
    assert f"leave out {given}" in refused(done, 2)
    assert not (tmp_path / "data").exists()
