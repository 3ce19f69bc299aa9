"""BrokerClients: the connections of a Cluster, one for each broker address. It sends each request once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kproc.broker.config.listeners import split_address
from kproc.broker.config.values import ConfigError
from kproc.client import AnswerTimeout, Client, ConnectionFailed, ConnectionLost
from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.wire.header import ApiKey

CONNECTION_ERRORS: Final = (ConnectionFailed, ConnectionLost, AnswerTimeout)
"""Errors after which the connection is closed. A request on a new connection can succeed."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """Settings of a Cluster's connections and retries. The comments have the names of Kafka's settings."""

    client_id: str = "kproc-spark"
    connect_ms: int = 10_000  # socket.connection.setup.timeout.ms
    request_ms: int = 30_000  # request.timeout.ms
    retry_ms: int = 30_000
    backoff_ms: int = 50  # retry.backoff.ms; doubled each time up to the next
    backoff_ms_max: int = 1_000  # retry.backoff.max.ms
    attempts_max: int | None = None  # If set, the number of attempts ends the retries instead of retry_ms.
    security: ClientSecurity = PLAINTEXT  # security.protocol, ssl.*, sasl.*


class BrokerClients:
    """Connections by address, which are opened when the first request needs them. One thread owns them."""

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._clients: dict[tuple[str, int], Client] = {}

    def close(self) -> None:
        """Close every connection. The next request opens a new one."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def request(
        self,
        address: tuple[str, int],
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        newest: int | None = None,
    ) -> dict[str, Any]:
        """Send a request to the broker at `address` and return the response's fields.

        newest: the highest version to use. If the connection fails, close it and raise its error.
        """
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = self._connect(address)
        try:
            return client.call_latest(api_key, fields, newest=newest)
        except CONNECTION_ERRORS:
            del self._clients[address]
            client.close()
            raise

    def request_any(
        self,
        addresses: Iterable[tuple[str, int]],
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        newest: int | None = None,
    ) -> dict[str, Any]:
        """Send a request to connected brokers first, then to `addresses`, until one answers. Raise the last error."""
        ordered = list(dict.fromkeys((*self._clients, *addresses)))
        for position, address in enumerate(ordered):
            try:
                return self.request(address, api_key, fields, newest=newest)
            except CONNECTION_ERRORS:
                if position == len(ordered) - 1:
                    raise
        raise AssertionError("bug in kproc: the list of bootstrap addresses is empty")

    def _connect(self, address: tuple[str, int]) -> Client:
        client = Client.connect(
            *address,
            timeout_ms=self._connecting.connect_ms,
            client_id=self._connecting.client_id,
            security=self._connecting.security,
        )
        client.timeout_ms = self._connecting.request_ms
        return client


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Parse `host:port,host:port` into pairs. Raise ConfigError with the reason."""
    pairs = [split_address(each) for each in bootstrap.split(",") if each.strip()]
    if not pairs:
        raise ConfigError("expected host:port addresses, separated by commas")
    return pairs
