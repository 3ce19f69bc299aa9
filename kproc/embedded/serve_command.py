"""The command that starts an embedded broker: its settings, and the private file for those that are secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import wire_text
from kproc.embedded.ports import pin_ports
from kproc.embedded.process import READY_FILE, kproc_command

if TYPE_CHECKING:
    from kproc.client.security.throwaway import Throwaway

_SECRETS_FILE: Final = "secrets.properties"


def settings_for_tests(
    given: Mapping[str, object], transport: str | None, *, syncs: bool
) -> dict[str, object]:
    """Return the given settings, and for all others the defaults of a broker for tests.

    syncs: if False, the default is not to sync (kproc.flush=none), because the data are temporary.
    """
    settings = dict(given)
    if transport is not None:
        settings.setdefault("kproc.transport", transport)
    if not syncs:
        settings.setdefault("kproc.flush", "none")
    # Kafka's default of 3 s waits for the other members of a new group, to save rebalances. A test would only lose
    # time.
    settings.setdefault("group.initial.rebalance.delay.ms", 0)
    settings.setdefault("group.streams.initial.rebalance.delay.ms", 0)
    # Create a topic with 3 replicas as one with 1, because code that is written for a cluster requests 3.
    settings.setdefault("kproc.clamp.replication.factor", True)
    # Without a rule, the check for faults costs nothing.
    settings.setdefault("kproc.faults.enable", True)
    settings.setdefault("kproc.time.movable", True)
    return settings


def start_settings(
    settings: Mapping[str, object], *, port: int, throwaway: Throwaway | None, last: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the settings of one start, as text.

    port: the port to listen at, if the settings have no `listeners`. throwaway: the generated certificates and users,
    or None if the broker has neither TLS nor logins of its own. last: the ready file of the last start, whose ports
    this start uses again.
    """
    texts = {
        name: str(wire_text(tuple(value) if isinstance(value, list) else value))
        for name, value in settings.items()
    }
    if "listeners" not in texts:
        protocol = throwaway.protocol if throwaway is not None else "PLAINTEXT"
        texts["listeners"] = f"{protocol}://127.0.0.1:{port}"
    if last is not None:
        texts = pin_ports(texts, last)
    return texts if throwaway is None else throwaway.broker_settings() | texts


def serve_command(settings: Mapping[str, str], directory: Path, data: Path) -> list[str]:
    """Return the command that serves until its parent ends. Write secret settings into a private file.

    directory: the temporary directory, which gets the ready file and the secrets.
    data: the data directory, if the settings have no `log.dirs`.
    """
    command = kproc_command("serve", "--quiet", "--ready-file", str(directory / READY_FILE))
    command += ["--exit-with-parent", str(os.getpid())]
    if "log.dirs" not in settings:
        command += ["--data", str(data)]
    # Every user of this host can read a process's command line, so pass secret settings in a private file.
    secret = {name: text for name, text in settings.items() if is_secret(name)}
    if secret:
        command += ["--config", str(_write_secrets(directory / _SECRETS_FILE, secret))]
    for name, text in settings.items():
        if name not in secret:
            command += ["--set", f"{name}={text}"]
    return command


def _write_secrets(path: Path, secret: Mapping[str, str]) -> Path:
    from kproc.client.security.throwaway import write_private
    from kproc.client.security.written import as_properties

    # On a restart the file exists, and write_private() only creates files.
    path.unlink(missing_ok=True)
    write_private(path, as_properties(secret).encode())
    return path
