"""`kproc serve` and `kproc dev`: settings in, a running broker out. No client library is loaded here, nor
the one that the other commands are built with: both take longer than a broker's start."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.broker_options import CommandParser, Option, listener_protocol
from kproc.cli.failure import DEFAULT_PORT
from kproc.cli.lines import print_block, print_note, print_notes
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag
    from kproc.client.security.throwaway import Throwaway


_OTHERS_READ: Final = 0o004
_OTHERS_WRITE: Final = 0o002
_LISTENERS: Final = Option(
    ("--listeners",), "listeners", "LIST", "NAME://host:port,...; port 0 takes a free one."
)
_SHARED: Final = (
    Option(
        ("--processors",),
        "num.network.threads",
        "N",
        "Number of Processors, which own client connections.",
        int,
    ),
    Option(("--handlers",), "num.io.threads", "N", "Number of Handlers, which own partitions.", int),
    Option(
        ("--transport",),
        "kproc.transport",
        "KIND",
        "How the roles run: process, thread (all in one process) or inline (all in one thread).",
    ),
    Option(
        ("--control-listener",),
        "kproc.control.listener",
        "HOST:PORT",
        "Address for administrators, apart from the clients.",
    ),
    Option(
        ("--metrics-listener",),
        "kproc.metrics.listener",
        "HOST:PORT",
        "Address of /metrics and /health.",
    ),
    Option(
        ("--clamp-replication",),
        "kproc.clamp.replication.factor",
        "",
        "A replication factor above 1 counts as 1.",
    ),
    Option(("--exit-with-parent",), "kproc.exit.with.pid", "PID", "Stop when this process ends.", int),
)
_SERVE_ONLY: Final = (
    Option(
        ("--advertised-listeners",),
        "advertised.listeners",
        "LIST",
        "Addresses that clients get from the broker.",
    ),
    Option(("--data",), "log.dirs", "DIR", "Data directory.", Path),
    Option(
        ("--flush",),
        "kproc.flush",
        "KIND",
        "When records reach the disk: group (acks=all after fdatasync) or none.",
    ),
)


def _run_serve(given: argparse.Namespace, flags: list[Flag]) -> int:
    def reread() -> Config:
        if given.config is None:
            raise ConfigError("there is no file (--config) to read again")
        # A start may read a pipe. Its content is gone at a reload, and the supervisor would wait for more.
        if given.config.exists() and not given.config.is_file():
            raise ConfigError(f"cannot read {given.config} again: it is not a regular file")
        return _build(flags, given.settings, file=given.config)

    from kproc.broker.config import ConfigError

    return _run(
        _build(flags, given.settings, file=given.config),
        ready_file=given.ready_file,
        quiet=given.quiet,
        reread=reread,
    )


def _run_dev(given: argparse.Namespace, flags: list[Flag]) -> int:
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="kproc-dev-"))
    owner = os.getpid()
    throwaway = None
    defaults: dict[str, object] = {
        "listeners": f"{listener_protocol(given)}://127.0.0.1:{DEFAULT_PORT}",
        "log.dirs": str(directory),
        "kproc.flush": "none",
        # The server.properties that Kafka ships sets 0, too, so that the first consumer of a group does not wait.
        "group.initial.rebalance.delay.ms": 0,
        "kproc.temporary.directory": str(directory),
    }
    try:
        if given.tls or given.users:
            from kproc.client.security.throwaway import make_throwaway

            where = directory / "security"
            throwaway = make_throwaway(
                where, has_tls=given.tls, users=tuple(dict.fromkeys(given.users or ()))
            )
            defaults |= throwaway.broker_settings() | {"log.dirs": str(directory / "data")}
        config = _build(flags, given.settings, defaults=defaults)
        return _run(config, ready_file=given.ready_file, quiet=True, throwaway=throwaway)
    finally:
        # Only the process that created the directory may remove it, not a forked role that unwinds through here.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)


SERVE: Final = CommandParser(
    "serve",
    "Run a broker until SIGTERM or Ctrl-C; SIGHUP reads its configuration file again.",
    (_LISTENERS, *_SERVE_ONLY, *_SHARED),
    "Run a broker until SIGTERM or Ctrl-C.",
    _run_serve,
)
SERVE.add_argument(
    "--config", "-c", type=Path, metavar="FILE", help="Settings: TOML, or Kafka's server.properties."
)
SERVE.add_argument("--quiet", "-q", action="store_true", help="Print errors only.")
DEV: Final = CommandParser(
    "dev",
    "Run a broker in a temporary directory, without syncing, until Ctrl-C; nothing is kept.",
    (_LISTENERS, *_SHARED),
    "Run a broker in a temporary directory until Ctrl-C.",
    _run_dev,
)


DEV.add_argument("--tls", action="store_true", help="Use TLS with a throwaway certificate.")
DEV.add_argument(
    "--user",
    "-u",
    dest="users",
    action="append",
    metavar="NAME",
    help="Require a login, and create this user with a random password. May be repeated.",
)


def _build(
    flags: list[Flag],
    settings: list[str] | None,
    *,
    file: Path | None = None,
    defaults: dict[str, object] | None = None,
) -> Config:
    from kproc.broker.config import Config, parse_assignments, read_settings_file
    from kproc.broker.config.settings import is_secret

    assignments = parse_assignments(settings or ())
    warnings: list[str] = []
    config = Config.build(assignments, flags=flags, file=file, defaults=defaults, on_warning=warnings.append)
    warnings += [
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
    warnings += _warnings_about_data(Path(config.log_dirs))
    if len(warnings) == 1:
        print_note(f"kproc: warning: {warnings[0]}")
    elif warnings:
        print_notes("\n  ".join([f"kproc: {len(warnings)} warnings:", *map(printable, warnings)]) + "\n")
    return config


def _warnings_about_data(path: Path) -> list[str]:
    """Warn if another user than root and ours can replace files of the data directory.

    That user can replace records, and by links have the broker write other files. It is no error: a container that runs
    as root often has a directory of a user of the host.
    """
    from kproc.broker.supervisor.data_directory import LOCK_FILE

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


def _run(
    config: Config,
    *,
    ready_file: Path | None,
    quiet: bool,
    reread: Callable[[], Config] | None = None,
    throwaway: Throwaway | None = None,
) -> int:
    from kproc.broker.supervisor.service_manager import ServiceManager
    from kproc.broker.supervisor.supervisor import run

    manager = ServiceManager.of_environment(os.environ)
    # Remove it from the environment, so that no child process can send notifications for the broker.
    os.environ.pop("NOTIFY_SOCKET", None)
    return run(
        config,
        ready_file=ready_file,
        on_ready=lambda ready: _announce(config, ready, throwaway),
        quiet=quiet,
        manager=manager,
        reread=reread,
    )


def _announce(config: Config, ready: dict[str, Any], throwaway: Throwaway | None) -> None:
    """Print the line with the addresses and the kind of flush. With throwaway users, print how to log in, too."""
    addresses = ", ".join(
        f"{name} {listener['bound']}"
        + (
            f" (advertised as {listener['advertised']})"
            if listener["advertised"] != listener["bound"]
            else ""
        )
        for name, listener in ready["listeners"].items()
    )
    control = f"control={ready['control']} " if "control" in ready else ""
    metrics = f"metrics=http://{ready['metrics']}/metrics " if "metrics" in ready else ""
    line = (
        f"kproc ready: {addresses}; {control}{metrics}bootstrap={ready['bootstrap']} "
        f"data={ready['data']} pid={ready['pid']} "
        f"transport={config.kproc_transport} processors={_count(ready, 'processor')} "
        f"handlers={_count(ready, 'handler')} flush={config.kproc_flush}\n"
    )
    if throwaway is not None:
        from kproc.cli.dev_clients import client_lines

        line += client_lines(throwaway, ready["bootstrap"])
    try:
        print_block(line)
        sys.stdout.flush()
    except OSError:
        # The reader of stdout has closed its end. The broker goes on, and the ready file has the same content.
        return


def _count(ready: dict[str, Any], role: str) -> int:
    """Count the processes of a role in the ready file. Counts set at run time override those of the command line."""
    return sum(row["role"] == role and row["pool"] != "control" for row in ready["processes"])
