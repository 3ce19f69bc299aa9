"""The common part of `kproc serve` and `kproc dev`: build the settings with their warnings, and run the broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.lines import print_block, print_note, print_notes
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag

_OTHERS_READ: Final = 0o004
_OTHERS_WRITE: Final = 0o002


def build_config(
    flags: list[Flag],
    settings: list[str] | None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: dict[str, object] | None = None,
) -> Config:
    """Build the settings of a broker, and print all warnings about them as one note. Raise ConfigError.

    settings: the NAME=VALUE texts of --set. file: the file of --config. environment: variables to read settings from.
    defaults: values that replace the settings' own defaults.
    """
    from kproc.broker.config import Config, parse_assignments

    assignments = parse_assignments(settings or ())
    warnings: list[str] = []
    config = Config.build(
        assignments,
        flags=flags,
        file=file,
        environment=environment,
        defaults=defaults,
        on_warning=warnings.append,
    )
    warnings += _warnings_about_secrets(assignments, file)
    warnings += _warnings_about_data(Path(config.log_dirs))
    if len(warnings) == 1:
        print_note(f"kproc: warning: {warnings[0]}")
    elif warnings:
        print_notes("\n  ".join([f"kproc: {len(warnings)} warnings:", *map(printable, warnings)]) + "\n")
    return config


def _warnings_about_secrets(assignments: Mapping[str, object], file: Path | None) -> list[str]:
    """Return a warning for each secret of --set, and one if every user can read secrets in the settings file."""
    from kproc.broker.config import read_settings_file
    from kproc.broker.config.settings import is_secret

    warnings = [
        f"--set {name}: every user of this host can read a command line; put it into a file for --config"
        for name in assignments
        if is_secret(name)
    ]
    if file is not None and file.is_file() and file.stat().st_mode & _OTHERS_READ:
        secrets = sorted(name for name in read_settings_file(file) if is_secret(name))
        if secrets:
            warnings.append(
                f"{file} holds {', '.join(secrets)}, and every user of this host can read it: chmod o= it"
            )
    return warnings


def _warnings_about_data(path: Path) -> list[str]:
    """Return a warning if another user than root and ours can replace files of the data directory, else [].

    Such a user can replace records, and by links let the broker write to other files. This is only a warning, because a
    container that runs as root often uses a directory of a user of the host.
    """
    from kproc.broker.storage.format import LOCK_FILE

    found = [each.lstat() for each in (path.resolve(), path / LOCK_FILE) if os.path.lexists(each)]
    others = sorted({each.st_uid for each in found} - {0, os.geteuid()})
    if others:
        who = f"user {others[0]}"
    elif found and found[0].st_mode & _OTHERS_WRITE:
        who = "every user"
    else:
        return []
    return [
        f"log.dirs: {who} of this host can replace files in {path}; use a directory of the broker's own user"
    ]


def run_broker(
    config: Config,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    quiet: bool,
    reread: Callable[[], Config | None] | None = None,
) -> int:
    """Run a broker in this process and its children until it has stopped. Return its exit code.

    on_ready: called with the content of the ready file when the broker serves. reread: builds the settings again at
    SIGHUP, or returns None if there is no file to read.
    """
    from kproc.broker.supervisor.run import run
    from kproc.broker.supervisor.service_manager import ServiceManager

    manager = ServiceManager.of_environment(os.environ)
    # Remove NOTIFY_SOCKET from the environment, so that no child process can notify systemd in the broker's name.
    os.environ.pop("NOTIFY_SOCKET", None)
    return run(
        config,
        ready_file=ready_file,
        on_ready=on_ready,
        quiet=quiet,
        manager=manager,
        reread=reread,
    )


def print_ready(text: str) -> None:
    """Print the text that says that the broker is ready. Do nothing if nobody reads the standard output."""
    try:
        print_block(text)
        sys.stdout.flush()
    except OSError:
        # The reader of stdout has closed the pipe. Ignore that: the broker goes on, and the ready file has the same
        # content.
        return
