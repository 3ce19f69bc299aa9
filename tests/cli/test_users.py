"""`kproc user`: the first user before the first start, others of the running broker; no password in an argument."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from kproc.cli.configs import _changes_in
from kproc.cli.failure import Failure
from kproc.cli.users import _password
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.command_line import Kproc, call_kproc
from tests.support.raw import Closed, RawConnection
from tests.support.scram_client import ScramClient
from tests.support.secured import LISTENER, SecuredBroker, sasl_settings, secured

KINDS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

pytestmark = pytest.mark.transports("process")


@pytest.fixture
def kproc(capsys: pytest.CaptureFixture[str]) -> Kproc:
    """`kproc("list", "--data", DIR, stdin="password")`."""

    def call(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call_kproc(capsys, "user", *map(str, arguments), stdin=stdin)

    return call


def users(kproc: Kproc, *where: object) -> list[tuple[str, str, int]]:
    answer = kproc("list", "--format", "json", *where)
    assert answer.returncode == 0, answer.stderr
    return [(row["user"], row["mechanism"], row["iterations"]) for row in json.loads(answer.stdout)]


def can_log_in(broker: ServedBroker, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    client = ScramClient(KINDS[mechanism], name, password)
    with RawConnection(broker.bootstrap) as connection:
        connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
        first = connection.call(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": client.first()})
        try:
            last = connection.call(
                ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": client.final(first["auth_bytes"])}
            )
        except Closed:
            return False
        return last["error_code"] == 0 and client.is_server(last["auth_bytes"])


@pytest.mark.own_broker
def test_user_add_before_the_first_start(tmp_path: Path, kproc: Kproc) -> None:
    data = tmp_path / "data"
    added = kproc("add", "admin", "--data", data, stdin="first-word\nmore\n")
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.splitlines() == ["added admin by SCRAM-SHA-256", "added admin by SCRAM-SHA-512"]
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    settings = sasl_settings(tuple(KINDS))
    with ServedBroker(data, settings=settings, listener=LISTENER) as broker:
        for mechanism in KINDS:
            assert can_log_in(broker, "admin", "first-word", mechanism)
            assert not can_log_in(broker, "admin", "other-word", mechanism)
        assert "nobody can log in" not in broker.log()
        busy = kproc("list", "--data", data)
        assert busy.returncode == 1
        assert "is in use by another broker" in busy.stderr
    assert not any(b"first-word" in file.read_bytes() for file in data.rglob("*") if file.is_file())


@pytest.mark.own_broker
def test_user_commands_on_stopped_broker_keep_clean_marker(tmp_path: Path, kproc: Kproc) -> None:
    with ServedBroker(tmp_path / "data"):
        pass
    marker = tmp_path / "data" / CLEAN_SHUTDOWN_FILE
    before = marker.read_bytes()
    where = ("--data", tmp_path / "data")
    twice = ("-m", "scram-sha-256", "-m", "SCRAM-SHA-256")
    added = kproc("add", "bob", *twice, "--iterations", 5000, *where, stdin="w")
    assert (added.returncode, added.stdout) == (0, "added bob by SCRAM-SHA-256\n")
    assert users(kproc, *where) == [("bob", "SCRAM-SHA-256", 5000)]
    assert kproc("delete", "bob", "--yes", *where).returncode == 0
    assert users(kproc, *where) == []
    gone = kproc("delete", "bob", "--yes", *where)
    assert (gone.returncode, gone.stderr) == (1, "kproc: there is no user bob\n")
    assert marker.read_bytes() == before


def test_user_commands_report_bad_settings_before_password(
    tmp_path: Path, kproc: Kproc
) -> None:
    settings, data = tmp_path / "server.properties", tmp_path / "data"
    settings.write_text("listeners=SASL_PLAINTEXT://127.0.0.1:0\n")
    where = ("--config", settings, "--data", data)
    for command in (("add", "alice", "--password-file", tmp_path / "none"), ("list",), ("delete", "alice", "--yes")):
        told = kproc(*command, *where)
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr.startswith(
            "kproc: sasl.enabled.mechanisms: GSSAPI, the default, is not supported ("
        )
        assert "set one or more of PLAIN, SCRAM-SHA-256" in told.stderr
        assert not data.exists()
    settings.write_text(settings.read_text() + "sasl.enabled.mechanisms=SCRAM-SHA-256\n")
    assert kproc("add", "alice", *where, stdin="w").returncode == 0
    assert [name for name, _, _ in users(kproc, *where)] == ["alice"] * 2


@pytest.mark.own_broker
def test_users_of_a_running_broker(tmp_path: Path, kproc: Kproc, monkeypatch: pytest.MonkeyPatch) -> None:
    with secured(tmp_path / "data", mechanisms=("PLAIN", *KINDS)) as broker:
        monkeypatch.setenv("KPROC_COMMAND_CONFIG", str(client_config(tmp_path, broker)))
        where = ("--bootstrap", broker.bootstrap)
        file = tmp_path / "password"
        file.write_text("carols-word\n")
        assert kproc("add", "carol", "--password-file", file, *where).returncode == 0
        assert users(kproc, *where) == [
            ("alice", "SCRAM-SHA-256", 4096), ("alice", "SCRAM-SHA-512", 4096),
            ("carol", "SCRAM-SHA-256", 8192), ("carol", "SCRAM-SHA-512", 8192),
        ]  # fmt: skip
        assert can_log_in(broker, "carol", "carols-word")
        assert (
            kproc("delete", "carol", "-m", "SCRAM-SHA-512", "--yes", *where).stdout
            == "deleted carol by SCRAM-SHA-512\n"
        )
        assert not can_log_in(broker, "carol", "carols-word")
        assert can_log_in(broker, "carol", "carols-word", "SCRAM-SHA-256")


def client_config(directory: Path, broker: SecuredBroker) -> Path:
    file = directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in broker.java("PLAIN").items()))
    return file


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["add", "x"], "", "the password must not be empty"),
        (["add", "x"], "\nsecond line\n", "the password must not be empty"),
        (["add", "x", "-m", "SCRAM-SHA-1"], "w", "--mechanism SCRAM-SHA-1: it is SCRAM-SHA-256 or SCRAM-SHA-512"),
        (["add", "x", "--iterations", "4095"], "w", "4096"),
        (["add", ""], "w", "Username must not be empty"),
        (["add", "", "--dry-run"], "", "Username must not be empty"),
        (["add", "jürgen"], "w", "'jürgen': SCRAM user names must be ASCII"),
        (["list"], "", "there is no data directory"),
        (["add", "x", "--password-file", "missing"], "", "missing"),
    ],
)  # fmt: skip
def test_failed_user_commands_print_one_line(
    tmp_path: Path, kproc: Kproc, arguments: list[str], stdin: str, complaint: str
) -> None:
    answer: Any = kproc(*arguments, "--data", tmp_path / "missing", stdin=stdin)
    assert answer.returncode in (1, 2)
    assert complaint in answer.stderr


def test_listing_users_of_another_directory_writes_nothing(tmp_path: Path, kproc: Kproc) -> None:
    """`user list --data DIR` made the metadata of a new broker in any directory."""
    for command in (("list",), ("delete", "x", "--yes")):
        answer = kproc(*command, "--data", tmp_path)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert f"{tmp_path} is not the data directory of a broker: it has no __cluster_metadata-0" in answer.stderr
    assert list(tmp_path.iterdir()) == []
    for directory in (tmp_path, tmp_path / "new"):
        would = kproc("add", "x", "--dry-run", "-m", "SCRAM-SHA-256", "--data", directory)
        assert (would.returncode, would.stdout) == (0, "would add x by SCRAM-SHA-256\n")
    assert list(tmp_path.iterdir()) == []


def test_secret_that_is_not_utf8_is_rejected_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of encode() printed the password in the C locale, and a file caused a traceback."""
    file = tmp_path / "secret"
    file.write_bytes(b"name=secret\xff\n")
    for errors in ("strict", "surrogateescape"):
        for read, problem in (
            (lambda: _password("bob", None), "the password must be UTF-8"),
            (lambda: _password("bob", file), "the password must be UTF-8"),
            (lambda: _changes_in("-"), "--file -: it is not UTF-8"),
        ):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes()), "utf-8", errors))
            with pytest.raises(Failure) as raised:
                read()
            assert str(raised.value) == problem


@pytest.mark.own_broker
def test_broker_without_users_warns_at_start(tmp_path: Path) -> None:
    with ServedBroker(tmp_path / "data", settings=sasl_settings(tuple(KINDS)), listener=LISTENER) as broker:
        assert "nobody can log in at SASL://127.0.0.1:0: no SCRAM user exists" in broker.log()
        assert "kproc user add NAME --data" in broker.log()
