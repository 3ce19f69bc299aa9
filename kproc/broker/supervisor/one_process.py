"""Runs a broker whose roles share this process, of the kind that `kproc.transport` names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kproc.broker.config import Config
from kproc.broker.supervisor import preload, ready
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.inprocess import BrokerProcess
from kproc.broker.supervisor.service_manager import ServiceManager


def run_in_process(
    config: Config,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    manager: ServiceManager,
    can_reload: bool = False,
) -> int:
    """Run a broker in this process until SIGTERM or SIGINT. Return the exit status.

    With `can_reload` SIGHUP does not end it. It reloads nothing with this transport.
    """
    ready.raise_nofile_limit()
    preload.load(config)
    directory = DataDirectory(config)
    try:
        process = _kind_of(config)(config, directory, manager)
        process.ends_at_hangup = not can_reload
    except BaseException:
        directory.close()
        raise
    try:
        return process.run(ready_file, on_ready)
    finally:
        process.release()
        directory.close()
        ready.remove(ready_file)


def _kind_of(config: Config) -> type[BrokerProcess]:
    if config.kproc_transport not in ("connection-threads", "asyncio"):
        return BrokerProcess
    # Import this late, because it imports asyncio, which the other transports do not need.
    from kproc.broker.supervisor.turn_based import ConnectionThreadsProcess, LoopProcess

    return LoopProcess if config.kproc_transport == "asyncio" else ConnectionThreadsProcess
