"""`kproc dev --control N`: the broker with the control API, by which tests in other languages make it misbehave.

The broker runs as a child process, which this process controls as a test controls a `kproc.Broker`. The control API
therefore survives a restart of the broker.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from kproc.broker.config import Flag, parse_assignments
from kproc.broker.supervisor import ready
from kproc.broker.supervisor.signals import reset_inherited
from kproc.cli.broker_options import listener_protocol
from kproc.cli.failure import DEFAULT_PORT, Failure, one_line, usage_error
from kproc.client.security.throwaway import Throwaway, write_private
from kproc.embedded import Broker, BrokerFailed
from kproc.embedded.control import ControlServer
from kproc.embedded.process import BrokerProcess

_POLL_MS: Final = 250
"""Interval between checks of the broker, which an operation can restart."""
# Longest start in ms. A data directory given by --set log.dirs can need a long recovery.
_START_TIMEOUT_MS: Final = 600_000
_STOP_TIMEOUT_MS: Final = 60_000
_WRONG_USAGE: Final = 2  # The exit code of a broker that rejects a setting.
_TOKEN_FILE: Final = "control-token"  # noqa: S105 - the name of a file
TOKEN_VARIABLE: Final = "KPROC_CONTROL_TOKEN"  # noqa: S105 - the name of a variable
"""Name of the variable with the token of the control API. Without the variable the token is random."""
_PARENT: Final = "kproc.exit.with.pid"
PrintReady = Callable[[Mapping[str, Any], Mapping[str, int], Throwaway | None, bool], None]
"""Prints the banner: content of the ready file, topics, credentials, and True if the data are temporary."""


class DevBroker(Broker):
    """A broker that writes its log to the terminal."""

    def __init__(self, settings: Mapping[str, object], *, log_format: str, **more: Any) -> None:
        self._log_format = log_format
        super().__init__(settings, **more)

    def _new_process(self, start_timeout_ms: int, stop_timeout_ms: int) -> BrokerProcess:
        arguments = ["--log-format", self._log_format]
        return _ShownProcess(arguments, start_timeout_ms=start_timeout_ms, stop_timeout_ms=stop_timeout_ms)

    @property
    def credentials(self) -> Throwaway | None:
        """The temporary certificates and users of --tls and --user, or None without these options."""
        return self._setup.throwaway

    @property
    def directory(self) -> Path:
        """The broker's temporary directory, which is deleted when the broker ends."""
        assert self._process.directory is not None
        return self._process.directory


