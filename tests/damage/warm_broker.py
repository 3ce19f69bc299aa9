"""WarmBroker: `kproc serve` with its roles in threads, forked from this process, so that a start takes no imports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.wait import wait_until

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_COMPACT_BYTES: Final = 1024  # So small that the metadata log has a snapshot, which can be damaged.


class NotStarted(Exception):
    """The broker ended before it was ready; the text is what it printed."""


class WarmBroker:
    """One broker over a data directory, from `with` to the end of the block."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._pid = 0
        self._scratch = data.with_name(f"{data.name}-printed")  # Goes with the caller's directory.
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        self.bootstrap = ""

    def __enter__(self) -> WarmBroker:
        ready = self._scratch / "ready"
        self._pid = os.fork()
        if not self._pid:
            self._serve(ready)
        try:
            wait_until(lambda: ready.exists() or self._has_ended(), seconds=_START_S, what="the ready file")
        except AssertionError as late:
            self._end(signal.SIGKILL)
            raise NotStarted(f"{late}\n{self.printed()}") from late
        if not self._pid:
            raise NotStarted(self.printed())
        self.bootstrap = str(json.loads(ready.read_text())["bootstrap"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as kill -9 does: nothing is closed in order."""
        self._end(signal.SIGKILL)

    def printed(self) -> str:
        """Return everything that the broker has printed, its log included."""
        path = self._scratch / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _end(self, number: int) -> None:
        if not self._pid:
            return
        os.kill(self._pid, number)
        try:
            wait_until(self._has_ended, seconds=_STOP_S, what="the end of the broker")
        except AssertionError:
            os.kill(self._pid, signal.SIGKILL)
            raise

    def _has_ended(self) -> bool:
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
        return not self._pid

    def _serve(self, ready: Path) -> None:
        """The child: never returns."""
        from kproc.broker.cluster import metadata_log
        from kproc.cli.main import run

        metadata_log.COMPACT_BYTES = _COMPACT_BYTES  # type: ignore[misc]
        status = 70
        try:
            log = os.open(self._scratch / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            # A test runner may have put something else in their place.
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            status = run(
                [
                    "serve", "--data", str(self._data), "--transport", "thread",
                    "--listeners", "PLAINTEXT://127.0.0.1:0", "--ready-file", str(ready),
                    "--set", "num.io.threads=1", "--set", "num.network.threads=1",
                    "--set", "offsets.topic.num.partitions=2", "--set", "transaction.state.log.num.partitions=2",
                    "--set", "share.coordinator.state.topic.num.partitions=2",
                    "--set", "log.flush.offset.checkpoint.interval.ms=1000",
                    "--set", "log.index.interval.bytes=4096", "--set", "log.cleaner.backoff.ms=200",
                ]
            )  # fmt: skip
        finally:
            os._exit(status)
