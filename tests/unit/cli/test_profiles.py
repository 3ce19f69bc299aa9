"""Saved connections of `kproc profile`: the file, the commands, and what takes precedence over what."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from kproc.cli import connection, lifecycle
from kproc.cli.common import DEFAULT_BOOTSTRAP
from kproc.cli.failure import Failure
from kproc.cli.profile_store import (
    change_profiles,
    complete_profiles,
    find_connection,
    load_profiles,
    profiles_path,
)
from tests.support.command_line import Kproc, call_kproc, described, refused, told

VARIABLES = ("KPROC_BOOTSTRAP", "KPROC_COMMAND_CONFIG", "KPROC_PROFILE")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration directory without profiles."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def kproc(capsys: pytest.CaptureFixture[str]) -> Kproc:
    return lambda command, *more: call_kproc(capsys, *command.split(), *more)


@pytest.fixture
def security(home: Path) -> Path:
    file = home / "staging.properties"
    file.write_text("security.protocol=SSL\n")
    return file


def test_profile_life_cycle(kproc: Kproc, security: Path) -> None:
    assert told(kproc("profile list")) == "no profiles yet: kproc profile add NAME --bootstrap HOST:PORT\n"
    told(kproc("profile add dev -b 127.0.0.1:1"))
    done = kproc("profile add staging -b a:2,b:3 --use --command-config", str(security))
    assert told(done) == "saved staging, used from now on\n"
    assert [line.split() for line in told(kproc("profile list")).splitlines()] == [
        ["PROFILE", "BOOTSTRAP", "COMMAND-CONFIG"],
        ["dev", "127.0.0.1:1", "-"],
        ["staging*", "a:2,b:3", str(security)],
    ]
    expected = {"profile": "staging", "bootstrap": "a:2,b:3", "command_config": str(security)}
    assert described(kproc("profile show --format json")) == {**expected, "source": "kproc profile use"}
    assert told(kproc("profile use dev")) == "using dev\n"
    assert described(kproc("profile list --format json"))[0] == {
        "name": "dev",
        "current": True,
        "bootstrap": "127.0.0.1:1",
        "command_config": None,
    }
    assert told(kproc("profile remove dev")) == "removed dev; no profile is in use now\n"
    assert list(load_profiles().by_name) == ["staging"]


@pytest.mark.parametrize("options", ["--command-config {}", "--profile staging"])
def test_settings_of_a_command_end_with_it(kproc: Kproc, security: Path, options: str) -> None:
    """Otherwise the next command in the same process connects with the file of this one."""
    told(kproc("profile add staging -b 127.0.0.1:1 --command-config", str(security)))
    refused(kproc(f"ping {options.format(security)} --timeout 1"), 1)
    assert connection.command_config_in_force() is None
    assert connection.profile_in_use() is None


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        ("profile add -x -b a:1", 2, "No such option"),
        ("profile add a/b -b a:1", 2, "'a/b': a profile's name has up to 64 letters"),
        ("profile add a -b nowhere:port", 2, "--bootstrap: nowhere:port is not an address"),
        (
            "profile add a -b a:1 --command-config /no/such",
            2,
            "--command-config /no/such: there is no such file",
        ),
        ("profile add there -b a:1", 1, "profile there exists already; change it with --replace"),
        ("profile use nope", 1, "no profile 'nope': there are there (kproc profile list)"),
        ("profile use", 2, "give the NAME of a profile, or --none"),
        ("profile use there --none", 2, "give the NAME of a profile, or --none"),
        ("profile remove there nope", 1, "no profile 'nope'"),
        ("ping --profile nope", 1, "no profile 'nope'"),
        ("ping --profile there -b a:1", 2, "--bootstrap and --profile exclude each other"),
    ],
)
def test_wrong_profile_is_one_line(kproc: Kproc, command: str, code: int, problem: str) -> None:
    told(kproc("profile add there -b a:1"))
    before = profiles_path().read_bytes()
    assert problem in refused(kproc(command), code)
    assert profiles_path().read_bytes() == before


def test_profiles_file_is_private_and_replaced_atomically(kproc: Kproc, home: Path) -> None:
    target = home / "dotfiles.json"
    profiles_path().parent.mkdir(parents=True)
    profiles_path().symlink_to(target)
    told(kproc("profile add dev -b a:1"))
    assert profiles_path().is_symlink()
    assert (target.stat().st_mode & 0o777, sorted(os.listdir(home))) == (0o600, ["config", "dotfiles.json"])
    inode = target.stat().st_ino
    with suppress(Failure), change_profiles() as profiles:
        profiles.by_name.clear()
        raise Failure("not written")
    assert target.stat().st_ino == inode
    told(kproc("profile use --none"))
    assert target.stat().st_ino != inode


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"current": null, "profiles": []}',
        '{"current": "x", "profiles": {}}',
        '{"current": null, "profiles": {"a": {"bootstrap": 1}}}',
        '{"current": null, "profiles": {"a": {"bootstrap": "a:1", "password": "secret"}}}',
        '{"current": null, "profiles": {"../a": {"bootstrap": "a:1"}}}',
        "[" * 100_000,
    ],
)
def test_damaged_profiles_file_is_named(kproc: Kproc, content: str) -> None:
    profiles_path().parent.mkdir(parents=True)
    profiles_path().write_text(content)
    profiles_path().chmod(0o600)
    problem = f"kproc: {profiles_path()} is not a file of `kproc profile`: repair or remove it\n"
    assert refused(kproc("ping")) == problem
    assert complete_profiles("") == []


def test_profiles_file_that_others_can_change_is_not_used(kproc: Kproc) -> None:
    told(kproc("profile add dev -b a:1 --use"))
    profiles_path().chmod(0o622)
    assert "other users can change it, so it is not used" in refused(kproc("ping"))
    with pytest.raises(Failure, match="chmod 600"):
        load_profiles()


def test_profiles_of_another_user_count_as_missing(kproc: Kproc, monkeypatch: pytest.MonkeyPatch) -> None:
    told(kproc("profile add dev -b a:1 --use"))
    monkeypatch.setattr(os, "geteuid", lambda: profiles_path().stat().st_uid + 1)
    if profiles_path().stat().st_uid:  # Root's files count for everybody.
        assert load_profiles().by_name == {}


def test_profiles_file_that_is_a_directory_is_named(kproc: Kproc) -> None:
    profiles_path().mkdir(parents=True)
    assert f"{profiles_path()} is not a regular file" in refused(kproc("profile list"))


def test_profile_is_not_added_in_a_directory_of_another_user(
    kproc: Kproc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After sudo with the HOME of a user, who can make the file a link to any place."""
    told(kproc("profile add dev -b a:1"))
    before = profiles_path().read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: profiles_path().stat().st_uid + 1)
    assert "belongs to another user" in refused(kproc("profile add other -b a:1"))
    assert profiles_path().read_bytes() == before


