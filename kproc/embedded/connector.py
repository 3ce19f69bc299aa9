"""Connector: opens connections to an embedded broker, and explains why one cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kproc.embedded.process import BrokerFailed, BrokerProcess, BrokerRestarting
from kproc.embedded.setup import BrokerSetup

if TYPE_CHECKING:
    from kproc.client import Client


class Connector:
    """Opens connections to one embedded broker. Threads may share it."""

    def __init__(self, process: BrokerProcess, setup: BrokerSetup) -> None:
        self._process = process
        self._setup = setup
        # Rises at the begin and at the end of each restart and restore, so that it is odd in between.
        self._restart_phase = 0

    def connect(self) -> Client:
        """Open a connection, with TLS and the login of the first user if the broker needs them.

        Raises BrokerRestarting if the connection fails while another thread is in `restarting`. Raises BrokerFailed,
        with the end of the log, if the broker has ended, and ConnectionFailed otherwise.
        """
        from kproc.client import Client, ConnectionFailed

        phase = self._restart_phase
        try:
            security = self._setup.security(None)
            host, _, port = str(self._process.ready_value("bootstrap")).rpartition(":")
            return Client.connect(host.strip("[]"), int(port), client_id="kproc-embedded", security=security)
        except (ConnectionFailed, BrokerFailed) as error:
            if phase % 2 or phase != self._restart_phase:
                raise BrokerRestarting("another thread restarts the broker, or restores its state") from error
            # If the broker has ended, its exit code and log say more than a refused connection.
            ended = self._process.find_end()
            if ended is None:
                raise
            raise ended from error

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """During the block let failed connections raise BrokerRestarting, after which other threads try again."""
        self._restart_phase += 1
        try:
            yield
        finally:
            self._restart_phase += 1
