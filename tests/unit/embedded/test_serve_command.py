"""The command that starts an embedded broker: settings as arguments, secrets in a file, ports of the last start."""

from __future__ import annotations

import stat
from pathlib import Path

from kproc.client.security.throwaway import Throwaway
from kproc.embedded import Broker
from kproc.embedded.serve_command import serve_command, settings_for_tests, start_settings

_JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


def sets_of(command: list[str]) -> set[str]:
    return {command[index + 1] for index, word in enumerate(command) if word == "--set"}


def test_replication_factor_is_clamped_by_default() -> None:
    name = "kproc.clamp.replication.factor"
    assert Broker().settings[name] is True
    assert Broker({name: False}).settings[name] is False


def test_only_data_that_outlive_the_broker_are_synced() -> None:
    assert settings_for_tests({}, None, syncs=False)["kproc.flush"] == "none"
    assert "kproc.flush" not in settings_for_tests({}, None, syncs=True)
    assert settings_for_tests({"kproc.flush": "always"}, None, syncs=False)["kproc.flush"] == "always"


def test_log_dirs_setting_replaces_the_data_argument(tmp_path: Path) -> None:
    command = serve_command({"log.dirs": "/there"}, tmp_path, tmp_path / "data")
    assert "--data" not in command
    assert "log.dirs=/there" in sets_of(command)


def test_secrets_are_in_a_private_file_and_not_in_arguments(tmp_path: Path) -> None:
    settings = start_settings(
        {"num.io.threads": 2},
        port=0,
        throwaway=Throwaway(tmp_path, has_tls=False, users={"alice": "wonder"}),
        last=None,
    )
    for _start in range(2):
        command = serve_command(settings, tmp_path, tmp_path / "data")
        assert not [word for word in command if "wonder" in word]
        assert "listeners=SASL_PLAINTEXT://127.0.0.1:0" in sets_of(command)
        secrets = Path(command[command.index("--config") + 1])
        assert f"{_JAAS}=" in secrets.read_text()
        assert "wonder" in secrets.read_text()
        assert stat.S_IMODE(secrets.stat().st_mode) == 0o600


def test_start_settings_use_the_ports_of_the_last_start_again() -> None:
    last = {"listeners": {"PLAINTEXT": {"bound": "127.0.0.1:9001"}}, "metrics": "127.0.0.1:9002"}
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "kproc.metrics.listener": "127.0.0.1:0"}
    settings = start_settings(given, port=0, throwaway=None, last=last)
    assert settings == {
        "listeners": "PLAINTEXT://127.0.0.1:9001",
        "kproc.metrics.listener": "127.0.0.1:9002",
    }
    assert start_settings({}, port=9001, throwaway=None, last=last) == {
        "listeners": "PLAINTEXT://127.0.0.1:9001"
    }
