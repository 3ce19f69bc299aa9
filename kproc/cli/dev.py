"""`kproc dev`: run a broker with default settings for development, in a temporary directory.

This module loads neither a client library nor typer, because loading either takes longer than a broker's start.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.broker_options import LISTENERS, SHARED_OPTIONS, CommandParser, listener_protocol
from kproc.cli.broker_run import build_config, print_ready, run_broker
from kproc.cli.failure import DEFAULT_PORT, usage_error
from kproc.cli.lines import print_note

if TYPE_CHECKING:
    from kproc.broker.config import Config, Flag
    from kproc.client.security.throwaway import Throwaway

_PARTITIONS: Final = re.compile(r"[1-9][0-9]{0,5}")


def _default_settings(directory: Path, protocol: str) -> dict[str, object]:
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
    defaults = _default_settings(directory, listener_protocol(given))
    try:
        if given.tls or given.users:
            from kproc.client.security.throwaway import make_throwaway

            where = directory / "security"
            throwaway = make_throwaway(
                where, has_tls=given.tls, users=tuple(dict.fromkeys(given.users or ()))
            )
            defaults |= throwaway.broker_settings() | {"log.dirs": str(directory / "data")}
        config = build_config(flags, given.settings, defaults=defaults)
        is_temporary = directory in (path := Path(config.log_dirs), path.parent)
        topics = _create_topics(config, wanted, is_temporary=is_temporary)
        return run_broker(
            config,
            ready_file=given.ready_file,
            on_ready=lambda ready: print_ready(
                _ready_text(ready, topics, throwaway, is_temporary=is_temporary, has_snippets=given.snippets)
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
        print_ready(
            _ready_text(ready, created, throwaway, is_temporary=is_temporary, has_snippets=given.snippets)
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


def _ready_text(
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


DEV: Final = CommandParser(
    "dev",
    "Run a broker in a temporary directory, without syncing, until Ctrl-C; nothing is kept.",
    (LISTENERS, *SHARED_OPTIONS),
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