def test_precedence_of_connections(kproc: Kproc, monkeypatch: pytest.MonkeyPatch, security: Path) -> None:
    def source(bootstrap: str | None = None, profile: str | None = None) -> tuple[str, str]:
        found = find_connection(bootstrap, profile)
        return found.bootstrap, found.source

    assert source() == (DEFAULT_BOOTSTRAP, "the default")
    told(kproc("profile add used -b used:1 --use --command-config", str(security)))
    told(kproc("profile add named -b named:1"))
    assert source() == ("used:1", "kproc profile use")
    monkeypatch.setenv("KPROC_PROFILE", "named")
    assert source() == ("named:1", "KPROC_PROFILE")
    monkeypatch.setenv("KPROC_COMMAND_CONFIG", "/x")
    assert source() == (DEFAULT_BOOTSTRAP, "the default")
    monkeypatch.setenv("KPROC_BOOTSTRAP", "variable:1")
    assert source() == ("variable:1", "KPROC_BOOTSTRAP")
    assert source(profile="used") == ("used:1", "--profile")
    assert source(bootstrap="option:1") == ("option:1", "--bootstrap")


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ("", None, ("used:1", "staging.properties")),
        ("--command-config other", None, ("used:1", "other")),
        ("-b else:1", None, ("else:1", None)),  # The credentials of a profile go to no other address.
        ("-b else:1", "variable", ("else:1", "variable")),
        ("--profile plain", "variable", ("plain:1", None)),
        ("--profile used", "variable", ("used:1", "staging.properties")),
        ("", "variable", (DEFAULT_BOOTSTRAP, "variable")),
    ],
)
def test_profile_gives_its_file_only_to_its_own_address(
    kproc: Kproc,
    monkeypatch: pytest.MonkeyPatch,
    security: Path,
    options: str,
    variable: str | None,
    expected: tuple[str, str | None],
) -> None:
    told(kproc("profile add used -b used:1 --use --command-config", str(security)))
    told(kproc("profile add plain -b plain:1"))
    if variable is not None:
        monkeypatch.setenv("KPROC_COMMAND_CONFIG", variable)
    seen: list[tuple[str, str | None]] = []

    def connect(bootstrap: str, **_options: object) -> None:
        file = connection.command_config_in_force()
        seen.append((bootstrap, file.name if file is not None else None))
        raise Failure("seen")

    monkeypatch.setattr(lifecycle, "connect", connect)
    assert refused(kproc(f"ping {options}")) == "kproc: seen\n"
    assert seen == [expected]


