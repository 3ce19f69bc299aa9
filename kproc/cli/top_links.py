"""The connections of `kproc top`. A page opens the connection that it needs. An error closes all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.cli.common import Failure
from kproc.cli.connection import connect
from kproc.cli.offsets import PATIENCE_MS
from kproc.cli.status_source import StatusSource, is_of_this_host
from kproc.cli.topic_usage import connect_locally

if TYPE_CHECKING:
    from kproc.client import Client


class NotOffered(Failure):
    """The broker cannot supply a page's data to this command, for the reason in the message.

    A retry would fail, too.
    """


class Links:
    """The connections to one broker. Only one thread uses them at a time."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._status = StatusSource(bootstrap)
        self._client: Client | None = None
        self._local: Client | None = None
        self._has_tried = False

    @property
    def client(self) -> Client:
        """The connection for requests of Kafka's protocol.

        The first use opens it, and raises ClientError if that fails.
        """
        if self._client is None:
            self._client = connect(self.bootstrap)
            self._client.timeout_ms = PATIENCE_MS
        return self._client

    @property
    def local(self) -> Client | None:
        """The connection for kproc's own operations, or None unless a kproc broker answers on the loopback.

        Tried only once: after a failure this stays None until `close`.
        """
        if self._local is None and not self._has_tried:
            self._local = connect_locally(self.client, self.bootstrap)
            self._has_tried = True
        return self._local

    def request_status(self) -> tuple[dict[str, Any], str | None]:
        """Return the broker's status, and a notice if it came from its supervisor. Raises NotOffered."""
        if not is_of_this_host(self.bootstrap):
            raise NotOffered(
                f"{self.bootstrap} is another host: kproc shows processes, connections and requests only to commands "
                "on its own host. Topics and groups are shown from anywhere"
            )
        return self._status.request_status(), self._status.notice

    def require_local(self) -> Client:
        """Return the connection for kproc's own operations. Raises NotOffered if `local` is None."""
        local = self.local
        if local is None:
            raise NotOffered(
                f"{self.bootstrap} does not show its connections: this needs a kproc broker on this host, reached by "
                "a loopback address such as 127.0.0.1"
            )
        return local

    def close(self) -> None:
        """Close all connections. The next use of each opens it again."""
        self._status.close()
        for each in (self._client, self._local):
            if each is not None:
                each.close()
        self._client = self._local = None
        self._has_tried = False
