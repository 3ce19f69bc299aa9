"""kproc as anybody starts it: through its command line, one child process of ours with its tree below."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.alternatives.broker import ALTERNATIVES
from bench.peers import free_threaded
from bench.peers.base import REPOSITORY, Peer, PeerFailed, has_live_broker, python_environment

# The process design, and what it is compared with over the same code: only how bytes and requests travel differs.
TRANSPORTS = ("process", "thread", "inline", *ALTERNATIVES)


class KprocPeer(Peer):
    """kproc with a transport and a flush level; `settings` go to the command line as `--set name=value`.

    Each request burns `work_us` of CPU in its Handler. `checkout` is where the code is taken from: another one than
    this to compare two states of it.
    """

    start_seconds_max = 30.0

    def __init__(
        self,
        *,
        transport: str = "process",
        flush: str = "group",
        settings: dict[str, str] | None = None,
        work_us: int = 0,
        python: str = sys.executable,
        keep_data: bool = False,
        checkout: Path = REPOSITORY,
        under: Path | None = None,
    ) -> None:
        super().__init__(keep_data=keep_data, under=under)
        self._checkout = checkout
        self.name = f"kproc {transport} {flush}"
        self._transport = transport
        self._settings = {"kproc.flush": flush, **(settings or {})}
        self._work_us = work_us
        self._python = python
        self.ready: dict[str, Any] = {}

    @property
    def _is_alternative(self) -> bool:
        """Return True if `kproc serve` does not offer this broker, so that bench/alternatives starts it."""
        return self._work_us > 0 or self._transport in ALTERNATIVES

    @property
    def _ready_file(self) -> Path:
        return self.directory / "ready.json"

    def command(self) -> list[str]:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **self._settings}
        command = [self._python, "-P", "-m"]
        if self._is_alternative:
            command += ["bench.alternatives", "--work-us", str(self._work_us)]
        else:
            command += ["kproc", "serve"]
        command += ["--listeners", settings.pop("listeners")]
        command += ["--data", str(self.data), "--ready-file", str(self._ready_file)]
        # A harness that is killed must not leave brokers behind.
        command += ["--transport", self._transport, "--exit-with-parent", str(os.getpid())]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def environment(self) -> dict[str, str]:
        # The checkout, whatever is installed; the broker runs in its own directory.
        return python_environment(self._checkout)

    def prepare(self) -> None:
        # As pip does when it installs a package; the checkout may never have been run, or not be let write bytecode.
        compile_dir = [self._python, "-P", "-m", "compileall", "-q", str(self._checkout / "kproc")]
        if self._is_alternative:
            compile_dir.append(str(self._checkout / "bench" / "alternatives"))
        subprocess.run(compile_dir, check=True, stdin=subprocess.DEVNULL)

    def is_ready(self) -> bool:
        if not self.ready:
            try:
                self.ready = json.loads(self._ready_file.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                return False  # not there yet, or not written to its end
            self.bootstrap = self.ready["bootstrap"]
        return has_live_broker(self.bootstrap)

    def forget(self) -> None:
        self.ready = {}
        self.bootstrap = ""
        self._ready_file.unlink(missing_ok=True)

    def role_of(self, pid: int) -> str:
        """Return the role of one of the broker's processes by its ready file, such as `handler-0`.

        With threads, and inline, all roles share one process: `all roles`.
        """
        rows = [row for row in self.ready.get("processes", ()) if row["pid"] == pid]
        if len(rows) > 1:
            return "all roles"
        return f"{rows[0]['role']}-{rows[0]['index']}" if rows else f"pid-{pid}"


class FreeThreadedPeer(KprocPeer):
    """The threads of kproc under an interpreter without a lock; fails with the reason where there is none."""

    def __init__(
        self, *, flush: str = "group", settings: dict[str, str] | None = None, work_us: int = 0
    ) -> None:
        found = free_threaded.find()
        super().__init__(
            transport="thread", flush=flush, settings=settings, work_us=work_us, python=found.python
        )
        self.name = f"kproc free-threaded {flush}"
        self._reason = found.reason

    def start(self) -> None:
        if self._reason:
            raise PeerFailed(self._reason)
        super().start()
