"""Finds the host names in changes of the metadata: they are resolved before the change is decided.

The controller must not wait for a name server. Neither must the roles that use the name afterwards, but they can expect
a quick answer for a name that was just resolved. The decision about a change is deterministic, because the change
contains the names that were resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.listeners import is_address, parse_listeners

RESOLVABLE: Final = "resolvable"
"""The field of a change's body with the names that could be resolved."""


def host_names(op: str, body: dict[str, Any], config: Config) -> frozenset[str]:
    """Return the hosts in an operation for which `needs_lookup` is True."""
    hosts: Iterator[str] = iter(())
    if op == "alter_client_quotas":
        hosts = _of_quotas(body)
    elif op in ("alter_configs", "incremental_alter_configs"):
        hosts = _of_listeners(body, config)
    return frozenset(host for host in hosts if host and needs_lookup(host))


def needs_lookup(host: str) -> bool:
    """Return True for a host name, and for an address with a scope such as `fe80::1%eth0`.

    As in Kafka, an address with a scope is rejected if this host has no such interface. The look-up checks that.
    """
    return "%" in host or not is_address(host)


def _of_quotas(body: dict[str, Any]) -> Iterator[str]:
    for entry in body["entries"]:
        for row in entry["entity"]:
            if row["entity_type"] == "ip" and row["entity_name"] is not None:
                yield row["entity_name"]


def _of_listeners(body: dict[str, Any], config: Config) -> Iterator[str]:
    for resource in body["resources"]:
        for row in resource["configs"]:
            if row["name"] == "listeners" and row["value"]:
                try:
                    end_points = parse_listeners(row["value"], config.listener_security_protocol_map)
                except ConfigError:
                    continue  # Malformed: the decision about the change reports it.
                yield from (each.host for each in end_points)
