"""`kproc serve` and `kproc dev`: settings in, a running broker out. No client library is loaded here, nor
the one that the other commands are built with: both take longer than a broker's start."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from kproc.cli.failure import DEFAULT_PORT, usage_error
from kproc.cli.lines import print_block, print_note, print_notes
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag
    from kproc.client.security.throwaway import Throwaway

_READY_BYTES_MAX: Final = 1 << 20


class Option(NamedTuple):
    """One option: its names; of a setting its name; a placeholder for its value (empty: a switch); its help."""

    names: tuple[str, ...]
    setting: str
    metavar: str
    text: str
    type: Callable[[str], object] = str


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
        "process; for comparison: thread, inline, connection-threads, asyncio.",
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
    Option(
        ("--work-us",),
        "kproc.work.us",
        "N",
        "Burn N microseconds of CPU at each request, to study scaling.",
        int,
    ),
)


class CommandParser(argparse.ArgumentParser):
    """The options of one command, refused in the words of the others."""

    def __init__(
        self,
        command: str,
        description: str,
        options: Sequence[Option],
        summary: str,
        start: Callable[[argparse.Namespace, list[Flag]], int],
    ) -> None:
        super().__init__(
            prog=f"kproc {command}",
            description=description,
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Help,
        )
        self._optionals.title = "Options"
        self.add_argument("-h", "--help", action="help", help="Show this message and exit.")
        self.command = command
        self._options = options
        self._start = start
        self.summary = summary
        for option in options:
            value: dict[str, Any] = (
                {"metavar": option.metavar, "type": option.type}
                if option.metavar
                else {"action": "store_const", "const": "true"}
            )
            self.add_argument(*option.names, dest=option.setting, help=option.text, **value)
        self.add_argument(
            "--port",
            "-p",
            type=int,
            metavar="N",
            help="Port on 127.0.0.1, instead of --listeners. 0: any free port.",
        )
        self.add_argument(
            "--set",
            "-s",
            dest="settings",
            action="append",
            metavar="NAME=VALUE",
            help="Set any setting; may be repeated.",
        )
        self.add_argument(
            "--ready-file", type=Path, metavar="FILE", help="Write this JSON file when clients may connect."
        )
        self.add_argument(
            "--log-format",
            choices=("text", "json"),
            default="text",
            metavar="KIND",
            help="Format of log lines: text or json.",
        )

    def shown_options(self) -> list[argparse.Action]:
        """Return the options that a shell completes."""
        return [action for action in self._actions if action.option_strings]

    def format_help(self) -> str:
        """Format the help with each setting's name and default. Load them only here, because a start must be fast."""
        from kproc.broker.config import SETTINGS
        from kproc.broker.config.values import wire_text

        by_setting = {option.setting: option for option in self._options}
        for action in self._actions:
            option = by_setting.get(action.dest)
            if option is None:
                continue
            default = SETTINGS[option.setting].default
            told = wire_text(default() if callable(default) else default)
            action.help = f"{option.text}  [{option.setting}{f'; default: {told}' if told else ''}]".replace(
                "%", "%%"
            )
        return super().format_help()

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command until the broker has stopped. Return its exit code."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            what = "No such option" if unknown[0].startswith("-") else "Got unexpected extra argument"
            self.error(f"{what}: {unknown[0]}")
        if given.log_format == "json":
            from kproc.broker.supervisor import logs

            logs.use_json()
        if given.ready_file is not None:
            _remove_old_ready_file(given.ready_file)
        return self._start(given, self._flags(given))

    def _flags(self, given: argparse.Namespace) -> list[Flag]:
        from kproc.broker.config import Flag

        return [
            Flag(option.names[0], option.setting, str(value))
            for option in self._options
            if (value := getattr(given, option.setting)) is not None
        ] + self._port_flag(given)

    def _port_flag(self, given: argparse.Namespace) -> list[Flag]:
        from kproc.broker.config import Flag

        if given.port is None:
            return []
        if not 0 <= given.port < 65536:
            usage_error(f"--port {given.port}: must be from 0 to 65535")
        if given.listeners is not None:
            usage_error("give --port or --listeners, not both")
        return [Flag("--port", "listeners", f"{_protocol(given)}://127.0.0.1:{given.port}")]

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a usage error of one line."""
        usage_error(f"{message} (see {self.prog} --help)")


def _remove_old_ready_file(path: Path) -> None:
    """Remove a ready file that outlived a kill -9, because it must not speak for this start.

    Refuse anything else at that path. The broker replaces the file when it is ready and removes it when it stops: with
    `--ready-file /dev/null` a broker of root would take the device from the host.
    """
    try:
        facts = path.lstat()
        is_old = (
            stat.S_ISREG(facts.st_mode)
            and facts.st_size <= _READY_BYTES_MAX
            and _is_ready_file(path.read_bytes())
        )
        if is_old:
            path.unlink()
    except FileNotFoundError:
        if path.parent.is_dir():
            return
        usage_error(f"--ready-file {path}: the directory does not exist")
    except OSError as error:
        usage_error(f"--ready-file {path}: {error.strerror}")
    if not is_old:
        usage_error(f"--ready-file {path}: this is not a ready file of a broker, and it would be removed")


def _is_ready_file(content: bytes) -> bool:
    """Return True for a JSON object with an address, and for an empty file, as mktemp makes it."""
    import json

    try:
        return not content or "bootstrap" in json.loads(content)
    except (ValueError, TypeError):
        return False


def _protocol(given: argparse.Namespace) -> str:
    """Return the listener's security protocol by the options of `dev`."""
    has_users = bool(getattr(given, "users", None))
    if getattr(given, "tls", False):
        return "SASL_SSL" if has_users else "SSL"
    return "SASL_PLAINTEXT" if has_users else "PLAINTEXT"


class _Help(argparse.HelpFormatter):
    """A help format with a wide column for options, in which each option's value appears once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(f"{self._prog} [OPTIONS]", actions, groups, "Usage: ")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(text.strip(), width, initial_indent="  ", subsequent_indent="  ")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(sorted(action.option_strings, key=len))
        return f"{names} {action.metavar}" if action.metavar else names


def _run_serve(given: argparse.Namespace, flags: list[Flag]) -> int:
    def reread() -> Config:
        if given.config is None:
            raise ConfigError("there is no file (--config) to read again")
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
        "listeners": f"{_protocol(given)}://127.0.0.1:{DEFAULT_PORT}",
        "log.dirs": str(directory),
        "kproc.flush": "none",
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
    if file is not None and file.stat().st_mode & _OTHERS_READ:
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
