"""Values of kind PASSWORD, and settings that one listener or one SASL mechanism has for itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from kproc.broker.config import SETTINGS, ConfigError
from kproc.broker.config.build import SourcedValue, parse_given
from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import PASSWORD, STRING, Secret, Setting, parse_value, setting, wire_text
from kproc.cli.broker_run import build_config
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc

WORD = "s3cr3t-word"


def row(name: str, kind: object = STRING, **options: bool) -> Setting:
    made = setting(kind, None, "", **options)  # type: ignore[arg-type]
    return replace(made.metadata["setting"], name=name)


def test_no_form_of_a_secret_says_what_it_is() -> None:
    value = parse_value(PASSWORD, f" {WORD} ", "ssl.key.password")
    assert value.reveal() == WORD
    for shown in (repr(value), str(value), f"{value}", repr([value]), str(wire_text(value))):
        assert WORD not in shown
    assert value == Secret(WORD)
    assert value != Secret("other")
    assert len({value, Secret(WORD)}) == 1


def test_a_secret_that_cannot_be_used_is_not_in_the_complaint() -> None:
    refusing = replace(row("x.password", PASSWORD), check=lambda value: "is too short")
    with pytest.raises(ConfigError) as refused:
        refusing.parse(WORD)
    assert str(refused.value) == "x.password=[hidden]: is too short"


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("listener.name.OUT.ssl.x", ("out", "ssl.x", "v")),
        ("listener.name.out.sasl.x", ("out", "sasl.x", "v")),
        ("listener.name.out.scram-sha-256.sasl.x", ("out", "scram-sha-256.sasl.x", "v")),
    ],
)
def test_settings_of_a_listener_and_of_a_mechanism(name: str, stored: tuple[str, str, str]) -> None:
    table = dict(SETTINGS)
    table["ssl.x"] = row("ssl.x", per_listener=True)
    table["sasl.x"] = row("sasl.x", per_listener=True, per_mechanism=True)
    warnings: list[str] = []
    values = parse_given({name: SourcedValue("v", "here")}, table, warnings)
    assert values == {"listener.overrides": [stored]}
    assert warnings == []


def test_a_mechanism_has_no_settings_but_its_own() -> None:
    table = {**SETTINGS, "ssl.x": row("ssl.x", per_listener=True)}
    with pytest.raises(ConfigError, match=r"listener\.name\.out\.plain\.ssl\.x"):
        parse_given({"listener.name.out.plain.ssl.x": SourcedValue("v", "here")}, table, [])


@in_one_test(
    ("name", "secret"),
    [
        ("ssl.key.password", True),
        ("listener.name.OUT.ssl.key.password", True),
        ("listener.name.out.plain.sasl.jaas.config", True),
        ("listener.name.out.ssl.keystore.location", False),
        ("num.io.threads", False),
        ("of.nobody", False),
    ],
)
def test_names_of_secrets_are_known_with_every_prefix(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    assert is_secret(name, if_unknown=True) is (secret or name == "of.nobody")


def test_secret_on_the_command_line_is_warned_of_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", f"ssl.key.password={WORD}", "--set", "num.io.threads=0"]
    done = call_kproc(capsys, "serve", "--data", str(tmp_path / "data"), *settings)
    assert done.returncode == 2
    assert WORD not in done.stdout + done.stderr
    build_config([], [f"ssl.key.password={WORD}", "log.dir=x"])
    told = capsys.readouterr().err
    assert "--set ssl.key.password: every user of this host can read a command line" in told
    assert WORD not in told
    assert "log.dir" not in told


def test_file_with_a_secret_that_everybody_may_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kproc.properties"
    file.write_text(f"ssl.key.password={WORD}\nnum.io.threads=1\n")
    for mode, is_told in ((0o644, True), (0o640, False)):
        file.chmod(mode)
        build_config([], [], file=file)
        told = capsys.readouterr().err
        assert ("holds ssl.key.password, and every user of this host can read it" in told) is is_told
        assert WORD not in told
    file.write_text("num.io.threads=1\n")
    file.chmod(0o644)
    build_config([], [], file=file)
    assert capsys.readouterr().err == ""


def test_data_directory_open_to_other_users_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker that starts in /tmp uses what another user has prepared there under its name."""
    data = tmp_path / "data"

    def warned() -> str:
        build_config([], [f"log.dirs={data}"])
        return capsys.readouterr().err

    assert warned() == ""
    data.mkdir(0o755)
    assert warned() == ""
    data.chmod(0o777)
    assert f"log.dirs: every user of this host can replace files in {data}" in warned()
    data.chmod(0o755)
    if os.geteuid() == 0:
        (data / ".lock").touch()
        for path in (data, data / ".lock"):
            os.chown(path, 65534, 65534)
            assert f"log.dirs: user 65534 of this host can replace files in {data}" in warned()
            os.chown(path, 0, 0)
        assert warned() == ""