class _ShownProcess(BrokerProcess):
    """A broker process whose standard error is the terminal instead of a log file."""

    def __init__(self, arguments: list[str], **timeouts: int) -> None:
        super().__init__(**timeouts)
        self._arguments = arguments

    def _launch(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        return super()._launch([*command, *self._arguments], sys.stderr.fileno())

    def log_suffix(self) -> str:
        return ""  # The log is on the terminal.


class _EndSignals:
    """Waits for SIGTERM, SIGINT, SIGHUP or the end of a process (--exit-with-parent)."""

    def __init__(self, parent: str | None) -> None:
        self._event = os.eventfd(0)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._descriptors = [self._event]
        if parent is not None:
            try:
                self._descriptors.append(os.pidfd_open(int(parent)))
            except ProcessLookupError:
                self._on_signal()
            else:
                self._poll.register(self._descriptors[-1], select.POLLIN)
        reset_inherited(ends_at_hangup=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        os.eventfd_write(self._event, 1)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a signal or the end of the watched process. Return False if none came within `timeout_ms`."""
        return bool(self._poll.poll(timeout_ms))


class _Announcement:
    """The ready file, with the address of the control API. It exists during a `with` block."""

    def __init__(self, path: Path | None, broker: DevBroker, control: ControlServer) -> None:
        self._path = path
        self._broker = broker
        token_file = broker.directory / _TOKEN_FILE
        write_private(token_file, control.token.encode())
        self._added = {"control_url": control.url, "control_token_file": str(token_file)}
        self._pid = -1

    def content(self) -> dict[str, Any]:
        return {**self._broker.ready, **self._added}

    def update(self) -> None:
        """Write the ready file if the broker has a new process id since the last call, because it was (re)started."""
        if self._pid != self._broker.pid:
            self._pid = self._broker.pid
            if self._path is not None:
                try:
                    ready.write(self._path, self.content())
                except OSError as error:
                    raise Failure(f"--ready-file {self._path}: {error.strerror}") from None

    def __enter__(self) -> Self:
        self.update()
        return self

    def __exit__(self, *_: object) -> None:
        ready.remove(self._path)


def run_with_control(
    given: argparse.Namespace, flags: list[Flag], topics: Mapping[str, int], print_ready: PrintReady
) -> int:
    """Run the broker and its control API until a signal (SIGTERM, SIGINT, SIGHUP), or until the broker or parent ends.

    Return the exit code.

    topics: topics to create, with their numbers of partitions. 0 stands for num.partitions.
    """
    # main() disables the garbage collector during the imports. Enable it, because this process can run for days.
    gc.enable()
    settings = _settings(given, flags)
    parent = settings.pop(_PARENT, None)
    broker = _make_broker(given, settings)
    control = _make_control(broker, given.control)
    signals = _EndSignals(parent)
    try:
        broker.start()
        counts = _create_topics(broker, topics, int(settings.get("num.partitions", 1)))
        announcement = _Announcement(given.ready_file, broker, control)
        control.start()
        shown = {**announcement.content(), "control_token": control.token}
        # Write the ready file before the banner: if the file cannot be written, the broker stops.
        with announcement:
            print_ready(shown, counts, broker.credentials, "log.dirs" not in settings)
            _wait_for_end(signals, control, announcement)
    except BrokerFailed as error:
        # Keep the broker's exit code for wrong settings. The broker has already printed the reason on the terminal.
        code = _WRONG_USAGE if error.exit_code == _WRONG_USAGE else 1
        raise Failure(one_line(str(error)), exit_code=code) from error
    except RuntimeError as error:
        raise Failure(one_line(str(error))) from error
    finally:
        _stop(broker, control)
    return 0


def _settings(given: argparse.Namespace, flags: list[Flag]) -> dict[str, Any]:
    """Return the broker's settings: its listener, then the assignments of --set, then the flags, which win."""
    settings: dict[str, Any] = {"listeners": f"{listener_protocol(given)}://127.0.0.1:{DEFAULT_PORT}"}
    settings |= parse_assignments(given.settings or ())
    return settings | {flag.name: flag.value for flag in flags}


def _make_broker(given: argparse.Namespace, settings: Mapping[str, object]) -> DevBroker:
    return DevBroker(
        settings,
        log_format=given.log_format,
        tls=given.tls,
        users=tuple(dict.fromkeys(given.users or ())),
        start_timeout_ms=_START_TIMEOUT_MS,
        stop_timeout_ms=_STOP_TIMEOUT_MS,
    )


def _create_topics(broker: DevBroker, topics: Mapping[str, int], default_count: int) -> dict[str, int]:
    """Create topics with their numbers of partitions, or with `default_count` for the number 0.

    Return the numbers that were used.
    """
    counts = {name: count or default_count for name, count in topics.items()}
    for name, count in counts.items():
        broker.create_topic(name, partitions=count)
    return counts


def _make_control(broker: DevBroker, port: str) -> ControlServer:
    """Create the control API with the token of KPROC_CONTROL_TOKEN, or with a random one."""
    # Remove the token from the environment, because the broker's processes would inherit it and do not need it.
    token = os.environ.pop(TOKEN_VARIABLE, None)
    try:
        return ControlServer(broker, port=int(port), token=token)
    except ValueError as error:
        usage_error(f"{TOKEN_VARIABLE}: {error}")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failure(f"--control {port}: {reason}") from None


def _wait_for_end(signals: _EndSignals, control: ControlServer, announcement: _Announcement) -> None:
    """Wait until a signal arrives, or the broker has ended while no operation is in progress that could restart it."""
    while not signals.wait(_POLL_MS):
        with control.quiescent() as is_quiet:
            if is_quiet and not control.broker.is_running:
                return
            if is_quiet:
                announcement.update()


def _stop(broker: Broker, control: ControlServer) -> None:
    try:
        broker.stop()
    except BrokerFailed as error:
        raise Failure(one_line(str(error))) from error
    finally:
        control.close()
        # Stop the broker again, because a control operation in progress may have restarted it meanwhile.
        broker.stop()
