"""--client-id, and client.id of a client file: the client id of a command's requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kproc
from tests.support.broker import forked_broker
from tests.support.command_line import call_kproc

TOPIC = "orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[kproc.Broker]:
    with forked_broker()(transport="inline") as broker:
        broker.create_topic(TOPIC)
        yield broker


@pytest.fixture
def client_file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text("client.id = from-file \n")
    return path


@pytest.mark.long
def test_all_requests_of_a_command_have_its_client_id(
    broker: kproc.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap", broker.bootstrap, "--client-id", "nightly")
    for command, line in (
        (["produce", TOPIC], "a record\n"),
        (["produce", TOPIC, "--transactional-id", "t"], "another\n"),
        (["consume", TOPIC], ""),
        (["consume", TOPIC, "--group", "g"], ""),
        (["topic", "describe", TOPIC], ""),
        (["status"], ""),
        (["perf", "produce", TOPIC, "--records", "1"], ""),
        (["perf", "produce", TOPIC, "--records", "1", "--transaction-records", "1"], ""),
        (["perf", "consume", TOPIC, "--once"], ""),
    ):
        with broker.requests.recording() as requests:
            done = call_kproc(capsys, *command, *where, stdin=line)
            names = {seen.client_id for seen in requests.list()}
        assert done.returncode == 0, (command, done.stderr)
        # librdkafka sends no ApiVersions with a client id of its own, so every request has the given one.
        assert names == {"nightly"}, command


def test_client_id_of_the_file_counts_without_the_option(
    broker: kproc.Broker, client_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap", broker.bootstrap, "--command-config", str(client_file))
    for options, name in (((), "from-file"), (("--client-id", "given"), "given")):
        for command in (["topic", "describe", TOPIC], ["consume", TOPIC]):
            with broker.requests.recording() as requests:
                done = call_kproc(capsys, *command, *where, *options)
                names = {seen.client_id for seen in requests.list()}
            assert done.returncode == 0, done.stderr
            assert names == {name}, (command, options)


def test_client_id_that_no_request_can_hold_is_rejected(
    broker: kproc.Broker, client_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap", broker.bootstrap)
    for name, reason in (
        ("x" * 32_768, "has 32768 bytes; at most 32767 are possible"),
        ("\udcff", "must be UTF-8"),
        ("", "must not be empty"),
    ):
        for command in (["topic", "list"], ["consume", TOPIC], ["produce", TOPIC]):
            done = call_kproc(capsys, *command, *where, "--client-id", name)
            assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"kproc: --client-id: {reason}"), command
    client_file.write_text(f"client.id={'é' * 20_000}\n")
    done = call_kproc(capsys, "topic", "list", *where, "--command-config", str(client_file))
    assert "client.id: has 40000 bytes" in done.stderr