def test_variable_above_a_profile_is_reported_by_use(kproc: Kproc, monkeypatch: pytest.MonkeyPatch) -> None:
    told(kproc("profile add dev -b a:1"))
    monkeypatch.setenv("KPROC_BOOTSTRAP", "b:2")
    assert told(kproc("profile use dev")) == (
        "using dev\nbut KPROC_BOOTSTRAP overrides it, so commands connect to b:2\n"
    )


def test_names_of_profiles_are_completed(kproc: Kproc) -> None:
    for name in ("dev", "staging", "demo"):
        told(kproc(f"profile add {name} -b a:1"))
    assert complete_profiles("de") == ["demo", "dev"]


def test_profiles_file_keeps_no_password(kproc: Kproc, security: Path) -> None:
    security.write_text('sasl.jaas.config=x required username="a" password="secret";\n')
    told(kproc("profile add dev -b a:1 --command-config", str(security)))
    assert json.loads(profiles_path().read_text()) == {
        "current": None,
        "profiles": {"dev": {"bootstrap": "a:1", "command_config": str(security)}},
    }


def test_path_that_is_not_utf8_is_shown_in_json(kproc: Kproc, home: Path) -> None:
    """`profile list --format json` ended with a traceback."""
    file = home / "caf\udce9 é.properties"
    file.touch()
    told(kproc("profile add old -b a:1 --use --command-config", str(file)))
    shown = str(home / "caf\\udce9 é.properties")
    assert described(kproc("profile list --format json"))[0]["command_config"] == shown
    assert described(kproc("profile show --format json"))["command_config"] == shown
    assert shown in told(kproc("profile list"))


def test_wrong_address_is_reported_with_its_source(kproc: Kproc, monkeypatch: pytest.MonkeyPatch) -> None:
    told(kproc("profile add old -b a:1"))
    file = profiles_path()
    file.write_text(file.read_text().replace("a:1", "a b:1"))
    problem = "a b:1 is not an address: expected host:port, such as 127.0.0.1:9092"
    assert refused(kproc("ping --profile old"), code=2) == f"kproc: profile old: {problem}\n"
    assert refused(kproc("ping", "-b", "a b:1"), code=2) == f"kproc: --bootstrap: {problem}\n"
    monkeypatch.setenv("KPROC_BOOTSTRAP", "a b:1")
    assert refused(kproc("ping"), code=2) == f"kproc: KPROC_BOOTSTRAP: {problem}\n"
