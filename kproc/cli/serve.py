"""`kproc serve` and `kproc dev`: settings in, a running broker out. No client library is loaded here."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import DEFAULT_PORT, usage_error

if TYPE_CHECKING:
    from kproc.config import Config, Flag

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings: TOML, or Kafka's server.properties."),
]
Listeners = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="NAME://host:port,...; port 0 takes a free one. [listeners]"),
]
Advertised = Annotated[
    str | None, typer.Option(metavar="LIST", help="What clients are told. [advertised.listeners]")
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Where topics are kept. [log.dirs]")]
Processors = Annotated[
    int | None, typer.Option(metavar="N", help="Processes for sockets. [num.network.threads]")
]
Handlers = Annotated[int | None, typer.Option(metavar="N", help="Processes for requests. [num.io.threads]")]
Transport = Annotated[
    str | None, typer.Option(metavar="KIND", help="process, thread or inline. [kproc.transport]")
]
Control = Annotated[
    str | None,
    typer.Option(
        "--control-listener",
        metavar="HOST:PORT",
        help="For administration, apart from the clients. [kproc.control.listener]",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics-listener",
        metavar="HOST:PORT",
        help="Where Prometheus may scrape /metrics. [kproc.metrics.listener]",
    ),
]
Flush = Annotated[str | None, typer.Option(metavar="KIND", help="group or none. [kproc.flush]")]
ClampReplication = Annotated[
    bool,
    typer.Option(
        "--clamp-replication",
        help="A replication factor above 1 counts as 1. [kproc.clamp.replication.factor]",
    ),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Any setting.")
]
ReadyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Written when clients may connect: JSON.")
]
ParentPid = Annotated[
    int | None, typer.Option("--exit-with-parent", metavar="PID", help="Stop when this process ends.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors on the screen.")]


def serve(
    config: ConfigFile = None,
    listeners: Listeners = None,
    advertised_listeners: Advertised = None,
    data: Data = None,
    processors: Processors = None,
    handlers: Handlers = None,
    transport: Transport = None,
    flush: Flush = None,
    control_listener: Control = None,
    metrics_listener: Metrics = None,
    clamp_replication: ClampReplication = False,
    settings: Assignments = None,
    ready_file: ReadyFile = None,
    exit_with_parent: ParentPid = None,
    quiet: Quiet = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    flags = _flags(
        ("--listeners", "listeners", listeners),
        ("--advertised-listeners", "advertised.listeners", advertised_listeners),
        ("--data", "log.dirs", data),
        ("--processors", "num.network.threads", processors),
        ("--handlers", "num.io.threads", handlers),
        ("--transport", "kproc.transport", transport),
        ("--flush", "kproc.flush", flush),
        ("--control-listener", "kproc.control.listener", control_listener),
        ("--metrics-listener", "kproc.metrics.listener", metrics_listener),
        ("--clamp-replication", "kproc.clamp.replication.factor", _if_given(clamp_replication)),
        ("--exit-with-parent", "kproc.exit.with.pid", exit_with_parent),
    )
    _run(_build(flags, settings, file=config), ready_file=ready_file, quiet=quiet)


def dev(
    port: Annotated[
        int, typer.Option("--port", "-p", help="The port on 127.0.0.1; 0 takes a free one.")
    ] = DEFAULT_PORT,
    listeners: Listeners = None,
    processors: Processors = None,
    handlers: Handlers = None,
    transport: Transport = None,
    control_listener: Control = None,
    metrics_listener: Metrics = None,
    clamp_replication: ClampReplication = False,
    settings: Assignments = None,
    ready_file: ReadyFile = None,
    exit_with_parent: ParentPid = None,
) -> None:
    """Run a broker in a temporary directory, without syncing, until Ctrl-C; nothing is kept."""
    if not 0 <= port < 65536:
        usage_error(f"--port {port}: must be from 0 to 65535")
    flags = _flags(
        ("--listeners", "listeners", listeners),
        ("--processors", "num.network.threads", processors),
        ("--handlers", "num.io.threads", handlers),
        ("--transport", "kproc.transport", transport),
        ("--control-listener", "kproc.control.listener", control_listener),
        ("--metrics-listener", "kproc.metrics.listener", metrics_listener),
        ("--clamp-replication", "kproc.clamp.replication.factor", _if_given(clamp_replication)),
        ("--exit-with-parent", "kproc.exit.with.pid", exit_with_parent),
    )
    directory = Path(tempfile.mkdtemp(prefix="kproc-dev-"))
    owner = os.getpid()
    defaults: dict[str, object] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory),
        "kproc.flush": "none",
        "group.initial.rebalance.delay.ms": 0,
        "kproc.temporary.directory": str(directory),
    }
    try:
        _run(_build(flags, settings, defaults=defaults), ready_file=ready_file, quiet=True)
    finally:
        # A forked role that unwinds through here must not take the directory from its siblings.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)


def _if_given(switch: bool) -> str | None:
    """A switch that is not given leaves the setting to --set and the file."""
    return "true" if switch else None


def _flags(*rows: tuple[str, str, object]) -> list[Flag]:
    from kproc.config import Flag

    return [Flag(option, name, str(value)) for option, name, value in rows if value is not None]


def _build(
    flags: list[Flag],
    settings: list[str] | None,
    *,
    file: Path | None = None,
    defaults: dict[str, object] | None = None,
) -> Config:
    from kproc.config import Config, parse_assignments

    assignments = parse_assignments(settings or ())
    return Config.build(assignments, flags=flags, file=file, defaults=defaults, on_warning=_warn)


def _warn(message: str) -> None:
    sys.stderr.write(f"kproc: warning: {message}\n")


def _run(config: Config, *, ready_file: Path | None, quiet: bool) -> None:
    from kproc.server.supervisor import run

    code = run(
        config,
        ready_file=ready_file,
        on_ready=lambda ready: _announce(config, ready),
        quiet=quiet,
    )
    raise typer.Exit(code)


def _announce(config: Config, ready: dict[str, Any]) -> None:
    """The one line that says where to connect, and what an acknowledgement means."""
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
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError:
        # Whoever started us has closed its end; the broker serves on, and the ready file tells the same.
        return


def _count(ready: dict[str, Any], role: str) -> int:
    """How many there are: what was chosen while the broker ran beats what it is started with."""
    return sum(row["role"] == role and row["pool"] != "control" for row in ready["processes"])
