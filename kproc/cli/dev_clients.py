"""The output of `kproc dev`: its banner, and the settings with which clients of different libraries connect."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproc.cli.failure import Failure
from kproc.cli.human import counted
from kproc.cli.profile_store import BOOTSTRAP_VARIABLE, PROFILE_VARIABLE, find_connection

if TYPE_CHECKING:
    from kproc.client.security.settings import ClientSecurity
    from kproc.client.security.throwaway import Throwaway


def banner(
    ready: Mapping[str, Any],
    topics: Mapping[str, int],
    *,
    is_temporary: bool,
    command_config: Path | None,
) -> str:
    """Return the broker's address, how to stop it, and three commands to try, ready to be pasted.

    ready: the content of the ready file.
    topics: the topics of --topic, with their numbers of partitions.
    is_temporary: the broker deletes its data when it stops.
    command_config: the first user's file, if the commands need one.
    """
    bootstrap = str(ready["bootstrap"])
    kept = "deletes its data" if is_temporary else f"keeps {ready['data']}"
    lines = [f"kproc is ready at {bootstrap}. Ctrl-C stops it and {kept}."]
    lines += [f"  {name:<10}{text}" for name, text in _other_addresses(ready)]
    if topics:
        shown = (f"{name} ({counted(count, 'partition')})" for name, count in topics.items())
        lines.append(f"  {'topics':<10}{', '.join(shown)}")
    lines += ["", "Try in another terminal:"]
    if not _is_default(bootstrap):
        lines.append(f"  export KPROC_BOOTSTRAP={shlex.quote(bootstrap)}")
    if command_config is not None:
        lines.append(f"  export KPROC_COMMAND_CONFIG={shlex.quote(str(command_config))}")
    lines += [f"  {command}" for command in _commands(next(iter(topics), None))]
    return "".join(f"{line}\n" for line in lines)


def _other_addresses(ready: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, address) of everything that the banner's first line does not show.

    These are further listeners, advertised addresses that differ, and the control, metrics and fault addresses.
    """
    listeners = ready["listeners"]
    if len(listeners) > 1 or any(each["bound"] != each["advertised"] for each in listeners.values()):
        for name, listener in listeners.items():
            bound, advertised = listener["bound"], listener["advertised"]
            yield name, bound if bound == advertised else f"{bound}, advertised as {advertised}"
    if "control" in ready:
        yield "control", str(ready["control"])
    if "metrics" in ready:
        yield "metrics", f"http://{ready['metrics']}/metrics"
    if "control_url" in ready:
        yield "faults", f"{ready['control_url']}, token {ready['control_token']}"


def _is_default(bootstrap: str) -> bool:
    """Return True if commands connect to this address without the option --bootstrap."""
    try:
        connection = find_connection(None, None)
    except Failure:
        return False
    # An address from an environment variable does not count, because another terminal may not have the variable.
    return connection.bootstrap == bootstrap and connection.source not in (
        BOOTSTRAP_VARIABLE,
        PROFILE_VARIABLE,
    )


def _commands(topic: str | None) -> Sequence[str]:
    if topic is None:
        return (
            "kproc topic create greetings --partitions 3",
            "echo hello | kproc produce greetings",
            "kproc consume greetings",
        )
    return (f"echo hello | kproc produce {topic}", f"kproc consume {topic}", f"kproc topic describe {topic}")


def client_lines(throwaway: Throwaway | None, bootstrap: str) -> str:
    """Return the settings for clients of several libraries: for each user a paragraph with its password.

    The passwords are valid only while this broker runs.

    Without users and TLS, return one paragraph without credentials.
    """
    from kproc.client.security.settings import PLAINTEXT

    if throwaway is None:
        return _paragraph("clients", PLAINTEXT, None, bootstrap)
    return "\n".join(
        _paragraph(user or "clients", throwaway.security(user), throwaway.client_file(user), bootstrap)
        for user in throwaway.users or [None]
    )


def _paragraph(title: str, security: ClientSecurity, file: Path | None, bootstrap: str) -> str:
    return "".join(f"{line}\n" for line in (f"{title}:", *_lines(security, file, bootstrap)))


def _lines(security: ClientSecurity, file: Path | None, bootstrap: str) -> Iterator[str]:
    from kproc.client.security.written import java_properties, kafka_python_arguments

    by_file = f" --command-config {file}" if file is not None else ""
    java = {"bootstrap.servers": bootstrap}
    librdkafka = {"bootstrap.servers": bootstrap}
    python: dict[str, Any] = {"bootstrap_servers": bootstrap}
    # Without a file the connection is PLAINTEXT, which every client uses by default, so no security settings are
    # needed.
    if file is not None:
        java |= java_properties(security)
        librdkafka["security.protocol"] = security.protocol
        python |= kafka_python_arguments(security)
    if security.tls is not None:
        librdkafka["ssl.ca.location"] = security.tls.trust.location
    if security.login is not None:
        login = security.login
        librdkafka |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    yield f"  kproc                 kproc topic list -b {bootstrap}{by_file}"
    yield f"  Kafka's tools         --bootstrap-server {bootstrap}{by_file}"
    yield f"  Java                  {'  '.join(f'{name}={value}' for name, value in java.items())}"
    yield f"  confluent-kafka       {json.dumps(librdkafka)}"
    yield f"  kafka-python          {', '.join(f'{name}={value!r}' for name, value in python.items())}"
