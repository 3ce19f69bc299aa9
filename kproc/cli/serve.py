"""`kproc serve`: build the settings and run a broker.

This module loads neither a client library nor typer, because loading either takes longer than a broker's start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.broker_options import LISTENERS, SHARED_OPTIONS, CommandParser, Option
from kproc.cli.broker_run import build_config, print_ready, run_broker
from kproc.cli.failure import usage_error
from kproc.cli.lines import print_note

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag

_STDERR: Final = 2
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
        return build_config(flags, given.settings, file=given.config, environment=environment)

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
        code = run_broker(
            config,
            ready_file=given.ready_file,
            on_ready=lambda ready: print_ready(_format_ready_line(config, ready)),
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


SERVE: Final = CommandParser(
    "serve",
    "Run a broker until SIGTERM or Ctrl-C; SIGHUP reads its configuration file again.",
    (LISTENERS, *_SERVE_ONLY, *SHARED_OPTIONS),
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


def _count(ready: dict[str, Any], role: str) -> int:
    """Return how many processes of a role the ready file lists, without those of the control listener.

    The number can differ from the command line's, because counts that were set at run time survive a restart.
    """
    return sum(row["role"] == role and row["pool"] != "control" for row in ready["processes"])
