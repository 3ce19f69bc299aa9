"""The parser of `kproc serve` and `kproc dev`: options that stand for settings of the broker.

It uses argparse, because loading typer, which the other commands use, takes longer than the start of a broker.
"""

from __future__ import annotations

import argparse
import os
import stat
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from kproc.cli.failure import usage_error

if TYPE_CHECKING:
    from kproc.broker.config import Flag

_READY_BYTES_MAX: Final = 1 << 20


class Option(NamedTuple):
    """An option of `serve` or `dev`: its names, setting (or ""), placeholder of the value (or "") and help."""

    names: tuple[str, ...]
    setting: str
    metavar: str
    text: str
    type: Callable[[str], object] = str


LISTENERS: Final = Option(
    ("--listeners",), "listeners", "LIST", "NAME://host:port,...; port 0 takes a free one."
)
SHARED_OPTIONS: Final = (
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
"""The options that `serve` and `dev` have in common, except --listeners."""


class CommandParser(argparse.ArgumentParser):
    """Parser of `kproc serve` and `kproc dev`.

    It reports wrong usage with the same words as the other commands, whose parser is typer.
    """

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
        self._add_options_of_start()

    def _add_options_of_start(self) -> None:
        """Add the options that do not correspond to one setting."""
        self.add_argument(
            "--port",
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
        """Return the options that a shell offers as completions."""
        return [action for action in self._actions if action.option_strings]

    def format_help(self) -> str:
        """Format the help with each setting's name and default.

        Load the settings only here, because a start must be fast.
        """
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
        from kproc.cli.examples import example_lines

        examples = "".join(f"  {line}\n" for line in example_lines(self.command))
        return f"{super().format_help()}\nExamples:\n{examples}"

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command until the broker has stopped. Return its exit code."""
        try:
            return self._run(arguments)
        except Exception as error:
            # If the variable still exists, the broker has not started its ServiceManager, which removes it. So report
            # the failure here.
            if "NOTIFY_SOCKET" in os.environ:
                from kproc.broker.supervisor.service_manager import ServiceManager

                manager = ServiceManager.of_environment(os.environ)
                manager.failed(str(error))
                manager.close()
            raise

    def _run(self, arguments: Sequence[str]) -> int:
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
        return [Flag("--port", "listeners", f"{listener_protocol(given)}://127.0.0.1:{given.port}")]

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a Failure with a one-line message and the exit code of wrong usage."""
        usage_error(f"{message} (see {self.prog} --help)")


def _remove_old_ready_file(path: Path) -> None:
    """Remove a ready file that an earlier broker left after a kill -9, because it would announce this start too early.

    Reject any other file at that path. The broker replaces the file when it is ready and removes it when it stops: with
    `--ready-file /dev/null` a broker of root would delete the device.
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
    """Return True for a JSON object with an address, and for an empty file, which mktemp creates."""
    from kproc.common.json_bytes import parse_json

    try:
        document = parse_json(content or b'{"bootstrap": ""}')
    except ValueError:
        return False
    return isinstance(document, dict) and "bootstrap" in document


def listener_protocol(given: argparse.Namespace) -> str:
    """Return the listener's security protocol that the options --tls and --user of `dev` require."""
    has_users = bool(getattr(given, "users", None))
    if getattr(given, "tls", False):
        return "SASL_SSL" if has_users else "SSL"
    return "SASL_PLAINTEXT" if has_users else "PLAINTEXT"


class _Help(argparse.HelpFormatter):
    """A help format with a wide column for options, in which each option's placeholder appears only once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(f"{self._prog} [OPTIONS]", actions, groups, "Usage: ")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(text.strip(), width, initial_indent="  ", subsequent_indent="  ")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(sorted(action.option_strings, key=len))
        return f"{names} {action.metavar}" if action.metavar else names
