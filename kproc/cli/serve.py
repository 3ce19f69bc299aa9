"""`kproc serve` and `kproc dev`: build the settings and run a broker.

This module loads neither a client library nor typer, because loading either takes longer than a broker's start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.broker_options import CommandParser, Option, listener_protocol
from kproc.cli.failure import DEFAULT_PORT, usage_error
from kproc.cli.lines import print_block, print_note, print_notes
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag
    from kproc.client.security.throwaway import Throwaway


_STDERR: Final = 2
_OTHERS_READ: Final = 0o004
_OTHERS_WRITE: Final = 0o002
_PARTITIONS: Final = re.compile(r"[1-9][0-9]{0,5}")
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
    # A string and no Path, because Path("") is the working directory. The setting rejects an empty one.
    Option(("--data",), "log.dirs", "DIR", "Data directory."),
    Option(
        ("--flush",),
        "kproc.flush",
        "KIND",
        "When records reach the disk: group (acks=all after fdatasync) or none.",
    ),
)


def _run_serve(given: argparse.Namespace, flags: list[Flag]) -> int:
    def build() -> Config:
        environment = os.environ if given.from_env else None
        return _build(flags, given.settings, file=given.config, environment=environment)

    def reread() -> Config | None:
        if given.config is None:
            return None
        # Reject a pipe as --config at a reload. The start has read its content, and the supervisor would block waiting
        # for more.
        if given.config.exists() and not given.config.is_file():
            raise ConfigError(f"cannot read {given.config} again: it is not a regular file")
        return build()

    from kproc.broker.config import ConfigError

    config = build()
    with _log_file(given.log_file):
        code = _run(
            config,
            ready_file=given.ready_file,
            on_ready=lambda ready: _print_ready(_format_ready_line(config, ready)),
            quiet=given.quiet,
            reread=reread,
        )
    if code and given.log_file is not None:
        print_note(f"kproc: the broker ended with an error; the reason is in {given.log_file}")
    return code


@contextlib.contextmanager
def _log_file(path: Path | None) -> Iterator[None]:
    """Redirect standard error to the end of the file of --log-file while the broker runs.

    Restore the former standard error afterwards. Without a path do nothing.
    """
    if path is None:
        yield
        return
    from kproc.broker.supervisor import logs

    former = os.dup(_STDERR)
    try:
        try:
            logs.use_file(path)
        except OSError as error:
            usage_error(f"--log-file {path}: {error.strerror}")
        yield
    finally:
        sys.stderr.flush()
        os.dup2(former, _STDERR)
        os.close(former)


def _dev_defaults(directory: Path, protocol: str) -> dict[str, object]:
    """Return the default settings of `kproc dev` with a temporary directory. Options override them."""
    return {
        "listeners": f"{protocol}://127.0.0.1:{DEFAULT_PORT}",
        "log.dirs": str(directory),
        "kproc.flush": "none",
        # 0 as in the server.properties that Kafka ships, so that the first consumer of a group does not wait for
        # others.
        "group.initial.rebalance.delay.ms": 0,
        "group.streams.initial.rebalance.delay.ms": 0,
        # Compose files and test suites made for a cluster request 3 replicas. Accept that, and create 1.
        "kproc.clamp.replication.factor": True,
        "kproc.faults.enable": True,
        "kproc.time.movable": True,
        "kproc.temporary.directory": str(directory),
    }


def _run_dev(given: argparse.Namespace, flags: list[Flag]) -> int:
    wanted, owner = _parse_topics(given.topics), os.getpid()
    run_dev = _run_dev_alone if given.control is None else _run_dev_with_control
    code = run_dev(given, flags, wanted)
    # A forked role returns from here, too, and must print nothing.
    if os.getpid() == owner and sys.stderr.isatty():
        print_note("kproc: stopped")
    return code


def _run_dev_alone(given: argparse.Namespace, flags: list[Flag], wanted: Mapping[str, int]) -> int:
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="kproc-dev-"))
    owner = os.getpid()
    throwaway = None
    defaults = _dev_defaults(directory, listener_protocol(given))
    try:
        if given.tls or given.users:
            from kproc.client.security.throwaway import make_throwaway

            where = directory / "security"
            throwaway = make_throwaway(
                where, has_tls=given.tls, users=tuple(dict.fromkeys(given.users or ()))
            )
            defaults |= throwaway.broker_settings() | {"log.dirs": str(directory / "data")}
        config = _build(flags, given.settings, defaults=defaults)
        is_temporary = directory in (path := Path(config.log_dirs), path.parent)
        topics = _create_topics(config, wanted, is_temporary=is_temporary)
        return _run(
            config,
            ready_file=given.ready_file,
            on_ready=lambda ready: _print_ready(
                _dev_text(ready, topics, throwaway, is_temporary=is_temporary, has_snippets=given.snippets)
            ),
            quiet=True,
        )
    finally:
        # Only the process that created the temporary directory may remove it. A forked role can also run this
        # `finally`.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)


def _run_dev_with_control(given: argparse.Namespace, flags: list[Flag], topics: Mapping[str, int]) -> int:
    from kproc.cli.dev_control import run_with_control

    if not given.control.isdecimal():
        usage_error(f"--control {given.control}: expected a port; it listens at 127.0.0.1 only")
    if len(given.control) > 5 or int(given.control) > 65535:
        usage_error(f"--control {given.control}: must be from 0 to 65535")

    def show(
        ready: Mapping[str, Any],
        created: Mapping[str, int],
        throwaway: Throwaway | None,
        is_temporary: bool,
    ) -> None:
        _print_ready(
            _dev_text(ready, created, throwaway, is_temporary=is_temporary, has_snippets=given.snippets)
        )

    return run_with_control(given, flags, topics, show)


def _create_topics(config: Config, wanted: Mapping[str, int], *, is_temporary: bool) -> dict[str, int]:
    """Create the topics of --topic before the broker starts. Return their numbers of partitions by name.

    wanted: the number of partitions by name; 0 stands for num.partitions. Topics need a temporary data directory:
    without `is_temporary` this is a usage error.
    """
    if not wanted:
        return {}
    if not is_temporary:
        usage_error(
            f"--topic needs a temporary data directory: leave out log.dirs={Path(config.log_dirs)}, "
            "or use kproc topic create"
        )
    from kproc.broker.supervisor.offline_metadata import create_topics

    topics = {name: count or config.num_partitions for name, count in wanted.items()}
    create_topics(config, topics)
    return topics


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
SERVE.add_argument(
    "--from-env",
    action="store_true",
    help="Also read settings from the environment: KPROC_NUM_IO_THREADS for num.io.threads. They override the file.",
)
SERVE.add_argument(
    "--log-file",
    type=Path,
    metavar="FILE",
    help="Append the log to this file instead of the standard error. SIGHUP opens it again after a rotation.",
)
SERVE.add_argument("--quiet", "-q", action="store_true", help="Print warnings and errors only.")
DEV: Final = CommandParser(
    "dev",
    "Run a broker in a temporary directory, without syncing, until Ctrl-C; nothing is kept.",
    (_LISTENERS, *_SHARED),
    "Run a broker in a temporary directory until Ctrl-C.",
    _run_dev,
)


DEV.add_argument(
    "--topic",
    dest="topics",
    action="append",
    metavar="NAME:N",
    help="Create this topic with N partitions (default: num.partitions). May be repeated.",
)
DEV.add_argument(
    "--snippets", action="store_true", help="Print the settings with which other clients connect."
)
DEV.add_argument(
    "--control",
    metavar="N",
    help="Serve faults as JSON over HTTP at this port of 127.0.0.1, for tests in any language. 0: any free port.",
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


def _parse_topics(given: list[str] | None) -> dict[str, int]:
    """Parse the values of --topic to numbers of partitions by name. 0 stands for num.partitions."""
    topics: dict[str, int] = {}
    for text in given or ():
        name, colon, count = text.partition(":")
        if colon and not _PARTITIONS.fullmatch(count):
            usage_error(f"--topic {text}: expected NAME or NAME:PARTITIONS, such as orders:3")
        if name in topics:
            usage_error(f"--topic {name} is given twice")
        topics[name] = int(count or 0)
    return topics


def _build(
    flags: list[Flag],
    settings: list[str] | None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: dict[str, object] | None = None,
) -> Config:
    from kproc.broker.config import Config, parse_assignments, read_settings_file
    from kproc.broker.config.settings import is_secret

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


def _run(
    config: Config,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    quiet: bool,
    reread: Callable[[], Config | None] | None = None,
) -> int:
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


def _format_ready_line(config: Config, ready: dict[str, Any]) -> str:
    """Return the line that `kproc serve` prints when it is ready, with the addresses and kproc.flush."""
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
    return (
        f"kproc ready: {addresses}; {control}{metrics}bootstrap={ready['bootstrap']} "
        f"data={ready['data']} pid={ready['pid']} "
        f"transport={config.kproc_transport} processors={_count(ready, 'processor')} "
        f"handlers={_count(ready, 'handler')} flush={config.kproc_flush}\n"
    )


def _dev_text(
    ready: Mapping[str, Any],
    topics: Mapping[str, int],
    throwaway: Throwaway | None,
    *,
    is_temporary: bool,
    has_snippets: bool,
) -> str:
    """Return the banner of `kproc dev`.

    The settings for clients precede it if clients need a password, or with `has_snippets`. They are long, and the
    address must still be on the screen.
    """
    from kproc.cli.dev_clients import banner, client_lines

    file = throwaway.client_file() if throwaway is not None else None
    text = banner(ready, topics, is_temporary=is_temporary, command_config=file)
    if throwaway is not None or has_snippets:
        return f"{client_lines(throwaway, ready['bootstrap'])}\n{text}"
    return text + "\nSettings for other clients: kproc dev --snippets\n"


def _print_ready(text: str) -> None:
    try:
        print_block(text)
        sys.stdout.flush()
    except OSError:
        # The reader of stdout has closed the pipe. Ignore that: the broker goes on, and the ready file has the same
        # content.
        return


def _count(ready: dict[str, Any], role: str) -> int:
    """Count a role's processes in the ready file. Counts set at run time override those of the command line."""
    return sum(row["role"] == role and row["pool"] != "control" for row in ready["processes"])
