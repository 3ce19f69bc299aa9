"""The text of `kproc dev --tls --user alice`: the settings with which each client connects to that broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kproc.client.security.throwaway import Throwaway


def client_lines(throwaway: Throwaway, bootstrap: str) -> str:
    """Return a paragraph for each user, with its password. The passwords are valid only as long as this broker."""
    return "".join(
        f"{line}\n" for user in throwaway.users or [None] for line in _lines(throwaway, bootstrap, user)
    )


def _lines(throwaway: Throwaway, bootstrap: str, user: str | None) -> Iterator[str]:
    from kproc.client.security.written import java_properties, kafka_python_arguments

    security = throwaway.security(user)
    file = throwaway.client_file(user)
    java = java_properties(security)
    librdkafka = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.tls is not None:
        librdkafka["ssl.ca.location"] = security.tls.trust.location
    if security.login is not None:
        login = security.login
        librdkafka |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    python = {"bootstrap_servers": bootstrap, **kafka_python_arguments(security)}
    yield ""
    yield f"{user or 'clients'}:"
    yield f"  kproc                 kproc topic list -b {bootstrap} --command-config {file}"
    yield f"  Kafka's tools         --bootstrap-server {bootstrap} --command-config {file}"
    yield f"  Java                  {'  '.join(f'{name}={value}' for name, value in java.items())}"
    yield f"  confluent-kafka       {json.dumps(librdkafka)}"
    yield f"  kafka-python          {', '.join(f'{name}={value!r}' for name, value in python.items())}"
