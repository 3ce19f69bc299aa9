"""Runs a broker until SIGTERM or SIGINT with the transport that its settings name. `kproc serve` calls this."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kproc.broker.api import load_all
from kproc.broker.config import Config
from kproc.broker.supervisor import logs, signals, stacks
from kproc.broker.supervisor.janitor import Janitor
from kproc.broker.supervisor.reload import Reread
from kproc.broker.supervisor.restore_loop import run_with_restores
from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.broker.supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)


def run(
    config: Config,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    quiet: bool,
    manager: ServiceManager,
    reread: Reread | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT. Return the exit status.

    on_ready: called with the content of the ready file when clients may connect.
    reread: reads the configuration again at SIGHUP. Without it SIGHUP ends the broker.

    Raises ConfigError if the configuration is invalid, and FatalError if the host lacks a resource.
    """
    logs.configure(logging.WARNING if quiet else logging.INFO)
    load_all()
    if config.kproc_emulate_release:
        from kproc.broker.request.releases import emulate_release

        emulate_release(config.kproc_emulate_release)
        logger.warning(
            "emulating Apache Kafka %s: requests of newer versions are rejected", config.kproc_emulate_release
        )
    stacks.install()
    signals.reset_inherited(ends_at_hangup=reread is None)
    janitor = Janitor(config.kproc_temporary_directory) if config.kproc_temporary_directory else None
    try:
        return _run_roles(config, manager, ready_file=ready_file, on_ready=on_ready, reread=reread)
    except Exception as error:
        manager.failed(str(error))
        raise
    finally:
        manager.close()
        if janitor is not None:
            janitor.finish()


def _run_roles(
    config: Config,
    manager: ServiceManager,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    reread: Reread | None,
) -> int:
    """Run the roles in the processes or threads of the transport that the settings name."""
    if config.kproc_transport != "process":
        # Import inprocess only if needed, because the process transport does not use it.
        from kproc.broker.supervisor.inprocess import run_in_process

        return run_in_process(
            config, ready_file=ready_file, on_ready=on_ready, manager=manager, reread=reread
        )
    return run_with_restores(lambda kept: Supervisor(config, manager, reread, kept), ready_file, on_ready)
